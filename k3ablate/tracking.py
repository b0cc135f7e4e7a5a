"""Where can runs be watched? MLflow, which gets what lies in the folders of runs: each run once, each step once.

The folder is the source, MLflow is the window: if the store cannot be reached, training goes on, one warning says so,
and `sync` delivers later. `deliver` sends a store what it lacks of a run; `Tracker` does so from a thread while the run
trains, so that training never waits; `NoTracking` leaves it to `sync`. What there is to send is in `outbox`, how MLflow
is asked in `mlflow_store`.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from pathlib import Path

from k3ablate.config import InputError
from k3ablate.mlflow_store import (
    DIGEST_TAG,
    INTERRUPTED,
    RUNNING,
    Store,
    StoredRun,
    load_mlflow,
    shown,
)
from k3ablate.outbox import NOTHING, Outbox, sending
from k3ablate.records import RECORD_FILE, SPEC_FILE
from k3ablate.sqlite_files import SQLITE

URI_VARIABLE = "MLFLOW_TRACKING_URI"
MODE_VARIABLE = "K3ABLATE_TRACKING"
BATCH_SECONDS = 2.0  # between two looks for something to send
CLOSING_SECONDS = 60.0  # at most, for what is left when a run ends, and only for a store that has answered before
INTERRUPT_SECONDS = 10.0  # of what a scheduler grants a run that has to stop

logger = logging.getLogger(__name__)


class Mode(StrEnum):
    """When the store gets what runs leave."""

    LIVE = "live"  # while they train
    SPOOL = "spool"  # when `sync` is asked to


class Delivery(StrEnum):
    """What came of sending a run."""

    SENT = auto()  # what the store lacked
    NOTHING_NEW = auto()
    AHEAD = auto()  # the store has the run settled, and this folder has not


@dataclass(frozen=True)
class Watched:
    """How a run is called in the store, and whether somebody is training it."""

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    is_running: bool = False


def mode() -> Mode:
    """What K3ABLATE_TRACKING says, or live."""
    text = os.environ.get(MODE_VARIABLE) or Mode.LIVE
    if text not in list(Mode):
        raise InputError(f"{MODE_VARIABLE}: found {text!r}; write one of {', '.join(Mode)}")
    return Mode(text)


def tracking_uri(root: Path) -> str:
    """What MLFLOW_TRACKING_URI says, or a SQLite store in the folder of all runs."""
    return os.environ.get(URI_VARIABLE) or f"{SQLITE}{root.resolve() / 'mlflow.db'}"


def prepare(root: Path, experiment: str, labels: bytes) -> bool:
    """Make the store ready, so that processes starting together do not race on its set-up; False if out of reach.

    It gets the `labels` of the runs of `experiment`, from which a table can be collected elsewhere.
    """
    uri = tracking_uri(root)
    try:
        Store(uri).keep_plan(root, experiment, labels)
    except Exception as error:  # noqa: BLE001 - whatever a store raises, runs do not depend on it
        _warn(uri, error)
        return False
    return True


def keep_report(root: Path, experiment: str, folder: Path, files: Iterable[Path]) -> str:
    """Log the `files` that a report left in `folder` as artifacts of `experiment`; a line that says where, or why not.

    A store out of reach keeps no report from being written: asking for it again logs it.
    """
    uri = tracking_uri(root)
    if mode() is Mode.SPOOL:
        return f"not logged to MLflow: {MODE_VARIABLE} is {Mode.SPOOL}"
    try:
        is_new = Store(uri).keep_report(root, experiment, {path.relative_to(folder): path for path in files})
    except Exception as error:  # noqa: BLE001 - whatever a store raises, the report is written
        return f"not logged to MLflow: {shown(uri)}: {first_line(error)}"
    return f"{'logged to' if is_new else 'was logged before to'} MLflow: run `report of {experiment}` in {shown(uri)}"


def deliver(store: Store, folder: Path, watched: Watched, known: StoredRun | None = None) -> Delivery:
    """Send `store` what it lacks of the run in `folder`, of which it has `known` or, if None, is asked.

    InputError where the folder is damaged; whatever MLflow raises where the store refuses, and what was sent stays.
    """
    with sending(folder):
        return _Sending(store, Outbox(folder), watched).send(known)


@dataclass(frozen=True)
class _Sending:
    """One delivery, while the run's folder is kept from other senders."""

    store: Store
    outbox: Outbox
    watched: Watched

    def send(self, known: StoredRun | None) -> Delivery:
        self.outbox.require_own()
        run = known or self.store.run_of(DIGEST_TAG, self.outbox.digest)
        if run is not None and run.is_settled and not self.outbox.is_settled:
            return Delivery.AHEAD
        if run is not None and not self._goes_on(run):
            self.store.client.delete_run(run.run_id)
            run = None
        if run is None:
            tags = {**self.watched.tags, DIGEST_TAG: self.outbox.digest}
            run = self.store.create(self.watched.name, tags)
        is_new = [self._start(run), self._send_steps(run), self._end(run)]  # in this order: an ended run has its steps
        return Delivery.SENT if any(is_new) else Delivery.NOTHING_NEW

    def _goes_on(self, run: StoredRun) -> bool:
        """Whether what the store has is of this course of the run, and not of one that was given up or deleted."""
        if run.is_settled and not run.has(RECORD_FILE, self.outbox.files[RECORD_FILE]):
            return False
        return run.sent is None or self.outbox.steps_after(run.sent, 0) is not None

    def _start(self, run: StoredRun) -> bool:
        if run.sent is None:
            self.store.send_parameters(run, self.outbox.parameters())
        return run.sent is None

    def _send_steps(self, run: StoredRun) -> bool:
        steps = self.outbox.steps_after(run.sent or NOTHING, self.outbox.certain_steps())
        assert steps is not None, "a run that does not go on is replaced"
        return self.store.send_steps(run, steps)

    def _end(self, run: StoredRun) -> bool:
        """Files and results, of a run that somebody trains only the file that does not change; and what it is doing."""
        record, is_running = self.outbox.record, self.watched.is_running and self.outbox.record is None
        files = {name: content for name, content in self.outbox.files.items() if name == SPEC_FILE or not is_running}
        lacking = {name: content for name, content in files.items() if not run.has(name, content)}
        self.store.send_files(run, lacking)
        if record is not None:
            is_new = run.status != record.status or RECORD_FILE in lacking
            if is_new:
                self.store.send_results(run, record)
            return is_new or bool(lacking)
        status = RUNNING if is_running else INTERRUPTED
        is_new = run.mlflow_status != status or run.status is not None
        if is_new:
            self.store.forget_results(run)
            self.store.client.update_run(run.run_id, status=status)
        return is_new or bool(lacking)


class NoTracking:
    """Follows nothing."""

    def start(self) -> None:
        """A run begins, or goes on."""

    def finish(self) -> None:
        """The run ended, and its record lies in its folder."""

    def interrupt(self) -> None:
        """The run stops without a record."""


class Tracker(NoTracking):
    """Delivers one run while it trains: from a thread, which may block or fail without the run noticing."""

    def __init__(
        self,
        uri: str,
        folder: Path,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        closing_seconds: float = CLOSING_SECONDS,
    ) -> None:
        self._store = Store(uri)
        self._folder = folder
        self._name = name or folder.name
        self._tags = dict(tags or {})
        self._closing_seconds = closing_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        self._certain_steps: float = -1  # as of the last delivery
        self._has_delivered = False
        self._has_warned = False

    def start(self) -> None:
        """Begin to deliver; the first start of a process imports mlflow."""
        load_mlflow()  # here, because two threads that import at the same time can meet half-loaded modules
        self._thread.start()

    def finish(self) -> None:
        """Deliver what is left; gives up after `closing_seconds`, and `sync` delivers it then."""
        self._close(self._closing_seconds)

    def interrupt(self) -> None:
        """Deliver what there is, in a moment: whoever stops a run waits for it. The MLflow run is left to go on."""
        self._close(min(self._closing_seconds, INTERRUPT_SECONDS))

    def _close(self, seconds: float) -> None:
        if not self._thread.is_alive():
            return
        self._closing_seconds = seconds
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            said = "tracking: %s did not answer within %g s; `k3ablate sync` sends the rest"
            logger.warning(said, shown(self._store.uri), seconds)

    def _run(self) -> None:
        """Deliver now and then until the run ends. What could not be sent is tried again."""
        while not self._closing.is_set():
            self._attempt(is_running=True)
            self._closing.wait(BATCH_SECONDS)
        deadline = time.monotonic() + self._closing_seconds
        while not self._attempt(is_running=False) and self._has_delivered and time.monotonic() < deadline:
            time.sleep(BATCH_SECONDS)  # a store that has answered before is busy with other runs, or starts again

    def _attempt(self, *, is_running: bool) -> bool:
        try:
            certain_steps = Outbox(self._folder).certain_steps()
            if is_running and certain_steps == self._certain_steps:
                return True  # a store need not be asked
            deliver(self._store, self._folder, Watched(self._name, self._tags, is_running))
        except Exception as error:  # noqa: BLE001 - whatever a store raises, training goes on
            if not self._has_warned:
                _warn(self._store.uri, error)
            self._has_warned = True
            return False
        self._certain_steps, self._has_delivered = certain_steps, True
        return True


def tracker(root: Path, folder: Path, name: str, tags: Mapping[str, str]) -> NoTracking:
    """What follows the run in `folder`, as K3ABLATE_TRACKING says."""
    return Tracker(tracking_uri(root), folder, name, tags) if mode() is Mode.LIVE else NoTracking()


def first_line(error: BaseException) -> str:
    """What MLflow says in many, shortened."""
    return shown((str(error).splitlines() or [type(error).__name__])[0][:200])


def _warn(uri: str, error: Exception) -> None:
    logger.warning(
        "tracking: %s cannot be used, runs go on without it and `k3ablate sync` sends them later (%s)",
        shown(uri),
        first_line(error),
    )

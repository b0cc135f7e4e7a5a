"""Where can a run be watched? MLflow, written from a thread, so that training never waits for it.

The record on disk is the source, MLflow is the window: if the store cannot be reached, training goes on and one
warning says so. `prepare` makes a local store ready before several processes meet it; `Tracker` follows one run,
`NoTracking` none. This is the only file that imports mlflow, inside functions, because that takes seconds.
"""

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate.records import RunRecord, Status

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI_VARIABLE = "MLFLOW_TRACKING_URI"
EXPERIMENT = "k3ablate"
DIGEST_TAG = "digest"
LOSS = "loss"  # the metric that every logged step has
BATCH_SECONDS = 2.0  # between two batches of metrics
MAX_METRICS = 1000  # MLflow's limits on one batch, and on the length of a text
MAX_PARAMETERS = 100
MAX_TEXT = 5000
# Defaults of MLflow wait for minutes and report usage over the network; what a user has set is left alone.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
# MLflow has no word for a run that diverged; the tag `status` says it.
MLFLOW_STATUS = {
    Status.FINISHED: "FINISHED",
    Status.DIVERGED: "FINISHED",
    Status.OUT_OF_TIME: "KILLED",  # to be continued, as when interrupted
    Status.FAILED: "FAILED",
}

logger = logging.getLogger(__name__)


def tracking_uri(root: Path) -> str:
    """What MLFLOW_TRACKING_URI says, or a SQLite store in the folder of all runs."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def prepare(uri: str) -> bool:
    """Make the store ready, so that processes starting together do not race on its set-up; False if out of reach."""
    try:
        _experiment_id(_client(uri), uri)
    except Exception as error:  # noqa: BLE001 - whatever a store raises, runs do not depend on it
        _warn(uri, error)
        return False
    return True


class NoTracking:
    """Follows nothing."""

    def start(self, digest: str, parameters: Mapping[str, str]) -> None:
        """A run begins, or goes on."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """What was measured at a step. A step that the store already has is left as it is."""

    def finish(self, record: RunRecord, path: Path) -> None:
        """The run ended with `record`, which lies at `path`."""

    def interrupt(self) -> None:
        """The run stops without a record."""


@dataclass(frozen=True)
class _Step:
    """The values of one step, when they were measured."""

    step: int
    values: Mapping[str, float]
    time: int  # milliseconds, MLflow's unit


@dataclass(frozen=True)
class _End:
    """The end of a run; without a record it was interrupted."""

    record: RunRecord | None = None
    path: Path | None = None


class Tracker(NoTracking):
    """Follows one run in MLflow: one MLflow run per digest, each step once, values in batches from a thread."""

    def __init__(
        self,
        uri: str,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        closing_seconds: float = 20.0,
    ) -> None:
        self._uri = uri
        self._name = name
        self._tags = dict(tags or {})
        self._closing_seconds = closing_seconds  # at most, for what is left when a run ends
        self._queue: queue.Queue[_Step | _End] = queue.Queue()
        self._thread: threading.Thread | None = None

    def start(self, digest: str, parameters: Mapping[str, str]) -> None:
        """Find or create the run tagged with `digest`, in the thread; the first start of a process imports mlflow."""
        _load_mlflow()  # here, because two threads that import at the same time can meet half-loaded modules
        tags = self._tags | {DIGEST_TAG: digest}
        sender = _Sender(self._uri, self._name or digest, tags, parameters, self._queue)
        self._thread = threading.Thread(target=sender.run, name="mlflow", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the finite ones of `values`: MLflow would turn infinity into 1.8e308."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._queue.put(_Step(step, finite, int(time.time() * 1000)))

    def finish(self, record: RunRecord, path: Path) -> None:
        """Send what is left, the results and the record as an artifact; gives up after `closing_seconds`."""
        self._close(_End(record, path))

    def interrupt(self) -> None:
        """Send what is left and leave the MLflow run to be continued."""
        self._close(_End())

    def _close(self, end: _End) -> None:
        if self._thread is None:
            return
        self._queue.put(end)
        self._thread.join(self._closing_seconds)
        if self._thread.is_alive():
            logger.warning("tracking: %s did not answer within %g s; left behind", self._uri, self._closing_seconds)


@dataclass
class _Sender:
    """The thread's side: everything here may block or fail without the run noticing."""

    uri: str
    name: str
    tags: Mapping[str, str]
    parameters: Mapping[str, str]
    queue: "queue.Queue[_Step | _End]"
    pending: list[_Step] = field(default_factory=list)
    last_step: int = -1
    client: "MlflowClient | None" = None
    run_id: str = ""
    has_warned: bool = False

    def run(self) -> None:
        """Send a batch now and then until the run ends. What could not be sent is tried again with the next batch."""
        self._attempt(None)  # connecting takes seconds, for which no step has to wait
        end = None
        while end is None:
            end = self._collect()
            is_sent = self._attempt(end)
        if not is_sent and self.client is not None:  # a store that has answered before, busy with other runs
            time.sleep(BATCH_SECONDS)
            self._attempt(end)

    def _attempt(self, end: _End | None) -> bool:
        try:
            self._send(end)
        except Exception as error:  # noqa: BLE001 - whatever a store raises, training goes on
            if not self.has_warned:
                _warn(self.uri, error)
            self.has_warned = True
            return False
        return True

    def _collect(self) -> _End | None:
        """Take from the queue for one interval; an end cuts it short."""
        deadline = time.monotonic() + BATCH_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = self.queue.get(timeout=left)
            except queue.Empty:
                return None
            if isinstance(item, _End):
                return item
            self.pending.append(item)
        return None

    def _send(self, end: _End | None) -> None:
        client = self.client or self._connect()
        self._send_metrics(client)
        if end is None:
            return
        if end.record is None or end.path is None:
            client.set_terminated(self.run_id, MLFLOW_STATUS[Status.OUT_OF_TIME])
            return
        self._send_results(client, end.record)
        client.log_artifact(self.run_id, str(end.path))
        client.set_terminated(self.run_id, MLFLOW_STATUS[end.record.status])

    def _connect(self) -> "MlflowClient":
        client = _client(self.uri)
        experiment = _experiment_id(client, self.uri)
        known = client.search_runs([experiment], f"tags.{DIGEST_TAG} = '{self.tags[DIGEST_TAG]}'", max_results=1)
        run = known[0] if known else client.create_run(experiment, tags=dict(self.tags), run_name=self.name)
        self.run_id = run.info.run_id
        if known:
            client.update_run(self.run_id, status="RUNNING")
            self.last_step = max((entry.step for entry in client.get_metric_history(self.run_id, LOSS)), default=-1)
        self._send_parameters(client)
        self.client = client
        return client

    def _send_parameters(self, client: "MlflowClient") -> None:
        """The specification's leaves; MLflow accepts the same value again, and the digest makes it the same."""
        from mlflow.entities import Param

        parameters = [Param(name, value[:MAX_TEXT]) for name, value in self.parameters.items()]
        for start in range(0, len(parameters), MAX_PARAMETERS):
            client.log_batch(self.run_id, params=parameters[start : start + MAX_PARAMETERS])

    def _send_metrics(self, client: "MlflowClient") -> None:
        """Whole steps, in order, in as few calls as MLflow allows."""
        from mlflow.entities import Metric

        while self.pending:
            batch: list[Metric] = []
            count = 0
            for entry in self.pending:
                if batch and len(batch) + len(entry.values) > MAX_METRICS:
                    break
                count += 1
                if entry.step > self.last_step:
                    batch += [Metric(name, value, entry.time, entry.step) for name, value in entry.values.items()]
            if batch:
                client.log_batch(self.run_id, metrics=batch)
            self.last_step = max(self.last_step, self.pending[count - 1].step)
            del self.pending[:count]

    def _send_results(self, client: "MlflowClient", record: RunRecord) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        results = {"flops": record.flops, "tokens": float(record.tokens), "wall_seconds": record.wall_seconds}
        for name, evaluation in record.evaluations.items():
            results |= {f"{name}/loss": evaluation.loss, f"{name}/bits_per_byte": evaluation.bits_per_byte}
        metrics = [Metric(f"final/{name}", value, now, record.num_steps) for name, value in results.items()]
        tags = [RunTag("status", str(record.status)), RunTag("reason", record.reason[:MAX_TEXT])]
        client.log_batch(self.run_id, metrics=metrics, tags=tags)


def _load_mlflow() -> None:
    """Import it with its announcements turned off."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow.tracking  # noqa: F401 - what `_client` takes from there

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _client(uri: str) -> "MlflowClient":
    _load_mlflow()
    from mlflow import MlflowClient

    return MlflowClient(uri)


def _experiment_id(client: "MlflowClient", uri: str) -> str:
    """The experiment that holds all runs, created if missing; a local store keeps its artifacts beside it."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is not None:
        return str(experiment.experiment_id)
    artifacts = None
    if uri.startswith("sqlite:///"):  # MLflow's default would be a folder of the working folder
        artifacts = Path(uri.removeprefix("sqlite:///")).with_name("mlartifacts").as_uri()
    return str(client.create_experiment(EXPERIMENT, artifact_location=artifacts))


def _warn(uri: str, error: Exception) -> None:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    logger.warning("tracking: %s cannot be used, runs go on without it (%s)", uri, first_line[:200])

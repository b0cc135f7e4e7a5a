"""What does MLflow have of a run, and how does it get the rest? `Store` is one MLflow store.

Everything is found by tags, nothing by names: a run by its digest, how much of its log was sent, the content of every
file. Sending the same twice changes nothing. What is sent, and when, is decided in `outbox` and `tracking`. This is the
only file that imports mlflow, inside functions, because that takes seconds.
"""

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import ValidationError

from k3ablate.config import InputError
from k3ablate.outbox import NOTHING, LoggedStep, Mark, sending
from k3ablate.records import RECORD_FILE, SETTLED, RunRecord, Status
from k3ablate.sqlite_files import artifacts_beside, ease_writing, file_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

EXPERIMENT = "k3ablate"
DIGEST_TAG = "digest"
PLAN_TAG = "plan"  # of the MLflow run that holds an experiment's labels, instead of a digest
PLAN_FILE = "labels.json"
REPORT_TAG = "report"  # of the one that holds an experiment's figures, tables and site
CONTENT_TAG = "content"  # of it: SHA-256 over its files
STATUS_TAG = "status"
REASON_TAG = "reason"
SENT_TAG = "sent"  # how much of the log is there (`outbox.Mark`)
FILE_TAG = "sha256."  # and a file's name: the content that was sent
MAX_METRICS = 900  # MLflow takes 1000 values, tags included, and 100 parameters in one call
MAX_PARAMETERS = 90
MAX_TEXT = 5000
MAX_FOUND = 5000  # runs in one answer
# Defaults of MLflow wait for minutes and report usage over the network; what a user has set is left alone.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# MLflow has no word for a run that diverged; the tag `status` says it.
MLFLOW_STATUS = {
    Status.FINISHED: "FINISHED",
    Status.DIVERGED: "FINISHED",
    Status.OUT_OF_TIME: "KILLED",  # to be continued, as when interrupted
    Status.FAILED: "FAILED",
}
RESEND = "delete that run in the store and send it again by `k3ablate sync`"
FOLDER_SCHEMES = ("", "file")
RUNNING, INTERRUPTED = "RUNNING", "KILLED"  # MLflow's words for a run without a record


@dataclass(frozen=True)
class StoredRun:
    """What the store has of a run."""

    run_id: str
    start: int  # milliseconds, MLflow's unit; steps count their seconds from there, whoever sends them
    mlflow_status: str
    tags: Mapping[str, str]

    @property
    def sent(self) -> Mark | None:
        """How much of the log; None where parameters may be missing too."""
        return Mark.read(self.tags[SENT_TAG]) if SENT_TAG in self.tags else None

    @property
    def status(self) -> str | None:
        """That of its record, if it has one."""
        return self.tags.get(STATUS_TAG)

    @property
    def is_settled(self) -> bool:
        """Whether it is over for good."""
        return self.status in SETTLED

    def has(self, name: str, content: bytes) -> bool:
        """Whether file `name` was sent with this `content`."""
        return self.tags.get(FILE_TAG + name) == hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Store:
    """One MLflow store. Whatever is wrong with it comes as the exception that MLflow makes of it.

    Only an address for which MLflow has no kind of store is an InputError, at the first use.
    """

    uri: str

    @cached_property
    def client(self) -> "MlflowClient":
        """The connection."""
        return _client(self.uri)

    @cached_property
    def experiment_id(self) -> str:
        """MLflow's experiment that holds all runs, created if missing; a local store keeps its artifacts beside it."""
        if (known := self._known_experiment()) is not None:
            return known
        artifacts = None
        if (file := file_of(self.uri)) is not None:
            ease_writing(file)
            artifacts = artifacts_beside(file).as_uri()  # MLflow's default would be a folder of the working folder
        try:
            return str(self.client.create_experiment(EXPERIMENT, artifact_location=artifacts))
        except Exception:
            if (known := self._known_experiment()) is None:  # that another process made meanwhile
                raise
            return known

    def ask(self) -> None:
        """Anything: raises what MLflow raises where the store does not answer."""
        self._known_experiment()

    def runs(self) -> dict[str, StoredRun]:
        """Every run there is, by digest."""
        found = self._search("")
        by_digest = {run.tags[DIGEST_TAG]: run for run in reversed(found) if DIGEST_TAG in run.tags}
        return dict(reversed(by_digest.items()))

    def run_of(self, tag: str, value: str) -> StoredRun | None:
        """The run that bears `tag`. Of several, which two machines can make of one, the first stays."""
        assert "'" not in value, "a digest, or the name of an experiment"
        found = self._search(f"tags.`{tag}` = '{value}'")
        for run in found[1:]:
            self.client.delete_run(run.run_id)
        return found[0] if found else None

    def create(self, name: str, tags: Mapping[str, str]) -> StoredRun:
        """A new run."""
        run = self.client.create_run(self.experiment_id, tags=dict(tags), run_name=name)
        return _stored(run)

    def keep_plan(self, root: Path, experiment: str, labels: bytes) -> bool:
        """Keep how `experiment` calls its runs, in place of what it said before; False if it was there."""
        with sending(root):
            run = self.run_of(PLAN_TAG, experiment) or self.create(f"plan of {experiment}", {PLAN_TAG: experiment})
            is_new = not run.has(PLAN_FILE, labels)
            if is_new:
                self.send_files(run, {PLAN_FILE: labels})
            if run.mlflow_status == RUNNING:
                self.client.set_terminated(run.run_id)
        return is_new

    def keep_report(self, root: Path, experiment: str, files: Mapping[PurePath, Path]) -> bool:
        """Keep `files` by their names as the report of `experiment`, in place of an earlier one; False if it was there.

        A changed report is a new MLflow run, and the one before is deleted: artifacts of a run cannot be taken away.
        """
        content = _content(files)
        with sending(root):
            before = self.run_of(REPORT_TAG, experiment)
            if before is not None and before.tags.get(CONTENT_TAG) == content:
                return False
            run = self.create(f"report of {experiment}", {})
            for name, path in files.items():
                self.client.log_artifact(run.run_id, str(path), None if name.parent == PurePath() else str(name.parent))
            self.client.set_terminated(run.run_id)
            self._log(run, tags={REPORT_TAG: experiment, CONTENT_TAG: content})  # the last: now it is whole
            if before is not None:
                self.client.delete_run(before.run_id)
        return True

    def plan(self, experiment: str) -> bytes | None:
        """What `keep_plan` kept, or None."""
        found = self._search(f"tags.{PLAN_TAG} = '{experiment}'")
        return self.read_file(found[0], PLAN_FILE) if found else None

    def records(self, digests: Iterable[str]) -> dict[str, RunRecord]:
        """The records there are of `digests`; one that is not what was sent, or another run's, is an InputError."""
        known = self.runs()
        found = {}
        for digest in digests:
            content = self.read_file(known[digest], RECORD_FILE) if digest in known else None
            if content is not None:
                found[digest] = _record(content, digest, f"{shown(self.uri)}: run {known[digest].run_id}")
        return found

    def send_files(self, run: StoredRun, files: Mapping[str, bytes]) -> None:
        """Keep files of these names, and their digests once all are there."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                path = Path(folder) / name
                path.write_bytes(content)
                self.client.log_artifact(run.run_id, str(path))
        if files:
            self._log(
                run, tags={FILE_TAG + name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            )

    def read_file(self, run: StoredRun, name: str) -> bytes | None:
        """The file that was sent, or None; one that was changed since is an InputError."""
        if FILE_TAG + name not in run.tags:
            return None
        content = self._read(run, name)
        if not run.has(name, content):
            raise InputError(
                f"{shown(self.uri)}: run {run.run_id}: {name} was changed in the store: its SHA-256 is not that of "
                f"what was sent; {RESEND}"
            )
        return content

    def send_steps(self, run: StoredRun, steps: Iterable[LoggedStep]) -> bool:
        """Whole steps, in order, in as few calls as MLflow allows, each with the mark of what it completes."""
        from mlflow.entities import Metric

        batch: list[Metric] = []
        last: LoggedStep | None = None
        for entry in steps:
            if last is not None and len(batch) + len(entry.values) > MAX_METRICS:
                self._log(run, batch, tags={SENT_TAG: last.mark.written()})
                batch = []
            moment = run.start + int(entry.seconds * 1000)
            batch += [Metric(name, value, moment, entry.step) for name, value in entry.values.items()]
            last = entry
        if last is not None:
            self._log(run, batch, tags={SENT_TAG: last.mark.written()})
        return last is not None

    def send_results(self, run: StoredRun, record: RunRecord) -> None:
        """How a run ended; of a settled one, which never ends again, also its numbers."""
        from mlflow.entities import Metric

        moment = run.start + int(record.wall_seconds * 1000)
        results = {"flops": record.flops, "tokens": float(record.tokens), "wall_seconds": record.wall_seconds}
        for name, evaluation in record.evaluations.items():
            results |= {f"{name}/loss": evaluation.loss, f"{name}/bits_per_byte": evaluation.bits_per_byte}
        metrics = [Metric(f"final/{name}", value, moment, record.num_steps) for name, value in results.items()]
        tags = {STATUS_TAG: str(record.status), REASON_TAG: record.reason[:MAX_TEXT]}
        self._log(run, metrics if record.status in SETTLED else [], tags=tags)
        self.client.set_terminated(run.run_id, MLFLOW_STATUS[record.status], moment)

    def forget_results(self, run: StoredRun) -> None:
        """The run is open again: what it ended with does not count."""
        for tag in {STATUS_TAG, REASON_TAG, FILE_TAG + RECORD_FILE} & run.tags.keys():
            self.client.delete_tag(run.run_id, tag)

    def send_parameters(self, run: StoredRun, parameters: Mapping[str, str]) -> None:
        """The specification's leaves, and that all are there; the digest makes them the same whenever they are sent."""
        from mlflow.entities import Param

        entities = [Param(name, value[:MAX_TEXT]) for name, value in parameters.items()]
        for start in range(0, len(entities), MAX_PARAMETERS):
            self.client.log_batch(run.run_id, params=entities[start : start + MAX_PARAMETERS])
        self._log(run, tags={SENT_TAG: NOTHING.written()})

    def _log(self, run: StoredRun, metrics: "Sequence[Metric]" = (), *, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        entities = [RunTag(name, text) for name, text in tags.items()]
        self.client.log_batch(run.run_id, metrics=metrics, tags=entities)

    def _read(self, run: StoredRun, name: str) -> bytes:
        if (file := file_of(self.uri)) is not None:  # which may have been moved with them: MLflow knows the old place
            path = artifacts_beside(file) / run.run_id / "artifacts" / name
            if path.is_file():
                return path.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            return Path(self.client.download_artifacts(run.run_id, name, folder)).read_bytes()

    def _known_experiment(self) -> str | None:
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        return None if experiment is None else str(experiment.experiment_id)

    def _search(self, condition: str) -> list[StoredRun]:
        """Runs that are not deleted, the oldest first, the same order for everybody."""
        if (experiment := self._known_experiment()) is None:
            return []
        found: list[StoredRun] = []
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [experiment], condition, max_results=MAX_FOUND, order_by=["start_time ASC"], page_token=token
            )
            found += map(_stored, page)
            token = page.token
            if not token:
                return sorted(found, key=lambda run: (run.start, run.run_id))


def _content(files: Mapping[PurePath, Path]) -> str:
    """Of files with their names."""
    found = hashlib.sha256()
    for name, path in sorted(files.items()):
        found.update(f"{name.as_posix()}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def load_mlflow() -> None:
    """Import it with its announcements turned off."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow.tracking  # noqa: F401 - what `_client` takes from there

    logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # it logs what it also raises
    logging.getLogger("alembic").setLevel(logging.WARNING)


def shown(text: str) -> str:
    """An address, or what names one, without the password that it may hold."""
    return re.sub(r"(?<=://)[^/@\s]*@", "...@", text)


def _client(uri: str) -> "MlflowClient":
    """InputError where MLflow has no kind of store for such an address."""
    load_mlflow()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException

    try:
        return MlflowClient(uri)
    except UnsupportedModelRegistryStoreURIException:
        kind = f"no store of kind {uri.partition(':')[0]!r}"
    except MlflowException:
        if urlsplit(uri).scheme not in FOLDER_SCHEMES:
            raise
        kind = "no store in a plain folder any more"
    raise InputError(
        f"{shown(uri)}: MLflow has {kind}; write an address such as sqlite:////folder/mlflow.db, "
        "postgresql://user@host/database or http://host:5000"
    )


def _stored(run: "Run") -> StoredRun:
    tags = {str(name): str(value) for name, value in run.data.tags.items()}
    return StoredRun(str(run.info.run_id), int(run.info.start_time or 0), str(run.info.status), tags)


def _record(content: bytes, digest: str, where: str) -> RunRecord:
    try:
        record = RunRecord.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"{where}: {RECORD_FILE} is not the record of a run ({problem}); {RESEND}") from None
    if record.digest != digest:
        raise InputError(f"{where}: holds the record of run {record.digest}, this is run {digest}; {RESEND}")
    return record

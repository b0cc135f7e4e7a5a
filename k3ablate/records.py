"""What came out of a run, and the one table that both halves of the product meet at.

The running half writes a `RunRecord` per digest; `table` joins records with their labels into the columns that
fits and reports read. Anybody's CSV with the same columns serves as well. No torch below this line.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self, TypeVar

import pandas
from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from k3ablate import table_files
from k3ablate.config import Closed, Config, InputError, Tree, digest
from k3ablate.storage import write_atomic

# Columns of every table of records, in order; one column per component's level follows them.
COLUMNS = (
    "digest", "experiment", "arm", "size", "seed", "status", "reason", "loss", "bits_per_byte", "flops", "flops_6nd",
    "active_params", "total_params", "tokens", "wall_seconds", "mismatch", "corpus", "validation", "varied", "trunk",
    "tokens_trained", "validation_content",
)  # fmt: skip

# Loss and bits per byte of every other validation set follow as `loss:<set>` and `bits_per_byte:<set>`.
PUBLISHED_SET = "validation"


class Status(StrEnum):
    """How a run ended. A loss exists only when it finished."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    OUT_OF_TIME = "out_of_time"
    FAILED = "failed"


FLOPS_CONVENTION = "3 x counted forward FLOPs per token x tokens"  # of `flops`, in records and logs

# What a run leaves in its folder; the record last, which settles it.
SPEC_FILE = "spec.json"
RECORD_FILE = "record.json"
METRICS_FILE = "metrics.jsonl"
ROUTING_FILE = "routing.json"
SPECIMEN_FILE = "specimen.json"
CHECKPOINTS_FOLDER = "checkpoints"
RUNS_TABLE = "runs.csv"  # among the results of an experiment
SETTLED = frozenset({Status.FINISHED, Status.DIVERGED})  # never trained again

# How `write_spec` begins a file: enough to tell whose it is without reading what a run is to be.
HEAD_BYTES = 200
HEAD_OF_SPEC = re.compile(rb'\s*\{\s*"digest"\s*:\s*"([^"\\]*)"')


class Evaluation(Config):
    """Cross-entropy on one validation set: nats per token, bits per byte, tokens it was read on, and which set."""

    loss: float = Field(gt=0)
    bits_per_byte: float = Field(gt=0)
    num_tokens: int = Field(gt=0)
    content: str | None = None  # digest of the set's tokens and tokenizer; not in records of before it was kept


class OfRun(Closed):
    """What lies in the folder of a run and says whose it is."""

    digest: str


OfRunType = TypeVar("OfRunType", bound=OfRun)


class FrozenSpec(OfRun):
    """What a run is to be, written before it is submitted, and the software it was planned with."""

    spec: dict[str, Tree]  # of a RunSpec, which needs torch
    versions: dict[str, str]  # as in a record

    @model_validator(mode="after")
    def _digest_is_of_the_spec(self) -> Self:
        found = digest(self.spec)
        if found != self.digest:
            raise ValueError(f"its content has digest {found}, it says {self.digest}: it was edited")
        return self


class RoutedPairs(OfRun):
    """How popular each expert is: pairs of token and chosen expert, counted while a trained model was evaluated."""

    validation: str  # the set that was read
    num_tokens: int = Field(gt=0)
    pairs: list[list[NonNegativeInt]]  # by routed layer, first to last, and by expert


class Specimen(OfRun):
    """What a trained model did with a few tokens of a validation set: small, and kept since the weights are not."""

    validation: str  # the set they are from
    texts: list[str]  # of the tokens, one by one
    experts: list[list[list[NonNegativeInt]]]  # by routed layer and token, the heaviest first
    weights: list[list[list[float]]]  # of the same
    read_weights: list[list[float]]  # of every read of attention residuals, the output's last; means over tokens
    magnitude_edges: list[float]  # of bins of absolute values
    magnitudes: dict[str, list[NonNegativeInt]]  # place -> by bin, numbers that down-projections took in


class RunRecord(OfRun):
    """Everything a run reports. FLOPs are training FLOPs of the whole run (statistics.md, section 8)."""

    status: Status
    reason: str = ""
    evaluations: dict[str, Evaluation] = Field(default_factory=dict)
    first_loss: float | None = None  # training cross-entropy of step 0, before any update
    num_steps: int = Field(ge=0)
    tokens: int = Field(ge=0)  # that the weights have seen
    flops: float = Field(ge=0)  # 3 x counted forward FLOPs per token x tokens
    flops_6nd: float = Field(ge=0)  # 6 x active non-embedding parameters x tokens
    active_params: int = Field(gt=0)
    total_params: int = Field(gt=0)
    wall_seconds: float = Field(ge=0)  # of this run's own training
    tokens_per_second: float = Field(ge=0)
    corpus: str
    trunk: str | None = None  # digest of the part that runs with other budgets may share (`training.trunks`)
    branched_at: int = Field(default=0, ge=0)  # steps that were not trained again: another run had left them
    num_resumes: int = Field(default=0, ge=0)
    kernels: dict[str, str] = Field(default_factory=dict)  # operation -> implementation that ran
    device: str = "cpu"
    versions: dict[str, str] = Field(default_factory=dict)  # python, torch, lightning, k3ablate, code (git) ...
    codes: tuple[str, ...] = ()  # versions of the code that trained it, first to last
    ended: str | None = None  # UTC, ISO 8601 to the second; not in records of before it was kept

    @property
    def trained_share(self) -> float:
        """The part of `tokens` and `flops` that this run spent itself."""
        return 1.0 - self.branched_at / self.num_steps if self.num_steps else 1.0

    @model_validator(mode="after")
    def _loss_only_when_finished(self) -> Self:
        if self.status is Status.FINISHED and PUBLISHED_SET not in self.evaluations:
            raise ValueError(f"a finished run needs an evaluation on the {PUBLISHED_SET!r} set")
        if self.status is not Status.FINISHED and self.evaluations:
            raise ValueError(f"a run that is {self.status} has no loss to report")
        if self.status is not Status.FINISHED and not self.reason:
            raise ValueError(f"a run that is {self.status} states the reason")
        return self


def read_spec(folder: Path, digest: str) -> FrozenSpec | None:
    """What run `digest` is to be, from its folder, or None; what is damaged, edited or another's is an InputError."""
    return _read(folder / SPEC_FILE, FrozenSpec, digest, "specification", "delete this folder to run again")


def require_spec_of(folder: Path, digest: str) -> None:
    """InputError where the specification in `folder` is another run's. What follows the digest is left to `read_spec`.

    A file that does not begin as written is read whole; none at all is as good as the right one.
    """
    try:
        with (folder / SPEC_FILE).open("rb", buffering=0) as file:
            head = HEAD_OF_SPEC.match(file.read(HEAD_BYTES))
    except FileNotFoundError:
        return
    if head is None or head[1] != digest.encode():
        read_spec(folder, digest)


def write_spec(frozen: FrozenSpec, folder: Path) -> None:
    """Freeze what a run is to be."""
    write_atomic(folder / SPEC_FILE, frozen.model_dump_json(indent=1) + "\n")


def read_record(folder: Path, digest: str) -> RunRecord | None:
    """The record of run `digest` in its folder, or None; a file that is damaged or of another run is an InputError."""
    return _read(folder / RECORD_FILE, RunRecord, digest, "record", "delete it to run again")


def write_record(record: RunRecord, folder: Path) -> None:
    """Settle a run."""
    write_atomic(folder / RECORD_FILE, record.model_dump_json(indent=1) + "\n")


def read_routing(folder: Path, digest: str) -> RoutedPairs | None:
    """The counts that run `digest` left in its folder, or None; InputError as for the record."""
    return _read(folder / ROUTING_FILE, RoutedPairs, digest, "routing", "delete this folder to run again")


def write_routing(routing: RoutedPairs, folder: Path) -> None:
    """Keep the counts of a run; before its record, which settles it."""
    write_atomic(folder / ROUTING_FILE, routing.model_dump_json() + "\n")


def read_specimen(folder: Path, digest: str) -> Specimen | None:
    """What run `digest` did with a few tokens, or None; InputError as for the record."""
    return _read(folder / SPECIMEN_FILE, Specimen, digest, "specimen", "delete it")


def write_specimen(specimen: Specimen, folder: Path) -> None:
    """Keep the specimen of a run; before its record, which settles it."""
    write_atomic(folder / SPECIMEN_FILE, specimen.model_dump_json() + "\n")


def refuse_link(folder: Path) -> None:
    """InputError where the folder of a run is a link: it may lead out of the runs, where training would write."""
    if folder.is_symlink():
        target = folder.readlink()
        raise InputError(f"{folder}: is a symbolic link to {target}; put the folder itself there, or delete it")


def refuse_links(folder: Path) -> None:
    """InputError where the folder of a run, or anything that lies in it, is a link; one that is not there has none."""
    refuse_link(folder)
    try:
        with os.scandir(folder) as entries:
            links = sorted(entry.path for entry in entries if entry.is_symlink())
    except FileNotFoundError:
        return
    for path in map(Path, links):
        target = path.readlink()
        raise InputError(f"{path}: is a symbolic link to {target}; put what it leads to there, or delete it")


class Varied(StrEnum):
    """What two seeds of one arm and size have different; the rest is that of the experiment's first seed."""

    BOTH = "both"
    INITIALISATION = "initialisation"
    DATA_ORDER = "data_order"


@dataclass(frozen=True)
class Label:
    """How one experiment calls one run: results are keyed by digest, names live here."""

    experiment: str
    arm: str
    size: str
    seed: int
    digest: str
    levels: Mapping[str, str]  # component -> level
    mismatch: float  # what the experiment matches (FLOPs per token if nothing), over the baseline's, minus 1
    varied: Varied = Varied.BOTH

    @property
    def name(self) -> str:
        """What people call the run."""
        return f"{self.arm} {self.size} seed {self.seed}"


def table(labels: Iterable[Label], records: Mapping[str, RunRecord]) -> pandas.DataFrame:
    """One row per label whose digest has a record, with COLUMNS, the other validation sets and the levels."""
    rows = [_row(label, records[label.digest]) for label in labels if label.digest in records]
    frame = pandas.DataFrame(rows)
    missing = [column for column in COLUMNS if column not in frame]
    frame[missing] = None
    return frame[[*COLUMNS, *(column for column in frame if column not in COLUMNS)]]


def write_table(frame: pandas.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write `<stem>.csv` and `<stem>.parquet`, each in one step; floats keep every digit."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    csv, parquet = stem.with_suffix(".csv"), stem.with_suffix(".parquet")
    write_atomic(csv, frame.to_csv(index=False))
    write_atomic(parquet, frame.to_parquet(index=False))
    return csv, parquet


def read_table(path: Path) -> pandas.DataFrame:
    """The table in a .csv or .parquet file; InputError for a file that is none (see `table_files`)."""
    if path.suffix not in table_files.TABLE_SUFFIXES:
        raise InputError(f"{path}: a table is a .csv or a .parquet file")
    if not path.exists():
        raise InputError(
            f"{path}: no such table; name a .csv or .parquet file that is there, or an experiment by its name"
        )
    return table_files.read_csv(path) if path.suffix == ".csv" else table_files.read_parquet(path)


def _read(path: Path, kind: type[OfRunType], digest: str, noun: str, remedy: str) -> OfRunType | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = kind.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"{path}: not the {noun} of a run ({problem}); {remedy}") from None
    if found.digest != digest:
        raise InputError(f"{path}: holds the {noun} of run {found.digest}, this is run {digest}; delete it")
    return found


def _row(label: Label, record: RunRecord) -> dict[str, object]:
    published = record.evaluations.get(PUBLISHED_SET)
    row: dict[str, object] = {
        "digest": label.digest,
        "experiment": label.experiment,
        "arm": label.arm,
        "size": label.size,
        "seed": label.seed,
        "status": str(record.status),
        "reason": record.reason,
        "loss": published.loss if published else None,
        "bits_per_byte": published.bits_per_byte if published else None,
        "flops": record.flops,
        "flops_6nd": record.flops_6nd,
        "active_params": record.active_params,
        "total_params": record.total_params,
        "tokens": record.tokens,
        "wall_seconds": record.wall_seconds,
        "mismatch": label.mismatch,
        "corpus": record.corpus,
        "validation": PUBLISHED_SET,
        "varied": str(label.varied),
        "trunk": record.trunk,
        "validation_content": published.content if published else None,
        "tokens_trained": round(record.tokens * record.trained_share),
    }
    for name, evaluation in record.evaluations.items():
        if name != PUBLISHED_SET:
            row[f"loss:{name}"] = evaluation.loss
            row[f"bits_per_byte:{name}"] = evaluation.bits_per_byte
    return row | dict(label.levels)

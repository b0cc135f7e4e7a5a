"""Which runs does a name mean, and what did they log?

A name is a digest or the first letters of one, the folder of a run, a .csv of anybody's, or several of these with
commas between them, which are the seeds of one group. Names become places first, because one run has several names.
What a run's folder says beside its log (seed, corpus, budget, how it ended) becomes columns, so that `comparing` sees
frames only. Nothing here reaches a training library; the runs of an experiment's arm, which only its plan knows, are
found in `verbs`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas
from pydantic import BaseModel, ConfigDict, ValidationError

from k3ablate.config import InputError
from k3ablate.records import FLOPS_CONVENTION, METRICS_FILE, RECORD_FILE, SPEC_FILE, FrozenSpec, Status, read_table

FEWEST_LETTERS = 4  # of a digest
MAX_NAMED = 4  # of digests that begin alike


class Facts(BaseModel):
    """Some of what a file says, without the code that the whole needs."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class LoggedTraining(Facts):
    """Of the training in a run's specification."""

    context: int


class LoggedSpec(Facts):
    """Of a run's specification."""

    corpus: str
    seed: int
    data_seed: int | None = None
    tokens: int
    training: LoggedTraining

    @property
    def seeds(self) -> int | str:
        """One seed, or 'of initialisation/of the order of the data' where these differ."""
        return self.seed if self.data_seed is None else f"{self.seed}/{self.data_seed}"


class LoggedEnd(Facts):
    """Of a run's record."""

    status: Status
    reason: str
    device: str


FileType = TypeVar("FileType", bound=BaseModel)


@dataclass(frozen=True)
class NamedRun:
    """One run: as it was called, and the folder or file where its log lies."""

    name: str
    place: Path

    def read(self) -> pandas.DataFrame:
        """What it logged; InputError where that is nothing."""
        return read_table(self.place) if self.place.suffix == ".csv" else read_folder(self.place)


def find_group(name: str, root: Path) -> list[NamedRun] | None:
    """The runs of `name`; None where it may be EXPERIMENT/ARM/SIZE, by its strokes.

    InputError where it names nothing, where a digest is not unique, or where a folder is no run's.
    """
    found = _find(name, root)
    if found is not None:
        return [NamedRun(name, found)]
    if "," not in name and name.count("/") > 1:
        return None
    runs = []
    for part in map(str.strip, name.split(",")):
        place = _find(part, root)
        if place is None:
            raise InputError(
                f"{part}: no run below {root} begins so, and no folder or file is called so; write a digest that "
                "`k3ablate plan EXPERIMENT` shows, a run's folder, a .csv, or EXPERIMENT/ARM/SIZE"
            )
        runs.append(NamedRun(part, place))
    return runs


def refuse_repeats(groups: Mapping[str, Sequence[NamedRun]]) -> None:
    """InputError where one run stands there twice, in a group or in two, whatever it is called."""
    first: dict[Path, str] = {}
    for run in (run for runs in groups.values() for run in runs):
        place = run.place.resolve()
        if place in first:
            other = first[place]
            also = "" if other == run.name else f" (also as {other})"
            raise InputError(f"compare: {run.name} stands there twice{also}; name each run once")
        first[place] = run.name


def read_folder(folder: Path) -> pandas.DataFrame:
    """What the run in `folder` logged, a row per line, with its facts as columns; InputError where that is nothing."""
    logged = lines(folder)
    if not logged:
        raise InputError(f"{folder}: this run has logged nothing yet; wait for its first steps")
    numbers = [{key: value for key, value in line.items() if not isinstance(value, list)} for line in logged]
    facts = _facts(folder) | {"flops_convention": FLOPS_CONVENTION}
    return pandas.DataFrame([line | facts for line in numbers])


def lines(folder: Path) -> list[dict[str, object]]:
    """Every whole line that the run in `folder` logged, an object each; none where there is no log.

    The last may have been cut off by a crash, or is being written: it is left out. InputError for another that is none.
    """
    path = folder / METRICS_FILE
    if not path.is_file():
        return []
    found, texts = [], path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, text in enumerate(texts, start=1):
        try:
            found.append(dict(json.loads(text)))
        except (ValueError, TypeError):
            if number == len(texts):
                break
            raise InputError(f"{path}: line {number} is not a JSON object; delete that line") from None
    return found


def _find(name: str, root: Path) -> Path | None:
    """The folder or the .csv that is called so, or the run whose digest begins so; None where there is none."""
    path = Path(name)
    if path.suffix == ".csv" and ("," not in name or path.is_file()):  # with commas it may be a list of files
        return path
    if (path / METRICS_FILE).is_file():
        return path
    if path.is_dir() and (path / SPEC_FILE).is_file():
        raise InputError(f"{name}: this run has logged nothing yet; wait for its first steps")
    folder = _by_digest(name, root)
    if folder is None and path.is_dir():
        raise InputError(f"{name}: no folder of a run ({METRICS_FILE} is not in it); name a folder that {root} holds")
    if folder is None and path.is_file():
        raise InputError(f"{name}: a file that is no log; name a .csv with a row per logged step, or a run's folder")
    return folder


def _by_digest(name: str, root: Path) -> Path | None:
    """The one run below `root` whose digest begins so; None where there is none."""
    if "/" in name or len(name) < FEWEST_LETTERS or not root.is_dir():
        return None
    found = sorted(path for path in root.glob(f"{name}*") if (path / SPEC_FILE).is_file())
    if len(found) > 1:
        named = ", ".join(path.name for path in found[:MAX_NAMED]) + (", ..." if len(found) > MAX_NAMED else "")
        raise InputError(f"{name}: {len(found)} runs below {root} begin so ({named}); write more of the digest")
    return found[0] if found else None


def _facts(folder: Path) -> dict[str, object]:
    """What specification and record say, by column; a folder that lacks one of them lacks its columns."""
    facts: dict[str, object] = {}
    frozen, end = _parsed(folder / SPEC_FILE, FrozenSpec), _parsed(folder / RECORD_FILE, LoggedEnd)
    if frozen is not None:
        spec = LoggedSpec.model_validate(frozen.spec)
        facts |= {"seed": spec.seeds, "corpus": spec.corpus, "context": spec.training.context, "budget": spec.tokens}
    if end is not None:
        facts |= {"status": str(end.status), "reason": end.reason, "device": end.device}
    return facts


def _parsed(path: Path, kind: type[FileType]) -> FileType | None:
    if not path.is_file():
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise InputError(f"{path}: not what a run writes ({problem}); name another run") from None

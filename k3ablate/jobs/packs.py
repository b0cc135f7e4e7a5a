"""Which runs does one task of a scheduler carry out? Packs: small runs last seconds, a task's start takes longer.

`by_number` and `by_minutes` cut a list of runs into packs, the longest runs first; `PackFile` is what a task reads.
Pure but for that file. Where it lies is in `submissions`, who carries a pack out in `launch`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import Field, NonNegativeFloat, PositiveInt, ValidationError

from k3ablate.config import DIGEST_LENGTH, Closed, InputError, Tree
from k3ablate.storage import write_atomic


class PackedRun(Closed):
    """One run of a pack: its folder's name, what it is called, and what it costs."""

    digest: str = Field(pattern=rf"^[0-9a-f]{{{DIGEST_LENGTH}}}$")
    name: str
    tags: dict[str, str]
    tokens: PositiveInt
    flops: NonNegativeFloat


Pack = tuple[PackedRun, ...]


class PackFile(Closed):
    """Everything that the tasks of one array are told; task k carries out pack k."""

    experiment: str
    execution: dict[str, Tree]  # of an `Execution`, which needs torch
    num_threads: PositiveInt
    stop_seconds: PositiveInt  # how long a run may take for its last step when the task has to end
    packs: tuple[Pack, ...]

    def write(self, path: Path) -> None:
        """Once, before the array is submitted."""
        write_atomic(path, self.model_dump_json() + "\n")


def by_number(runs: Iterable[PackedRun], number: int) -> list[Pack]:
    """Packs of `number` runs, longest first; the last may hold fewer."""
    ordered = _longest_first(runs)
    return [tuple(ordered[start : start + number]) for start in range(0, len(ordered), number)]


def by_minutes(runs: Iterable[PackedRun], minutes: float, flops_per_second: float) -> list[Pack]:
    """Packs that are expected to take at most `minutes`, longest first; a longer run is a pack of its own."""
    return list(_filled(_longest_first(runs), 60 * minutes * flops_per_second))


def read_pack_file(path: Path) -> PackFile:
    """The file at `path`; one that is not there, or damaged, is an InputError."""
    try:
        return PackFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; `k3ablate submit` writes it") from None
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise InputError(
            f"{path}: damaged at {place or 'its start'} ({detail['msg']}); delete its folder, submit again"
        ) from None


def chosen(packs: Sequence[Pack], task_id: str | None, source: str) -> Pack:
    """The pack of the task whose array index is `task_id`; InputError for one that is unset or of another array."""
    if task_id is None:
        raise InputError(f"{source}: not set; this command is for the tasks of a Slurm array")
    if not (task_id.isascii() and task_id.isdigit()) or int(task_id) >= len(packs):
        raise InputError(f"{source}: found {task_id!r}, there are packs 0 to {len(packs) - 1}: this is another array's")
    return packs[int(task_id)]


def _longest_first(runs: Iterable[PackedRun]) -> list[PackedRun]:
    return sorted(runs, key=lambda run: run.flops, reverse=True)


def _filled(runs: Sequence[PackedRun], room: float) -> Iterator[Pack]:
    pack: list[PackedRun] = []
    for run in runs:
        if pack and sum(packed.flops for packed in pack) + run.flops > room:
            yield tuple(pack)
            pack = []
        pack.append(run)
    if pack:
        yield tuple(pack)

"""Which runs begin alike, and where do they part? What several budgets of warm-up-stable-decay have in common.

Until its decay begins such a run does not depend on its budget, so one trunk serves many points of a curve. A trunk is
named by what it depends on. Runs leave checkpoints in `<root>/trunks/<digest>/` where another run of a plan parts from
it; deleting them loses nothing but time. Saving and going on from one is `branching.py`.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from k3ablate.config import digest
from k3ablate.training.schedules import WarmupStableDecay
from k3ablate.training.spec import RunSpec

FOLDER = "trunks"
WANTED = "wanted-{:09d}"


@dataclass(frozen=True)
class Trunk:
    """The part of a run that its budget does not change."""

    digest: str
    num_steps: int  # optimizer steps of it in this run, whose decay begins then


@dataclass(frozen=True)
class Shared:
    """What runs of one plan need not do, since another one does it."""

    num_trunks: int
    num_runs: int  # that have one in common with another budget
    flops: float  # of training, of these runs alone
    flops_saved: float


def trunk(spec: RunSpec) -> Trunk | None:
    """The trunk of a run; None where every step depends on the budget: another schedule, a warm-up by its fraction."""
    schedule = spec.training.schedule
    if not isinstance(schedule, WarmupStableDecay) or schedule.warmup_steps is None:
        return None
    num_steps = schedule.decay_start(spec.num_steps)
    if num_steps == spec.num_steps:
        return None
    tree = spec.tree()
    del tree["tokens"]
    tree["training"]["schedule"] = {"warmup_steps": schedule.warmup_steps}  # the decay acts later
    return Trunk(digest({"trunk": tree}), num_steps)


def folder_of(root: Path, found: Trunk) -> Path:
    """Where the checkpoints of a trunk lie."""
    return root / FOLDER / found.digest


def announce(root: Path, specs: Iterable[RunSpec]) -> None:
    """Leave word for whichever run comes first where runs with another budget part from it."""
    for name, wanted in _partings(specs).items():
        if len(wanted) > 1:
            folder = root / FOLDER / name
            folder.mkdir(parents=True, exist_ok=True)
            for num_steps in wanted:
                (folder / WANTED.format(num_steps)).touch()


def wanted_steps(folder: Path, found: Trunk) -> frozenset[int]:
    """After how many steps runs of some plan part from the trunk, as far as this run goes along with it."""
    there = (int(path.name.partition("-")[2]) for path in folder.glob("wanted-*"))
    return frozenset(num_steps for num_steps in there if num_steps <= found.num_steps)


def shared(specs: Iterable[tuple[RunSpec, float]]) -> Shared | None:
    """What branching saves of runs with their FLOPs; None where no two budgets have a trunk in common."""
    groups: defaultdict[str, dict[str, tuple[int, float, int]]] = defaultdict(dict)
    for spec, flops in specs:
        found = trunk(spec)
        if found is not None:
            groups[found.digest][spec.digest()] = (found.num_steps, flops, spec.num_steps)
    common = [[*runs.values()] for runs in groups.values() if len({run[0] for run in runs.values()}) > 1]
    if not common:
        return None
    spent = [[flops * steps / num_steps for steps, flops, num_steps in runs] for runs in common]
    return Shared(
        num_trunks=len(common),
        num_runs=sum(map(len, common)),
        flops=sum(flops for runs in common for _, flops, _ in runs),
        flops_saved=sum(sum(trunks) - max(trunks) for trunks in spent),
    )


def stored(root: Path) -> tuple[int, int]:
    """How many checkpoints of trunks lie below `root`, and their bytes together."""
    sizes = [path.stat().st_size for path in (root / FOLDER).glob("*/*.ckpt")]
    return len(sizes), sum(sizes)


def _partings(specs: Iterable[RunSpec]) -> dict[str, set[int]]:
    """By digest of the trunk, after how many steps runs part from it."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for one in map(trunk, specs):
        if one is not None:
            found[one.digest].add(one.num_steps)
    return found

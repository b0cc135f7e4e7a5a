"""How is a range widened whose optimum lies at its edge, and never to a value that an arm refuses? `tune --extend`.

By half of its width in its scale for every arm of that size, or by less where an arm or the size's budget does not take
that much. Everything is tried before anything is written: a study that cannot be widened stays as it was. What a wider
range is, is in `space`; how its trials come to be, in `study`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3ablate.config import InputError, located
from k3ablate.search import Range
from k3ablate.tuned import TunedSize
from k3ablate.tuning import findings
from k3ablate.tuning.space import STEP, Values, widened
from k3ablate.tuning.store import Trial
from k3ablate.tuning.study import Study, extend, look
from k3ablate.tuning.trials import Studies, check_widened

SHARES = (1.0, 0.5, 0.25, 0.125)  # of a step, until one is taken
SOURCE = "--extend"  # in front of what `check_widened` says
NOTHING = "--extend: no optimum lies at an edge that can be moved"
Found = Callable[[Study, Sequence[Trial], Mapping[str, Range]], TunedSize]  # what the trials of one study tell


@dataclass(frozen=True)
class _Widening:
    """A space of every arm at one size, and the wider one, with what was refused."""

    peers: Sequence[Study]
    before: Mapping[str, Range]
    after: Mapping[str, Range]
    told: Sequence[str]


def extend_edges(folder: Path, every: Studies, chosen: Iterable[Study], found: Found) -> tuple[list[str], list[Study]]:
    """Widen what has its optimum at an edge in a chosen study; what was done, and the studies with trials left now.

    InputError where there are such optima and none of their ranges can be widened: nothing is written.
    """
    trials, spaces = look(folder, every.all)
    widenings: list[_Widening] = []
    for size in dict.fromkeys(study.size for study in chosen):
        peers = [study for study in every.all if study.size == size]
        at_edge = [
            findings.edges(found(study, trials[study.name], spaces[study.name])) for study in chosen
            if study.size == size and findings.is_complete(trials[study.name], every.tuning)
            and findings.has_loss(trials[study.name])
        ]  # fmt: skip
        before = spaces[peers[0].name]
        for upwards in (True, False):
            paths = dict.fromkeys(path for edges in at_edge for path, side in edges.items() if side is upwards)
            widenings.append(_planned(every, peers, before, list(paths), upwards))
            before = widenings[-1].after
    told = [line for one in widenings for line in one.told]
    moved = [one for one in widenings if one.after != one.before]
    if told and not moved:
        raise InputError(f"{told[0]}; the study stays as it was")
    for one in moved:
        extend(folder, one.peers, one.before, one.after, every.tuning.trials // 2, _checked_on(every))
    return told or [NOTHING], [study for one in moved for study in one.peers]


def _checked_on(every: Studies) -> Callable[[Study, Values], object]:
    """InputError where an arm does not take the values of an added trial."""

    def check(study: Study, values: Values) -> object:
        shown = ", ".join(f"{path} = {value}" for path, value in values.items())
        with located(f"--extend: arm {study.arm}, size {study.size}: {shown}"):
            return every.row(study, 0, values)

    return check


def _planned(
    every: Studies, peers: Sequence[Study], before: Mapping[str, Range], paths: Sequence[str], upwards: bool
) -> _Widening:
    """The widest space that every arm takes, the same where nothing can be moved."""
    size, side = peers[0].size, "upwards" if upwards else "downwards"
    after, told = dict(before), []
    for path in paths:
        try:
            after[path], refusal = _widest(every, size, after, path, upwards)
        except InputError as error:
            told.append(f"--extend: size {size}: {path} is not widened {side}: {_reason(error)}")
            continue
        if after[path].ends != before[path].ends:
            end = after[path].ends[upwards]
            clipped = f" to {end:g} only, what lies further is refused ({_reason(refusal)})" if refusal else ""
            told.append(f"{size}: {path} widened {side}{clipped}, for every arm")
    return _Widening(peers, before, after, told)


def _reason(refusal: InputError) -> str:
    return str(refusal).removeprefix(f"{SOURCE}: ")


def _widest(
    every: Studies, size: str, space: Mapping[str, Range], path: str, upwards: bool
) -> tuple[Range, InputError | None]:
    """The range widened by the largest share of a step that is taken, and why not by more; InputError for none."""
    refusal: InputError | None = None
    for share in SHARES:
        wider = widened(space[path], upwards, share * STEP)
        if wider.ends == space[path].ends:
            break
        try:
            check_widened(every, size, {**space, path: wider})
        except InputError as error:
            refusal = refusal or error
        else:
            return wider, refusal
    if refusal is not None:
        raise refusal
    return space[path], None

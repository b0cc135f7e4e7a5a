"""What is claimed for each component, how far is it checked, and what do our runs say of it?

`board` puts every claim of `evidence` beside the arm that changes that component alone (first in), with last in and
part where a split tells them, and judges it by `verdicts`. `sheet` is the board as a published table: what is claimed,
what we measured, and the rules. A component that nobody claims anything for is shown without a verdict, and without an
analysis no claim has one. Nothing is computed here but the verdicts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.attribution import ComponentEffects
from k3ablate.fits.split import Effect
from k3ablate.fits.split_analysis import AnalysedSplit
from k3ablate.report.evidence import Claim, Claims
from k3ablate.report.sheet import Grid, Record, Sheet
from k3ablate.report.split_notes import NOTHING, cell
from k3ablate.report.style import FLOPS_PER_PFLOP_DAY, factor, factor_range, loss_text
from k3ablate.report.verdicts import RULES, Judged, verdict

NO_ARM = "no arm changes this alone"
NO_RUNS = "no runs were given"
UNCLAIMED = Judged("no claim to judge", "")
CLAIMED = ("claim", "component", "what changes", "factor", "source", "checked independently by", "grade", "condition")
MEASURED = (
    "claim", "claimed", "arm", "multiplier (95 %)", "read at loss", "last in (95 %)", "part (95 %)", "verdict",
    "because",
)  # fmt: skip
CLAIMED_FOLD = CLAIMED.index("source")
MEASURED_FOLD = MEASURED.index("last in (95 %)")


@dataclass(frozen=True)
class Entry:
    """A claim, or None for a component without one, beside one arm of ours, or None where there is no such arm."""

    name: str
    claim: Claim | None
    arm: ArmAnalysis | None
    effects: ComponentEffects | None  # of the split, where it tells of this component at this level
    judged: Judged


@dataclass(frozen=True)
class Board:
    """Every claim, the total last, then components of ours for which there is none."""

    entries: tuple[Entry, ...]
    analysis: Analysis | None
    split: AnalysedSplit | None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Each claim once."""
        return tuple(dict.fromkeys(entry.claim for entry in self.entries if entry.claim is not None))


def board(found: Claims, analysis: Analysis | None, split: AnalysedSplit | None = None) -> Board:
    """The claims beside an analysis and its split; without them no claim has a verdict."""
    alone = [] if analysis is None else [arm for arm in analysis.arms if len(arm.changed) == 1]
    entries = [entry for claim in found.claims for entry in _of_claim(claim, alone, analysis, split)]
    shown = {entry.arm.arm for entry in entries if entry.arm is not None}
    entries.append(_of_total(found, analysis))
    others = [arm for arm in alone if arm.arm not in shown]
    entries += [Entry(_change(arm), None, arm, _effects(arm, split), UNCLAIMED) for arm in others]
    return Board(tuple(entries), analysis, split)


def sheet(found: Board, provenance: str, name: str = "evidence") -> Sheet:
    """The board as a table; its records have one row per claim and arm."""
    return Sheet(
        name=name,
        title="Claims, who checked them, and what our runs say at their scale",
        grids=(
            Grid("What is claimed", CLAIMED, tuple(map(_claimed_cells, found.claims)), CLAIMED_FOLD),
            Grid("What was measured here", MEASURED, tuple(map(_measured_cells, found.entries)), MEASURED_FOLD),
        ),
        notes=(*_scale(found), *RULES, *_repeats(found), *_part(found), *_on_claims(found.claims)),
        provenance=provenance,
        records=tuple(_record(entry) | {"provenance": provenance} for entry in found.entries),
        excluded=None if found.analysis is None else found.analysis.excluded,
    )


def _of_claim(
    claim: Claim, alone: Sequence[ArmAnalysis], analysis: Analysis | None, split: AnalysedSplit | None
) -> list[Entry]:
    """One entry per arm that changes just what is claimed, or one that says that there is none."""
    arms = [arm for arm in alone if arm.changed.get(claim.component) in claim.levels]
    if not arms:
        reason = NO_RUNS if analysis is None else NO_ARM
        return [Entry(claim.name, claim, None, None, Judged("not measured", reason))]
    assert analysis is not None, "arms come from an analysis"
    return [
        Entry(claim.name, claim, arm, _effects(arm, split), _judged(claim.factor, arm, analysis, "")) for arm in arms
    ]


def _of_total(found: Claims, analysis: Analysis | None) -> Entry:
    """The total beside the last arm that changes every component, as the split has it."""
    total = found.total
    if analysis is None:
        return Entry(total.name, total, None, None, Judged("not measured", NO_RUNS))
    components = {component for arm in analysis.arms for component in arm.changed}
    whole = [arm for arm in analysis.arms if len(components) > 1 and set(arm.changed) == components]
    if not whole:
        return Entry(total.name, total, None, None, Judged("not measured", "no arm changes everything"))
    lacking = dict.fromkeys(claim.component for claim in found.claims if claim.component not in components)
    return Entry(total.name, total, whole[-1], None, _judged(total.factor, whole[-1], analysis, ", ".join(lacking)))


def _judged(claimed: float | None, arm: ArmAnalysis, analysis: Analysis, covers_less: str) -> Judged:
    if arm.multiplier is None:
        reason = "one number does not hold" if arm.multiplier_curve is not None else arm.no_multiplier
        return Judged("cannot tell at this scale" if arm.points else "not measured", reason)
    judged = verdict(claimed, arm.multiplier, covers_less)
    failed = [repeat.arm for repeat in _read_repeats(analysis) if not _contains_one(repeat)]
    if failed and judged.verdict != "cannot tell at this scale":
        return Judged(
            "cannot tell at this scale", f"the interval of {failed[0]}, which changes nothing, does not contain 1"
        )
    return judged


def _read_repeats(analysis: Analysis) -> list[ArmAnalysis]:
    return [arm for arm in analysis.arms if analysis.is_repeat_of_baseline(arm) and arm.multiplier is not None]


def _contains_one(arm: ArmAnalysis) -> bool:
    return arm.multiplier is not None and arm.multiplier.interval.contains(1.0)


def _effects(arm: ArmAnalysis, split: AnalysedSplit | None) -> ComponentEffects | None:
    rows = split.split.components if split is not None else ()
    return next((row for row in rows if dict(arm.changed) == {row.component: row.level}), None)


def _change(arm: ArmAnalysis) -> str:
    return ", ".join(f"{component}={level}" for component, level in arm.changed.items())


def _claimed_cells(claim: Claim) -> tuple[str, ...]:
    checked = "; ".join(f"{check.who} ({check.covers})" for check in claim.checks) or "nobody"
    condition = str(claim.condition) if claim.condition else NOTHING
    return (
        claim.name, claim.component, claim.change, _claimed(claim), claim.source, checked, claim.grade, condition,
    )  # fmt: skip


def _claimed(claim: Claim | None) -> str:
    return NOTHING if claim is None or claim.factor is None else factor(claim.factor)


def _measured_cells(entry: Entry) -> tuple[str, ...]:
    read = entry.arm.multiplier if entry.arm else None
    effects = entry.effects
    return (
        entry.name,
        _claimed(entry.claim),
        entry.arm.arm if entry.arm else NOTHING,
        f"{factor(read.value)} ({factor_range(read.interval)})" if read else NOTHING,
        f"{loss_text(read.loss)}, {_range(entry)}" if read else NOTHING,
        cell(effects.last_in) if effects else NOTHING,
        cell(effects.part) if effects else NOTHING,
        entry.judged.verdict,
        entry.judged.reason or NOTHING,
    )


def _range(entry: Entry) -> str:
    read = entry.arm.multiplier if entry.arm else None
    if read is None:
        return ""
    return "measured" if read.measured else f"extrapolated {factor(read.beyond)}x"


def _record(entry: Entry) -> dict[str, object]:
    """Numbers at full precision; empty where there is none."""
    claim, read, effects = entry.claim, entry.arm.multiplier if entry.arm else None, entry.effects
    return {
        "claim": entry.name,
        "component": claim.component if claim else "",
        "change": claim.change if claim else "",
        "claimed_factor": claim.factor if claim and claim.factor is not None else "",
        "claimed_where": claim.where if claim else "",
        "source": claim.source if claim else "",
        "checks": "; ".join(f"{check.who}: {check.what} ({check.covers})" for check in claim.checks) if claim else "",
        "grade": claim.grade if claim else "",
        "condition": str(claim.condition) if claim and claim.condition else "",
        "arm": entry.arm.arm if entry.arm else "",
        "multiplier": read.value if read else "",
        "multiplier_low": read.interval.low if read else "",
        "multiplier_high": read.interval.high if read else "",
        "read_at_loss": read.loss if read else "",
        "range": _range(entry),
        **_effect("last_in", effects.last_in if effects else None),
        **_effect("part", effects.part if effects else None),
        "verdict": entry.judged.verdict,
        "because": entry.judged.reason,
    }


def _effect(name: str, found: Effect | None) -> Record:
    interval = found.factor_interval if found else None
    return {
        name: found.factor if found else "",
        f"{name}_low": interval.low if interval else "",
        f"{name}_high": interval.high if interval else "",
    }


def _scale(found: Board) -> list[str]:
    compute = [point.compute for arm in found.analysis.arms for point in arm.points] if found.analysis else []
    if not compute:
        return []
    low, high = min(compute), max(compute)
    days = f"{low / FLOPS_PER_PFLOP_DAY:.2g} to {high / FLOPS_PER_PFLOP_DAY:.2g} PFLOP/s-days"
    return [f"this scale: runs of {low:.3g} to {high:.3g} FLOPs ({days}); claims are of 0.5 PFLOP/s-days and above"]


def _repeats(found: Board) -> list[str]:
    """What the repeats of the baseline say of the intervals."""
    if found.analysis is None:
        return []
    repeats = _read_repeats(found.analysis)
    if not repeats:
        return ["no A/A arm was read: nothing here checks the intervals"]
    return [
        f"A/A: {arm.arm} {'contains' if _contains_one(arm) else 'does not contain'} 1 ({_interval(arm)})"
        for arm in repeats
    ]


def _interval(arm: ArmAnalysis) -> str:
    assert arm.multiplier is not None, "a repeat that was read"
    return factor_range(arm.multiplier.interval)


def _part(found: Board) -> list[str]:
    if found.split is None:
        return []
    method = found.split.split.method
    parts = f"part: {method}" if method in ("shapley", "pairwise") else "parts are not told by these arms"
    return [f"last in and part are of the split, read at loss {loss_text(found.split.loss)}; {parts}"]


def _on_claims(claims: Iterable[Claim]) -> list[str]:
    """Where each claim holds, what it needs, and what others have checked."""
    told = []
    for claim in claims:
        told.append(f"{claim.name}: {claim.where}")
        if claim.condition:
            stated = claim.condition
            told.append(f"{claim.name}, condition: {stated.text} ({stated.source}); {stated} ({stated.value_source})")
        told += [f"{claim.name}, checked: {check.who}: {check.what} ({check.covers})" for check in claim.checks]
    return told

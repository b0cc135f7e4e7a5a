"""Which component carries how much of the gain? The verb `split` over anybody's table of runs.

Takes a frame, gives it our column names, analyses it and reads the split off; the sums are in `fits`, the looks in
`report.split_table`. It reaches no training library. A component is a column that holds each arm's level as text, or
any column that is named; a table without a column of arms gets one arm per combination of the named components. Where
components are named, arms in which others change as well are left out, and said to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas

from k3ablate.answers import Problem
from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.columns import Columns, canonical, row_name
from k3ablate.fits.observations import check_arm, observations
from k3ablate.fits.split_analysis import AnalysedSplit, split_analysis
from k3ablate.fits.uncertainty import NUM_DRAWS
from k3ablate.records import COLUMNS
from k3ablate.report.split_table import render_text

DRAWS_SEED = 0  # the same table gives the same intervals


@dataclass(frozen=True)
class SplitAnswer(AnalysedSplit):
    """`split`: the parts of the gain, where they are read, and what belongs to the numbers."""

    flops_convention: str
    intervals: str
    left_out: Sequence[str]  # a sentence per rule about rows
    excluded: Sequence[Problem]

    def text(self) -> str:
        """Tables and sentences for a terminal."""
        return render_text(self, self.remarks())

    def remarks(self) -> tuple[str, ...]:
        """What belongs to the numbers and is not the split's."""
        return (
            f"intervals: 95 percent, {self.intervals}",
            f"FLOPs: {self.flops_convention}",
            *self.left_out,
            f"runs in no fit: {len(self.excluded) or 'none'}",
            *(f"{run.name}: {run.status}: {run.reason}" for run in self.excluded),
        )


def split(
    frame: pandas.DataFrame,
    form: str | None = None,
    *,
    baseline: str | None = None,
    target: str | None = None,
    at_loss: float | None = None,
    at_flops: float | None = None,
    total: float | None = None,
    components: Sequence[str] = (),
    by: str | None = None,
    x: str | None = None,
    y: str | None = None,
    where: Sequence[str] = (),
    num_draws: int = NUM_DRAWS,
    flops_convention: str | None = None,
) -> SplitAnswer:
    """The split of ln m from `baseline` (default: the first arm) to `target` (the last arm that changes everything).

    Read at one loss, at the compute `at_flops` of the baseline, or at the lowest loss that all arms of the split
    measured, on curves of `form`. `total`: a multiplier claimed elsewhere, against which the rest is unattributed. `by`
    `x` `y` name the columns of arms, compute and loss, `components` those of levels; `where` keeps rows (column=value,
    also != < <= > >=). InputError for what the table cannot answer.
    """
    named = {"arm": by, "compute": x, "loss": y}
    columns = Columns(**{role: name for role, name in named.items() if name is not None})
    numbered = frame.reset_index(drop=True)
    table, left_out = canonical(_with_arms(numbered, components, columns), columns, where)
    if table.empty:
        raise InputError("table: no rows; write one per run below the header")
    first = str(table["arm"].iloc[0]) if baseline is None else baseline
    table, confounded = _with_components(table, numbered, components, first, target)
    analysis = analyse(table, first, form, np.random.default_rng(DRAWS_SEED), num_draws)
    found = split_analysis(analysis, target, at_loss, at_flops, total)
    convention = flops_convention or f"column {columns.compute} of the table"
    return answer(analysis, found, convention, (*left_out, *confounded))


def answer(
    analysis: Analysis, found: AnalysedSplit, flops_convention: str, left_out: Sequence[str] = ()
) -> SplitAnswer:
    """The split with what must stand beside it."""
    return SplitAnswer(
        **vars(found),
        flops_convention=flops_convention,
        intervals=f"{analysis.noise[found.form].method}, {analysis.num_draws} draws, joint over arms",
        left_out=left_out,
        excluded=[
            Problem(f"{run.arm} {run.size} seed {run.seed}", run.status, run.reason) for run in analysis.excluded
        ],
    )


def _with_arms(frame: pandas.DataFrame, components: Sequence[str], columns: Columns) -> pandas.DataFrame:
    """A table without arms has one per combination of the levels of its components."""
    for name in components:
        if components.count(name) > 1:
            raise InputError(f"--component {name}: stands there twice; name each column once")
        if name not in frame:
            known = ", ".join(map(str, frame.columns))
            raise InputError(f"--component {name}: no such column; the table has {known}")
        if name in COLUMNS:
            raise InputError(f"--component {name}: every table of runs has this column; copy it under another name")
    if columns.arm in frame or not components:
        return frame
    cells = zip(*(frame[name] for name in components), strict=True)
    arms = [", ".join(f"{name}={level}" for name, level in zip(components, levels, strict=True)) for levels in cells]
    return frame.assign(**{columns.arm: arms})


def _with_components(
    table: pandas.DataFrame, frame: pandas.DataFrame, components: Sequence[str], baseline: str, target: str | None
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Only the named columns of `frame` are components, whatever they hold; without names all that look like ones.

    Arms that differ from the baseline in what looks like a further component are left out, with a sentence: what they
    gain is not the named components' alone.
    """
    if not components:
        return table, ()
    levels = frame.loc[table.index, list(components)]
    for name in components:
        _check_levels(name, levels[name], table["arm"])
    kept = table[[name for name in table if name in COLUMNS]]
    kept = kept.assign(**{name: levels[name].map(str) for name in components})
    check_arm(baseline, dict.fromkeys(kept["arm"]))
    varying = _varying(table, components, baseline)
    if target in varying:
        raise InputError(f"--component {', '.join(components)}: {_not_alone(target, varying[target], baseline)}")
    alone = kept[~kept["arm"].isin(varying)]
    if varying and not (alone[list(components)].nunique() > 1).any():
        arm, columns = next(iter(varying.items()))
        raise InputError(f"--component {', '.join(components)}: {_not_alone(arm, columns, baseline)}")
    if not varying:
        return kept, ()
    columns = tuple(dict.fromkeys(name for found in varying.values() for name in found))
    return alone, (f"left out, because {', '.join(columns)} change too: {', '.join(varying)}",)


def _check_levels(name: str, levels: pandas.Series, arms: pandas.Series) -> None:
    """InputError where a component has no level, or an arm several."""
    empty = levels.index[levels.isna()]
    if len(empty):
        raise InputError(f"--component {name}: {row_name(empty[0])} has no level; write one on every row")
    for arm, found in levels.groupby(arms, sort=False):
        if found.nunique() > 1:
            several = ", ".join(map(str, found.unique()))
            raise InputError(f"--component {name}: arm {arm} has several levels ({several}); an arm has one of each")


def _varying(table: pandas.DataFrame, components: Sequence[str], baseline: str) -> dict[str, tuple[str, ...]]:
    """Arm -> what looks like a component, is not named and differs from the baseline's, where there is such."""
    levels = observations(table).levels
    named = {
        arm: tuple(name for name, level in own.items() if name not in components and level != levels[baseline][name])
        for arm, own in levels.items()
    }
    return {arm: found for arm, found in named.items() if found}


def _not_alone(arm: str, columns: Sequence[str], baseline: str) -> str:
    named = ", ".join(columns)
    return (
        f"{arm} differs from {baseline} in {named} too, whose gain would be credited to what is named; name them with "
        f"--component, keep arms that agree in them with --where, or drop the columns that are no components"
    )

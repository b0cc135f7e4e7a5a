"""How is the way from the baseline to the target made up: what does each component bring, and what do pairs?

`split_pictures` has a waterfall of ln m from the baseline to the whole per target, with the interval of every part and
what the component brings first in and last in, and the matrix of `interactions`. `claims_picture` is the waterfall of
the published factors, with what nobody has published hatched. The sums are in `fits.attribution`, the words in
`split_notes`; nothing is computed here.
"""

import math
from collections.abc import Sequence

import pandas

from k3ablate.fits.attribution import UNATTRIBUTED, Part, Split
from k3ablate.fits.split import Effect
from k3ablate.fits.split_analysis import AnalysedSplit
from k3ablate.report.evidence import Claim, Claims, claims, unclaimed
from k3ablate.report.interactions import interactions_picture
from k3ablate.report.pictures import Picture
from k3ablate.report.rows import Words
from k3ablate.report.split_notes import METHODS, cell, missing_sentences, range_text, verdict, whole_name
from k3ablate.report.style import factor, loss_text
from k3ablate.report.waterfall import Step, step_rows, waterfall_figure

NOT_TOLD = "not identified"
NOT_TOLD_FROM_ONE = "not told from 1"
VALUES = "factor (95 %), share of ln m"
TICKS = "triangles: what the component brings alone (first in) and on top of all others (last in)"


def split_pictures(found: AnalysedSplit) -> list[Picture]:
    """A waterfall to every target, the main one first, and what pairs of components do together."""
    main, *others = (_waterfall(found, split) for split in (found.split, *found.other_targets))
    return [main, interactions_picture(found), *others]


def claims_picture(found: Claims | None = None) -> Picture:
    """The published factors from K2 to K3, by default those of analysis/published, and what they leave of the total."""
    read = claims() if found is None else found
    parts = unclaimed(read)
    by_component = {claim.component: claim for claim in read.claims if claim.part_of_total}
    steps = [_claimed_step(part, by_component.get(part.name)) for part in parts]
    total = read.total.factor
    assert total is not None, "claims are read with a total"
    known = math.prod(part.effect.factor for part in parts if part.name != UNATTRIBUTED)
    left = next(part.effect.factor for part in parts if part.name == UNATTRIBUTED)
    whole = Step("K3, as claimed", "whole", 0.0, Effect(math.log(total), None, total, None), None, f"{total:g}")
    steps = _in_a_row(steps, [_start("K2"), whole])
    told = f"published factors multiply to {factor(known)} of {total:g}; {factor(left)} has no public source"
    sources = [f"{name}: {claim.source}; grade: {claim.grade}" for name, claim in by_component.items()]
    words = Words(
        heading="What the published factors explain of K3 over K2",
        lines=[f"{told}; no intervals are published"],
        value_heading="factor, share of ln m",
        notes=[*sources, f"whole: {read.total.source}"],
    )
    return _picture("claimed_split", words, steps, f"Bars from K2 to K3 on a scale of ln m: {told}.")


def _waterfall(found: AnalysedSplit, split: Split) -> Picture:
    own = {row.name: row for row in split.components}
    steps = [
        Step(part.name, _kind(part, split), 0.0, part.effect, part.share, cell(part.effect), _remark(part), first, last)
        for part in split.parts
        for row in [own.get(part.name)]
        for first, last in [(row.first_in, row.last_in) if row else (None, None)]
    ]
    shown = {part.name for part in split.parts}
    unseen = [
        Step(row.name, "unseen", 0.0, None, None, NOT_TOLD, "", row.first_in, row.last_in)
        for row in split.components if row.name not in shown
    ]  # fmt: skip
    ends = [_start(found.baseline), *_ends(split)]
    steps = _in_a_row([*steps, *unseen], ends) if split.whole else [ends[0], *steps, *unseen, *ends[1:]]
    to = split.target or "every component"
    words = Words(
        heading=f"From {found.baseline} to {to}: what each component brings",
        lines=[
            f"read at loss {loss_text(found.loss)}, {range_text(found)}, from {found.form} curves",
            METHODS[split.method].format(count=2 ** len(split.components)),
        ],
        value_heading=VALUES if split.whole else "factor (95 %)",
        notes=[TICKS, *_what_is_not_told(split)],
    )
    name = "split" if split is found.split else f"split_to_{_stem(to)}"
    told = "; ".join(f"{step.name} {step.value}" for step in steps)
    return _picture(name, words, steps, f"{words.heading}, bars on a scale of ln m with 95 percent intervals: {told}.")


def _picture(name: str, words: Words, steps: Sequence[Step], description: str) -> Picture:
    return Picture(
        name=name,
        title=words.heading,
        description=description,
        data=pandas.DataFrame(step_rows(steps)),
        draw=lambda theme: waterfall_figure(steps, words, theme),
    )


def _kind(part: Part, split: Split) -> str:
    if part.name == UNATTRIBUTED:
        return "unattributed"
    return "part" if any(row.name == part.name for row in split.components) else "remainder"


def _claimed_step(part: Part, claim: Claim | None) -> Step:
    kind = "part" if claim else "unattributed"
    detail = claim.change if claim else "no public source"
    return Step(part.name, kind, 0.0, part.effect, part.share, factor(part.effect.factor), _share(part), detail=detail)


def _start(baseline: str) -> Step:
    return Step(baseline, "baseline", 0.0, Effect(0.0, None, 1.0, None), None, "1")


def _ends(split: Split) -> list[Step]:
    """The whole; with a claimed one, the target arm too."""
    ends = []
    if split.whole is not None:
        name = whole_name(split)
        ends.append(
            Step(name, "whole", 0.0, split.whole, None, cell(split.whole), detail=f"the whole, {split.whole_from}")
        )
    if split.total is not None and split.whole_from != "target arm":
        ends.append(Step(split.target or "target", "whole", 0.0, split.total, None, cell(split.total)))
    return ends


def _in_a_row(steps: Sequence[Step], ends: Sequence[Step]) -> list[Step]:
    """Every step begins where the one before it ends."""
    placed, reached = [], 0.0
    for step in steps:
        placed.append(step.moved(reached))
        reached += step.effect.log if step.effect else 0.0
    return [ends[0], *placed, *ends[1:]]


def _what_is_not_told(split: Split) -> list[str]:
    """What the design cannot say."""
    lines = [] if split.whole else ["the target arm was not read: parts begin at 1 and add up to nothing that is known"]
    if not split.parts:
        lines.append("no arm shows a component by itself: nothing can be credited to one")
    return [*lines, *missing_sentences(split.missing)]


def _remark(part: Part) -> str:
    told = verdict(part.effect)
    return ", ".join(text for text in (_share(part), told if told == NOT_TOLD_FROM_ONE else "") if text)


def _share(part: Part) -> str:
    return "" if part.share is None else f"{round(100 * part.share, 1) + 0.0:.1f} %"  # + 0.0: no minus before zero


def _stem(name: str) -> str:
    """A part of a file's name."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name).strip("_") or "other"

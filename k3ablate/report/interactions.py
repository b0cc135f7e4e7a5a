"""Which components work together, and which are in each other's way? The matrix of pairs with their intervals.

A cell is what the pair gains together over both apart, the first column what all others do to a component. Colour tells
the direction and how strong it is, an arrow in front of the number says it again, and a cell of which the arms tell
nothing says so. The numbers are those of `fits.attribution`; nothing is computed here.
"""

import math
from dataclasses import dataclass

import pandas
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from k3ablate.fits.attribution import Split
from k3ablate.fits.split import Effect
from k3ablate.fits.split_analysis import AnalysedSplit
from k3ablate.report.lettering import BODY, SMALL, height, width, wrapped, write
from k3ablate.report.pictures import Picture, Row
from k3ablate.report.rows import EDGE, head_of, height_of_head, write_head
from k3ablate.report.split_notes import cell, range_text, verdict
from k3ablate.report.style import DOTS_PER_INCH, FIGURE_SIZE, Theme, loss_text

NAME = "interactions"
OTHERS = "with all others"
NOT_TOLD = "not identified"
UP, DOWN, NEITHER = "\u25b2 ", "\u25bc ", ""
CELL_WIDTH, CELL_HEIGHT, GAP, NAME_WIDTH = 1.12, 0.46, 0.08, 1.7  # inches
MOST_LINES = 4
STRONGEST = 0.5  # of the colour in a cell, so that ink stays readable on it
LEAST_STRENGTH = 0.12  # ln m that takes the full colour, where all are weaker
GAIN, LOSS = 2, 1  # colours of the theme


@dataclass(frozen=True)
class _Cell:
    row: int
    column: int  # 0 is with all others
    first: str
    second: str
    effect: Effect | None


def interactions_picture(found: AnalysedSplit) -> Picture:
    """The matrix of one split, with what the design cannot see."""
    cells, names = _cells(found.split), [row.name for row in found.split.components]
    heading = f"Interactions on the way from {found.baseline} to {found.split.target or 'every component'}"
    lines = [f"read at loss {loss_text(found.loss)}, {range_text(found)}", *_words(found.split)]
    told = "; ".join(f"{one.first} {one.second}: {_text(one.effect)[0]}" for one in cells)
    return Picture(
        name=NAME,
        title=heading,
        description=f"{heading}: factor that two components bring together over both apart, 1 where neither touches "
        f"the other. {told or lines[-1]}.",
        data=pandas.DataFrame([_row(one) for one in cells], columns=list(_row(_Cell(0, 0, "", "", None)))),
        draw=lambda theme: _draw(cells, names, heading, lines, theme),
    )


def _words(split: Split) -> list[str]:
    if not split.pairs:
        return ["one component: it has no other to work with"]
    lines = ["a cell is what two components gain together over both apart (95 %): 1 where neither touches the other"]
    lines.append(f"{UP}more together, {DOWN}less together, no sign: not told from 1")
    unseen = sum(pair.effect is None for pair in split.pairs)
    if unseen:
        lines.append(f"{unseen} of {len(split.pairs)} pairs are {NOT_TOLD}: no arms of this design tell them apart")
    return lines


def _cells(split: Split) -> list[_Cell]:
    """The lower triangle, and in column 0 what all others do."""
    names = [row.name for row in split.components]
    if len(names) < 2:
        return []
    cells = [_Cell(index, 0, row.name, OTHERS, row.gap) for index, row in enumerate(split.components)]
    for pair in split.pairs:
        column, row = sorted((names.index(pair.first), names.index(pair.second)))
        cells.append(_Cell(row, column + 1, names[column], names[row], pair.effect))
    return cells


def _row(one: _Cell) -> Row:
    effect = one.effect
    logs, factors = (effect.log_interval, effect.factor_interval) if effect else (None, None)
    return {
        "first": one.first,
        "second": one.second,
        "factor": effect.factor if effect else "",
        "factor_low": factors.low if factors else "",
        "factor_high": factors.high if factors else "",
        "log": effect.log if effect else "",
        "log_low": logs.low if logs else "",
        "log_high": logs.high if logs else "",
        "told_from_1": effect.told_from_one if effect else "",
    }


def _text(effect: Effect | None) -> list[str]:
    """What is written in a cell: the factor, and its interval below."""
    if effect is None:
        return [NOT_TOLD]
    value, _, interval = cell(effect).partition(" ")
    sign = NEITHER if verdict(effect) not in ("gain", "loss") else UP if effect.log > 0 else DOWN
    return [f"{sign}{value}", *([interval] if interval else [])]


def _draw(cells: list[_Cell], names: list[str], heading: str, lines: list[str], theme: Theme) -> Figure:
    columns = [OTHERS, *names[:-1]] if cells else []
    page = max(FIGURE_SIZE[0], 2 * EDGE + NAME_WIDTH + 2 * GAP + CELL_WIDTH * len(columns))
    head = head_of(heading, lines, page - 2 * EDGE)
    tops = [wrapped(name, CELL_WIDTH - 0.1, BODY, MOST_LINES) for name in columns]
    sides = [wrapped(name, NAME_WIDTH, BODY, MOST_LINES) for name in names] if cells else []
    tall = max([CELL_HEIGHT, *(height(len(side)) + 0.06 for side in sides)])
    first = height_of_head(head) + 0.1 + max([height(len(top)) for top in tops], default=0.0) + 0.08
    figure = Figure(figsize=(page, first + tall * len(sides) + EDGE), dpi=DOTS_PER_INCH)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, page)
    axes.set_ylim(figure.get_size_inches()[1], 0)
    write_head(figure, head, theme)
    left = EDGE + max([width(line) for side in sides for line in side], default=0.0) + 2 * GAP
    for column, top in enumerate(tops):
        middle = _left(left, column) + CELL_WIDTH / 2
        write(axes, middle, first - 0.08, top, ha="center", va="baseline", color=theme.ink)
    for index, side in enumerate(sides):
        write(axes, left - GAP, first + tall * (index + 0.5), side, ha="right", color=theme.ink)
    strongest = max([LEAST_STRENGTH, *(abs(one.effect.log) for one in cells if one.effect and _is_finite(one.effect))])
    for one in cells:
        _draw_cell(axes, one, (_left(left, one.column), first + tall * one.row), tall, strongest, theme)
    return figure


def _left(left: float, column: int) -> float:
    """Column 0 stands apart."""
    return left + CELL_WIDTH * column + (GAP if column else 0.0)


def _draw_cell(
    axes: Axes, one: _Cell, corner: tuple[float, float], tall: float, strongest: float, theme: Theme
) -> None:
    inset = 0.02
    box = Rectangle((corner[0] + inset, corner[1] + inset), CELL_WIDTH - 2 * inset, tall - 2 * inset, linewidth=0.8)
    box.set_facecolor(cell_colour(one.effect, strongest, theme))
    box.set_edgecolor(theme.faint if one.effect else theme.muted)
    box.set_linestyle("solid" if one.effect else (0, (2, 2)))
    axes.add_patch(box)
    middle, text = (corner[0] + CELL_WIDTH / 2, corner[1] + tall / 2), _text(one.effect)
    if len(text) == 1:
        small = one.effect is None
        write(axes, *middle, text, SMALL if small else BODY, ha="center", color=theme.muted if small else theme.ink)
        return
    write(axes, middle[0], middle[1] - 0.075, text[:1], BODY, ha="center", color=theme.ink)
    write(axes, middle[0], middle[1] + 0.085, text[1:], SMALL - 0.5, ha="center", color=theme.ink)


def cell_colour(effect: Effect | None, strongest: float, theme: Theme) -> str:
    """Paper for 1 and for what is not told, towards blue for more and orange for less than apart."""
    if effect is None or not _is_finite(effect):
        return theme.paper
    share = STRONGEST * min(1.0, abs(effect.log) / strongest)
    end = to_rgb(theme.colours[GAIN if effect.log > 0 else LOSS])
    mixed = [share * full + (1 - share) * paper for full, paper in zip(end, to_rgb(theme.paper), strict=True)]
    return to_hex((mixed[0], mixed[1], mixed[2]))


def _is_finite(effect: Effect) -> bool:
    return math.isfinite(effect.log)

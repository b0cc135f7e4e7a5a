"""How do rows of a picture stand: a name at the left, something drawn in the middle, its numbers at the right?

Every length is in inches and follows from the text, so that 40 arms or names of 90 letters make a taller picture and
nothing overlaps. The vertical axis of `Sheet.axes` counts inches from the top: row i has its centre at `centres[i]`.
What is drawn in the middle is the caller's; small multiples of curves are in `panels`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from k3ablate.report.lettering import BODY, LINE_SPACING, SMALL, height, width, wrapped, write
from k3ablate.report.style import DOTS_PER_INCH, FIGURE_SIZE, Theme

PAGE = FIGURE_SIZE[0]
EDGE, GUTTER = 0.1, 0.14  # between text and the edge of the page, and the plot
NAME_WIDTH, VALUE_WIDTH = 1.9, 1.9  # at most
LEAST_ROW, ROW_PAD = 0.3, 0.1
SET_APART = 0.16  # in front of a row that a rule sets apart
AXIS, TOP_AXIS, LEGEND = 0.42, 0.4, 0.26  # room of numbers and label, below and above the plot, and of the legend
HEADING = 9.0  # points
HEAD_GAP = 0.03  # inches below the heading
BOLD = 1.14  # width of bold letters over those of others
MOST_LINES, MOST_SMALL_LINES = 4, 3  # of a name or value, of what stands under it


@dataclass(frozen=True)
class Line:
    """One row: `detail` stands small under the name, `remarks` under the value; `apart` draws a rule above it."""

    name: str
    value: str
    detail: str = ""
    remarks: tuple[str, ...] = ()
    apart: bool = False


@dataclass(frozen=True)
class Words:
    """What is written around the rows."""

    heading: str
    lines: Sequence[str]  # under the heading
    value_heading: str
    notes: Sequence[str]  # below everything


@dataclass(frozen=True)
class Sheet:
    """A figure whose middle is still empty."""

    figure: Figure
    axes: Axes
    centres: tuple[float, ...]


@dataclass(frozen=True)
class _Cell:
    """Lines of one side of a row, the second ones small."""

    first: list[str]
    second: list[str]

    @property
    def height(self) -> float:
        return height(len(self.first), BODY) + height(len(self.second), SMALL)

    @property
    def width(self) -> float:
        return max([width(text) for text in self.first] + [width(text, SMALL) for text in self.second], default=0.0)


def sheet(rows: Sequence[Line], words: Words, theme: Theme, has_top_axis: bool, legend: Sequence[Artist]) -> Sheet:
    """Names, values, heading, legend and notes in their places; the plot takes what width they leave."""
    names = [_cell(row.name, [row.detail], NAME_WIDTH) for row in rows]
    values = [_cell(row.value, row.remarks, VALUE_WIDTH) for row in rows]
    left = EDGE + max(cell.width for cell in names) + GUTTER
    right = EDGE + max(width(words.value_heading, SMALL), *(cell.width for cell in values)) + GUTTER
    tops, centres, tall = _places(rows, names, values)
    head = head_of(words.heading, words.lines, PAGE - 2 * EDGE)
    notes = [line for note in words.notes for line in wrapped(note, PAGE - 2 * EDGE, SMALL)]
    above = height_of_head(head) + (TOP_AXIS if has_top_axis else 0.06) + height(1, SMALL)
    below = AXIS + (LEGEND if legend else 0.0) + height(len(notes), SMALL) + EDGE
    page = above + tall + below
    figure = Figure(figsize=(PAGE, page), dpi=DOTS_PER_INCH)
    axes = figure.add_axes((left / PAGE, below / page, (PAGE - left - right) / PAGE, tall / page))
    axes.set_ylim(tall, 0)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.tick_params(labelsize=BODY - 1)
    for place, name, value in zip(centres, names, values, strict=True):
        _write_cell(axes, -GUTTER, place, name, theme, "right")
        _write_cell(axes, PAGE - left - right + GUTTER, place, value, theme, "left")
    for row, top in zip(rows, tops, strict=True):
        if row.apart:
            axes.axhline(top - SET_APART / 2, color=theme.muted, linewidth=0.7)
    write_head(figure, head, theme)
    figure.text(EDGE / PAGE, EDGE / page, "\n".join(notes), fontsize=SMALL, color=theme.muted, va="bottom",
                linespacing=LINE_SPACING, parse_math=False)  # fmt: skip
    figure.text(
        (PAGE - right + GUTTER) / PAGE,
        1 - (above - 0.03) / page,
        words.value_heading,
        fontsize=SMALL,
        color=theme.muted,
        va="bottom",
        parse_math=False,
    )
    if legend:
        y = (height(len(notes), SMALL) + EDGE + 0.02) / page
        figure.legend(handles=legend, loc="lower center", bbox_to_anchor=(0.5, y),
                      ncols=len(legend), fontsize=SMALL, frameon=False, borderaxespad=0, borderpad=0,
                      handletextpad=0.5, columnspacing=1.4)  # fmt: skip
    return Sheet(figure, axes, tuple(centres))


def _cell(first: str, second: Sequence[str], inches: float) -> _Cell:
    small = [line for text in second if text for line in wrapped(text, inches, SMALL, MOST_SMALL_LINES)]
    return _Cell(wrapped(first, inches, BODY, MOST_LINES), small)


def _places(
    rows: Sequence[Line], names: Sequence[_Cell], values: Sequence[_Cell]
) -> tuple[list[float], list[float], float]:
    """Upper edge and centre of each row, and the height of all."""
    tops, centres, top = list[float](), list[float](), 0.0
    for row, name, value in zip(rows, names, values, strict=True):
        tall = max(LEAST_ROW, name.height + ROW_PAD, value.height + ROW_PAD)
        tops.append(top + (SET_APART if row.apart else 0.0))
        centres.append(tops[-1] + tall / 2)
        top = tops[-1] + tall
    return tops, centres, top


def _write_cell(axes: Axes, inches: float, y: float, cell: _Cell, theme: Theme, side: str) -> None:
    """Text beside the plot, `inches` from its left edge."""
    figure = axes.figure
    assert isinstance(figure, Figure), "a sheet has no figures inside its figure"
    box, (wide, tall), scale = axes.get_position(), figure.get_size_inches(), figure.dpi_scale_trans
    transform = scale + ScaledTranslation(box.x0 * wide, box.y1 * tall, scale)
    top = y - cell.height / 2
    for lines, points, colour in ((cell.first, BODY, theme.ink), (cell.second, SMALL, theme.muted)):
        middle = -(top + height(len(lines), points) / 2)
        write(axes, inches, middle, lines, points, color=colour, ha=side, transform=transform)
        top += height(len(lines), points)


def head_of(heading: str, lines: Sequence[str], inches: float) -> list[tuple[str, float]]:
    """Heading and lines as they stand above a picture, each with the size of its letters."""
    top = [(line, HEADING) for line in wrapped(heading, inches / BOLD, HEADING)]
    return [*top, *((line, SMALL) for text in lines for line in wrapped(text, inches, SMALL))]


def height_of_head(head: Sequence[tuple[str, float]]) -> float:
    """Inches from the edge of the page to below the last line."""
    return EDGE + HEAD_GAP + sum(height(1, points) for _, points in head)


def write_head(figure: Figure, head: Sequence[tuple[str, float]], theme: Theme) -> None:
    """Line under line in the upper left corner."""
    wide, tall = figure.get_size_inches()
    below, last = EDGE, 0.0
    for line, points in head:
        below += height(1, points) + (HEAD_GAP if points == SMALL and last == HEADING else 0.0)
        colour, weight = (theme.muted, "normal") if points == SMALL else (theme.ink, "bold")
        figure.text(EDGE / wide, 1 - below / tall, line, fontsize=points, color=colour, fontweight=weight,
                    va="baseline", parse_math=False)  # fmt: skip
        last = points

"""How do small multiples stand on a page: panels of one size with shared axes, a legend and notes below?

Every length is in inches, so that 40 panels, or names of 90 letters, make a picture taller and nothing overlaps. Panels
share both axes: numbers stand at the left and at the lowest panel of a column. What is in a panel is its caller's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from k3ablate.report.lettering import BODY, LINE_SPACING, SMALL, height, lettered, width, wrapped, write
from k3ablate.report.style import DOTS_PER_INCH, FIGURE_SIZE, Theme, arm_style
from k3ablate.report.ticks import label_decades, label_factors

PAGE = FIGURE_SIZE[0]
LEFT, RIGHT, TOP, BOTTOM = 0.66, 0.16, 0.08, 0.1  # margins; the left one holds numbers and a label
TICKS, LABEL = 0.2, 0.2  # below the last panel
GAP = 0.26  # between panels side by side: half a number each
TITLE_GAP, TITLE_ROOM = 0.06, 0.15
ROW_GAP = 0.12
HANDLE, HANDLE_GAP, ENTRY_GAP = 0.32, 0.07, 0.2  # of a legend
DESCENT = 0.3  # of a line, below the letters' foot
MOST_NOTES = 14
DASHES: tuple[Any, ...] = (
    "-", (0, (4, 1.4)), (0, (1, 1.1)), (0, (6, 1.4, 1, 1.4)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)),
)  # fmt: skip

PER_X_LABEL, PER_Y_LABEL = 0.6, 0.28  # inches

Looks = Mapping[str, Any]  # of a Line2D
Item = TypeVar("Item")


@dataclass(frozen=True)
class Entry:
    """One line of a legend."""

    text: str
    looks: Looks


@dataclass(frozen=True)
class Page:
    """What stands around the panels: a title for each, the labels of the shared axes, a legend, notes."""

    titles: Sequence[str]
    x_label: str
    y_label: str
    entries: Sequence[Entry] = ()
    notes: Sequence[str] = ()
    columns: int = 4
    panel_height: float = 1.15
    left: float = LEFT  # margin of the panels


def line_looks(index: int, theme: Theme) -> Looks:
    """Colour and dash of the line of the arm at `index`, the baseline being 0; 42 pairs before any repeats."""
    return {"color": arm_style(index, theme).colour, "linestyle": DASHES[index % len(DASHES)],
            "linewidth": 1.2}  # fmt: skip


def marker_looks(index: int, theme: Theme) -> Looks:
    """Colour and open marker of the runs of the arm at `index`, as in `figures`."""
    style = arm_style(index, theme)
    return {"color": style.colour, "marker": style.marker, "markerfacecolor": "none", "linestyle": "none",
            "markersize": 4.0, "markeredgewidth": 0.9}  # fmt: skip


def few(notes: Sequence[str], where: str = "the CSV beside this picture") -> list[str]:
    """The first of many notes, and how many more stand elsewhere."""
    if len(notes) <= MOST_NOTES:
        return list(notes)
    return [*notes[: MOST_NOTES - 1], f"{len(notes) - MOST_NOTES + 1} more are in {where}"]


def in_rows(items: Sequence[Item], columns: int) -> list[list[Item]]:
    """Items, row by row; the last row may be short."""
    return [list(items[start : start + columns]) for start in range(0, len(items), max(columns, 1))]


def lay_out(page: Page, theme: Theme) -> tuple[Figure, list[Axes]]:
    """An empty figure as tall as what stands on it, and the Axes of its panels, row by row."""
    num_columns = min(page.columns, len(page.titles))
    body = (len(page.titles) + num_columns - 1) // num_columns * page.panel_height
    label = wrapped(page.y_label, body + (TITLE_ROOM if any(page.titles) else 0.0), BODY)
    left = page.left + height(len(label) - 1)
    panel = (PAGE - left - RIGHT - GAP * (num_columns - 1)) / num_columns
    rows = in_rows([wrapped(title, panel) if title else [] for title in page.titles], num_columns)
    heads = [max(height(len(lines)) + TITLE_GAP for lines in row) if any(row) else 0.0 for row in rows]
    feet = _Feet(page.entries, page.notes)
    above = sum(heads) + body + (len(rows) - 1) * ROW_GAP
    total = TOP + above + TICKS + LABEL + feet.height + BOTTOM
    figure = Figure(figsize=(PAGE, total), dpi=DOTS_PER_INCH)
    axes: list[Axes] = []
    y = TOP
    for head, row in zip(heads, rows, strict=True):
        y += head
        for column, lines in enumerate(row):
            x = left + column * (panel + GAP)
            axes.append(_panel(figure, (x, y, panel, page.panel_height), lines, axes[0] if axes else None, theme))
        y += page.panel_height + ROW_GAP
    for index, one in enumerate(axes):
        one.tick_params(labelleft=index % num_columns == 0, labelbottom=index + num_columns >= len(axes))
    _label_axes(figure, page.x_label, label, left, TOP + above)
    feet.draw(figure, TOP + above + TICKS + LABEL, theme)
    return figure, axes


def grouped(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """(name, reason) of many as one line per reason with its names."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(those)}: {reason}" for reason, those in names.items()]


def open_end(axes: Axes, x: float, y: float, aside: tuple[float, float], colour: str) -> None:
    """An arrow from a point, `aside` points long, where its interval has no end among what was tried."""
    looks = {"arrowstyle": "<|-", "color": colour, "linewidth": 1.2, "mutation_scale": 7, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(x, y), xytext=aside, textcoords="offset points", arrowprops=looks)


def baseline_marked(arms: Iterable[str], baseline: str) -> list[str]:
    """Titles of panels."""
    return [f"{arm} (baseline)" if arm == baseline else arm for arm in arms]


def say(axes: Axes, text: str, points: float = BODY) -> None:
    """Words in the middle of a panel that has nothing to show, which then has no numbers on its axes."""
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False, which="both")
    axes.grid(visible=False, which="both")
    inches = axes.get_position().width * PAGE - 0.2
    write(axes, 0.5, 0.5, wrapped(text, inches, points), points, transform=axes.transAxes, ha="center")


def scale(axes: Axes, x: bool = True, y: bool = True) -> None:
    """Logarithmic axes with round numbers for what is drawn: powers of ten along x, plain numbers along y."""
    if x:
        axes.set_xscale("log")
    if y:
        axes.set_yscale("log")
    axes.autoscale_view()
    box, dots = axes.get_window_extent(), axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    if x:
        label_decades(axes.xaxis, *axes.get_xlim(), max(2, int(box.width / dots / PER_X_LABEL)))
    if y:
        label_numbers(axes, max(2, int(box.height / dots / PER_Y_LABEL)))


def label_numbers(axes: Axes, most: int) -> None:
    """Plain numbers along a logarithmic y axis: even steps within a decade, else round ones."""
    low, high = axes.get_ylim()
    label_factors(axes.yaxis, low, high, most)
    if high < 10 * low:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]))


def _panel(
    figure: Figure, box: tuple[float, float, float, float], lines: Sequence[str], first: Axes | None, theme: Theme
) -> Axes:
    x, y, wide, high = box
    axes = figure.add_axes(_shares(figure, x, y, wide, high), sharex=first, sharey=first)
    axes.tick_params(labelsize=SMALL, length=2.5, pad=2, width=0.6)
    axes.grid(visible=True, color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.6)
    if lines:
        write(axes, 0.0, 1 + TITLE_GAP / high, lines, va="baseline", transform=axes.transAxes)
    return axes


def _shares(figure: Figure, x: float, y: float, wide: float, high: float) -> tuple[float, float, float, float]:
    """Inches from the upper left corner as shares of a figure from its lower left one."""
    whole, total = figure.get_size_inches()
    return float(x / whole), float(1 - (y + high) / total), float(wide / whole), float(high / total)


def _label_axes(figure: Figure, x_label: str, y_label: Sequence[str], left: float, end: float) -> None:
    whole, total = figure.get_size_inches()
    figure.text((left + PAGE - RIGHT) / 2 / whole, 1 - (end + TICKS + LABEL / 2 + 0.02) / total, lettered(x_label),
                ha="center", va="center", fontsize=BODY, parse_math=False)  # fmt: skip
    figure.text((0.04 + height(len(y_label)) / 2) / whole, 1 - (TOP + end) / 2 / total, "\n".join(y_label), ha="center",
                va="center", fontsize=BODY, rotation=90, parse_math=False, linespacing=LINE_SPACING)  # fmt: skip


class _Feet:
    """The legend in columns of one width, and the notes below it."""

    def __init__(self, entries: Sequence[Entry], notes: Sequence[str]) -> None:
        self.entries = entries
        room = PAGE - LEFT - RIGHT
        taken = HANDLE + HANDLE_GAP + ENTRY_GAP
        widest = max((width(lettered(entry.text), SMALL) for entry in entries), default=0.0) + 0.02
        self.columns = max(1, min(int(room / (taken + min(widest, room))), len(entries)))
        self.column = room / self.columns
        self.lines = [wrapped(entry.text, max(self.column - taken, 0.5), SMALL) for entry in entries]
        self.rows = [max(map(len, row)) for row in in_rows(self.lines, self.columns)]
        self.notes = [wrapped(note, room, SMALL) for note in notes]

    @property
    def height(self) -> float:
        """Inches."""
        legend = sum(height(num, SMALL) + 0.03 for num in self.rows)
        notes = sum(height(len(lines), SMALL) + 0.02 for lines in self.notes)
        return legend + (0.06 if legend else 0) + notes + (0.08 if notes else 0)

    def draw(self, figure: Figure, start: float, theme: Theme) -> None:
        """From `start` inches below the upper edge."""
        if not self.height:
            return
        room = PAGE - LEFT - RIGHT
        axes = figure.add_axes(_shares(figure, LEFT, start, room, self.height), label="feet")
        axes.set_axis_off()
        axes.set(xlim=(0, room), ylim=(self.height, 0))
        y = 0.06 if self.rows else 0.0
        for number, (entry, lines) in enumerate(zip(self.entries, self.lines, strict=True)):
            row, column = divmod(number, self.columns)
            x, top = column * self.column, y + sum(height(num, SMALL) + 0.03 for num in self.rows[:row])
            middle = top + height(1, SMALL) / 2
            axes.plot([x, x + HANDLE / 2, x + HANDLE], [middle] * 3, markevery=[1], clip_on=False, **entry.looks)
            last = top + height(len(lines), SMALL) - height(1, SMALL) * DESCENT
            write(axes, x + HANDLE + HANDLE_GAP, last, lines, SMALL, va="baseline")
        y += sum(height(num, SMALL) + 0.03 for num in self.rows) + 0.08
        for lines in self.notes:
            write(axes, 0.0, y, lines, SMALL, va="top", color=theme.muted)
            y += height(len(lines), SMALL) + 0.02

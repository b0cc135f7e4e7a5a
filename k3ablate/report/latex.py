r"""How is a published table written in LaTeX, to be read by \input in a paper?

Needs booktabs, longtable and array, and says so in its first line. A table that fits on a page floats over the whole
width of the text, in documents of two columns too; a longer one is a longtable, which goes on over pages and wants one
column. Columns are as wide as their text where the line holds it, else they share the line by what they hold.
Characters are the matter of `latex_text`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from k3ablate.report.latex_text import escaped, pieces, shown, width
from k3ablate.report.sheet import Grid, Sheet

LINE = 86  # digits of \scriptsize that a line of 345 pt holds
GAP = 2  # between columns
MOST_WHOLE = 24  # digits of a cell's longest piece for which a column makes room
PAGE = 52  # lines of \scriptsize that float with a table
RAGGED = r">{\raggedright\arraybackslash}"
NOTES = (
    r"\begin{list}{--}{\setlength{\leftmargin}{1.2em}\setlength{\labelwidth}{0.8em}\setlength{\labelsep}{0.4em}"
    r"\setlength{\itemsep}{0pt}\setlength{\parsep}{0pt}\setlength{\topsep}{3pt}}"
)
SPELLED = re.compile(r"<U\+[0-9A-F]{4,6}>")


@dataclass(frozen=True)
class Columns:
    """Their specification, and how many lines the rows take with it."""

    specification: str
    num_lines: int


def render(sheet: Sheet) -> str:
    """The table with its notes and provenance; ASCII, and the same bytes for the same sheet."""
    grids = [part for grid in sheet.grids for part in folded(grid)]
    grids += [sheet.excluded_grid] if sheet.excluded_grid else []
    num_lines = sum(columns(grid).num_lines + 4 for grid in grids) + sum(_lines(note, LINE) for note in _notes(sheet))
    floats = num_lines <= PAGE
    body = [line for number, grid in enumerate(grids) for line in _grid(sheet, grid, floats, first=number == 0)]
    lines = [
        r"% \usepackage{booktabs,longtable,array}",
        *([r"\begin{table*}[tbp]"] if floats else [r"\begingroup"]),
        r"\scriptsize\setlength{\tabcolsep}{3pt}\raggedright",
        *([rf"\caption{{{escaped(sheet.title)}}}", _label(sheet)] if floats else []),
        *body,
        *_list(sheet),
        r"\end{table*}" if floats else r"\par\endgroup",
    ]
    return "\n".join(lines) + "\n"


def columns(grid: Grid) -> Columns:
    """Natural columns where a line holds every row, else shares of the line, at least the longest word each."""
    cells = _columns(grid)
    natural = [max(map(width, column)) for column in cells]
    room = LINE - GAP * (len(cells) - 1)
    if sum(natural) <= room:
        return Columns("@{}" + "l" * len(cells) + "@{}", len(grid.rows) + 1)
    widths = _widths(_needed(cells), natural, room)
    total = sum(widths)
    shares = [(own + GAP) / (total + GAP * len(widths)) for own in widths]
    parts = [rf"{RAGGED}p{{\dimexpr {share:.4f}\linewidth-2\tabcolsep\relax}}" for share in shares]
    heights = [
        max(_lines(cell, own * room / total) for cell, own in zip(row, widths, strict=True))
        for row in zip(*cells, strict=True)
    ]
    return Columns("@{}" + "".join(parts) + "@{}", sum(heights))


def _widths(needed: Sequence[float], natural: Sequence[float], room: float) -> list[float]:
    """As much as each column wishes up to one common width, the largest that the room allows; never below the need."""
    widths = list(needed)
    for common in range(math.ceil(max(natural)) + 1):
        wider = [max(least, min(wish, common)) for least, wish in zip(needed, natural, strict=True)]
        if sum(wider) > room:
            break
        widths = wider
    return widths


def folded(grid: Grid) -> list[Grid]:
    """The grid, or its two parts where a line does not hold the longest words of all its columns."""
    if grid.fold is None or sum(_needed(_columns(grid))) + GAP * (len(grid.headings) - 1) <= LINE:
        return [grid]
    return [
        replace(
            grid,
            caption=f"{grid.caption}{goes_on}",
            headings=(*grid.headings[:repeated], *grid.headings[kept]),
            rows=tuple((*cells[:repeated], *cells[kept]) for cells in grid.rows),
        )
        for goes_on, repeated, kept in (("", 0, slice(0, grid.fold)), (", continued", 1, slice(grid.fold, None)))
    ]


def _columns(grid: Grid) -> list[list[str]]:
    return [[shown(cell) for cell in column] for column in zip(grid.headings, *grid.rows, strict=True)]


def _needed(cells: Sequence[Sequence[str]]) -> list[float]:
    """Digits that each column takes for its longest word."""
    return [min(_longest_piece(column) + 1, MOST_WHOLE) for column in cells]


def _grid(sheet: Sheet, grid: Grid, floats: bool, first: bool) -> list[str]:
    head = [r"\toprule", f"{_row(grid.headings)} \\\\", r"\midrule"]
    specification, between = columns(grid).specification, _between(grid)
    rows = [f"{_row(cells)} \\\\{between}" for cells in grid.rows[:-1]] + [f"{_row(grid.rows[-1])} \\\\"]
    named = len(sheet.grids) > 1 or grid.caption == sheet.excluded_title
    if floats:
        above = [rf"\par\medskip\noindent\textbf{{{escaped(grid.caption)}}}\par"] if named else []
        tabular = [rf"\begin{{tabular}}{{{specification}}}", *head, *rows, r"\bottomrule", r"\end{tabular}"]
        return [*above, r"\par\smallskip\noindent", *tabular]
    caption = [rf"\caption{{{escaped(sheet.title)}}}{_label(sheet)}\\"] if first else []
    caption += [_spanning(grid, rf"\textbf{{{escaped(grid.caption)}}}")] if named else []
    goes_on = rf"\midrule{_spanning(grid, 'continued on the next page')}"
    return [
        r"\setlength{\LTleft}{0pt}\setlength{\LTright}{\fill}\setlength{\LTpre}{3pt}\setlength{\LTpost}{3pt}",
        rf"\begin{{longtable}}{{{specification}}}",
        *caption,
        *head, r"\endfirsthead",
        *head, r"\endhead",
        goes_on, r"\endfoot",
        r"\bottomrule", r"\endlastfoot",
        *rows,
        r"\end{longtable}",
    ]  # fmt: skip


def _spanning(grid: Grid, text: str) -> str:
    """A row of one cell."""
    return rf"\multicolumn{{{len(grid.headings)}}}{{@{{}}l@{{}}}}{{{text}}} \\"


def _list(sheet: Sheet) -> list[str]:
    """Notes, runs left out where there are none, and the provenance."""
    return [r"\par", NOTES, *(rf"\item {{}}{escaped(note)}" for note in _notes(sheet)), r"\end{list}"]


def _notes(sheet: Sheet) -> list[str]:
    none = [sheet.excluded_title] if sheet.excluded_title and not sheet.excluded else []
    texts = [sheet.title, *sheet.notes, *(cell for grid in sheet.grids for row in grid.rows for cell in row)]
    spells = any(SPELLED.search(shown(text)) for text in texts)
    unknown = ["<U+...>: a character by its number, as LaTeX's own fonts do not have it"] if spells else []
    return [*sheet.notes, *unknown, *none, f"Provenance: {sheet.provenance}"]


def _label(sheet: Sheet) -> str:
    name = re.sub(r"[^A-Za-z0-9-]+", "-", sheet.name)
    return rf"\label{{tab:{name}}}"


def _row(cells: tuple[str, ...]) -> str:
    return " & ".join(escaped(cell) for cell in cells)


def _between(grid: Grid) -> str:
    """Space between rows of several lines."""
    return r"\addlinespace[2pt]" if columns(grid).num_lines > len(grid.rows) + 1 else ""


def _longest_piece(column: Sequence[str]) -> float:
    return max(width(piece) for cell in column for word in cell.split(" ") for piece in pieces(word))


def _lines(text: str, room: float) -> int:
    """About how many lines a text takes."""
    return max(1, math.ceil(width(shown(text)) / max(room, 1)))

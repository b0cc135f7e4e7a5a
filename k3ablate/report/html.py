"""How is a published table written in HTML that reads well without a style, a script or a network, aloud too?

`fragment` is for a page that has other things; `page` is a document of its own, which adds a style that follows the
reader's light or dark setting. Every table has a caption, every column and row a header, and one that is wider than
the window is scrolled by itself, by keyboard as well.
"""

import re
from collections.abc import Iterable
from html import escape

from k3ablate.report.sheet import Grid, Sheet, tied, visible

STYLE = """
:root { color-scheme: light dark; --ink: light-dark(#111, #f2f2f2); --quiet: light-dark(#404040, #c0c4cc);
  --line: light-dark(#bbb, #555c66); --paper: light-dark(#fff, #14171c); }
body { margin: 0 auto; padding: 1.5rem; max-width: 80rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere; }
.scrolled { overflow-x: auto; margin-bottom: 1.5rem; }
.scrolled:focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
table { border-collapse: collapse; border-top: 2px solid var(--ink); border-bottom: 2px solid var(--ink);
  font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { padding-bottom: .5rem; text-align: left; font-size: 1rem; font-weight: 600; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; vertical-align: top; overflow-wrap: break-word;
  min-width: 3.5rem; max-width: min(22rem, 45vw); }
thead th { border-bottom: 1px solid var(--ink); vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 600; }
ul { padding-left: 1.2rem; }
li, p { max-width: 75ch; overflow-wrap: anywhere; font-size: .875rem; color: var(--quiet); }
"""


def page(sheet: Sheet) -> str:
    """The sheet as a document in one file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{shown(sheet.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{shown(sheet.title)}</h1>\n{fragment(sheet)}</main>\n</body>\n</html>\n"
    )


def fragment(sheet: Sheet) -> str:
    """Tables, notes, the runs in no fit, and the provenance, without a heading; ids begin with the sheet's name."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", sheet.name)
    lines = [_table(grid, f"{name}-{number}") for number, grid in enumerate(sheet.grids, start=1)]
    if sheet.notes:
        lines += [f"<ul>\n{_joined(f'<li>{shown(note)}</li>' for note in sheet.notes)}</ul>\n"]
    if sheet.excluded_grid:
        lines += [_table(sheet.excluded_grid, f"{name}-excluded")]
    elif sheet.excluded_title:
        lines += [f"<p>{sheet.excluded_title}</p>\n"]
    return "".join([*lines, f"<p>Provenance: {shown(sheet.provenance)}</p>\n"])


def shown(text: str) -> str:
    """Text that a browser shows as it is, in an attribute too."""
    return escape(tied(visible(text)))


def _table(grid: Grid, identity: str) -> str:
    head = "".join(f'<th scope="col">{shown(heading)}</th>' for heading in grid.headings)
    return (
        f'<div class="scrolled" role="region" aria-labelledby="{identity}" tabindex="0">\n<table>\n'
        f'<caption id="{identity}">{shown(grid.caption)}</caption>\n<thead>\n<tr>{head}</tr>\n</thead>\n'
        f"<tbody>\n{_joined(map(_row, grid.rows))}</tbody>\n</table>\n</div>\n"
    )


def _row(cells: tuple[str, ...]) -> str:
    first, *others = cells
    return f'<tr><th scope="row">{shown(first)}</th>{"".join(f"<td>{shown(cell)}</td>" for cell in others)}</tr>'


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)

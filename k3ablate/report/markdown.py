"""How is a published table written in GitHub-flavoured Markdown, so that names and reasons are shown and never run?"""

import re
from collections.abc import Sequence

from k3ablate.report.sheet import Grid, Sheet, visible

SPECIAL = "\\`*_|[]$~"
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
STARTS_A_BLOCK = re.compile(r"(?=[-+#] )|(?<=\d)(?=[.)] )")  # a list or a heading, where a line begins with it


def render(sheet: Sheet) -> str:
    """Title, grids, notes, the runs in no fit, and the provenance."""
    blocks = [escaped(sheet.title)]
    for grid in sheet.grids:
        blocks += [f"**{escaped(grid.caption)}**"] if len(sheet.grids) > 1 else []
        blocks.append(_table(grid))
    blocks += ["\n".join(f"- {escaped(note)}" for note in sheet.notes)] if sheet.notes else []
    blocks += [f"**{sheet.excluded_title}**"] if sheet.excluded_title else []
    blocks += [_table(sheet.excluded_grid)] if sheet.excluded_grid else []
    return "\n\n".join([*blocks, f"Provenance: {escaped(sheet.provenance)}"]) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is: names and reasons come from files and may hold markup."""
    flat = visible(text)
    start = STARTS_A_BLOCK.search(flat)
    head = flat[: start.start()] if start else ""
    body = "".join(
        ENTITIES.get(character, f"\\{character}" if character in SPECIAL else character) for character in flat
    )
    return f"{head}\\{body[len(head) :]}" if start and (not head or head.isdigit()) else body


def _escaped(character: str) -> str:
    return ENTITIES.get(character, f"\\{character}" if character in SPECIAL else character)


def _table(grid: Grid) -> str:
    rows: list[Sequence[str]] = [[escaped(heading) for heading in grid.headings], ["---"] * len(grid.headings)]
    rows += [[escaped(cell) for cell in cells] for cells in grid.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)

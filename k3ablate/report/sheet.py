"""What is a published table, whatever it is written in?

A sheet: grids of text, the notes that belong to them, every run that was left out with its reason, one line of
provenance, and the same rows as records of full precision. `tables`, `split_table` and `board` fill it, `markdown`,
`latex` and `html` show it, `writing` makes its files. Nothing is computed and nothing is escaped here.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from k3ablate.fits.observations import Excluded

Record = Mapping[str, object]  # column -> value; empty text where there is none

EXCLUDED_HEADINGS = ("arm", "size", "seed", "status", "reason")
# They turn what follows in a line around, or stand for no character at all.
DIRECTIONS = frozenset({"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"})
INVISIBLE = frozenset({"Cc", "Cs", "Co", "Cn"})
TIE = "\u00a0"
TIED = re.compile(r"\([^()]{1,24}\)|(?<=±) | (?=%)")


@dataclass(frozen=True)
class Grid:
    """Headings and rows of plain text; the first cell of a row says what the row is about."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    fold: int | None = None  # column with which a page too narrow for all goes on below, the first column repeated


@dataclass(frozen=True)
class Sheet:
    """A published table. `name` is the stem of its files; `excluded` None where the notes tell of such runs."""

    name: str
    title: str
    grids: tuple[Grid, ...]
    notes: tuple[str, ...]
    provenance: str
    records: tuple[Record, ...]
    excluded: tuple[Excluded, ...] | None = None

    @property
    def excluded_title(self) -> str:
        """How many runs are in no fit; empty where the notes tell."""
        if self.excluded is None:
            return ""
        return f"Runs in no fit: {len(self.excluded) or 'none'}"

    @property
    def excluded_grid(self) -> Grid | None:
        """The runs that are in no fit, each with its reason; None where there is no such run."""
        if not self.excluded:
            return None
        rows = tuple((run.arm, run.size, str(run.seed), run.status, run.reason) for run in self.excluded)
        return Grid(self.excluded_title, EXCLUDED_HEADINGS, rows)


def visible(text: str) -> str:
    """Text on one line, in which what would be invisible or turn the line around is spelled as <U+202E>."""
    return "".join(spelled(character) if _hides(character) else character for character in " ".join(text.split()))


def tied(text: str) -> str:
    """The text with spaces that end no line inside short brackets, after a plus-minus and before a percent sign."""
    return TIED.sub(lambda found: found[0].replace(" ", TIE), text)


def spelled(character: str) -> str:
    """The number of a character, for where it cannot be shown."""
    return f"<U+{ord(character):04X}>"


def render_csv(records: Sequence[Record]) -> str:
    """The records as CSV, numbers with every digit."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _hides(character: str) -> bool:
    return unicodedata.category(character) in INVISIBLE or unicodedata.bidirectional(character) in DIRECTIONS

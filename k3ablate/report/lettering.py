"""How does text from a file stand in a picture: in letters that the font has, in lines of a known width?

matplotlib ships one text font, DejaVu Sans. Names and reasons come from files: they may hold letters that it lacks, no
spaces, or hundreds of characters. `lettered` spells what the font lacks as U+4F60, `wrapped` breaks lines by measured
width, `height` says how much room they take, so that a picture can be made as large as its text. `write` puts text on
an Axes as it is, without mathematics between dollars.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Text

FONT = "DejaVu Sans"
POINTS_PER_INCH = 72
LINE_SPACING = 1.3  # of the size of the letters
BREAKS_AFTER = " +/_-,;=.)"  # where a line may end
ELLIPSIS = "..."
BODY, SMALL = 8.0, 6.5  # points, of names and numbers, and of notes


def lettered(text: str) -> str:
    """`text` on one line, with U+ and the number of the letter for what the font cannot show."""
    return "".join(letter if _has(letter) else f"U+{ord(letter):04X}" for letter in " ".join(text.split()))


def width(text: str, points: float = BODY) -> float:
    """Inches that one line of lettered text takes."""
    return sum(map(_advance, text)) * points / POINTS_PER_INCH


def height(num_lines: int, points: float = BODY) -> float:
    """Inches that lines take."""
    return num_lines * points * LINE_SPACING / POINTS_PER_INCH


def wrapped(text: str, inches: float, points: float = BODY, most_lines: int | None = None) -> list[str]:
    """Lines of at most `inches`; beyond `most_lines` the end is left out, and dots say so."""
    lines, line = [], ""
    for piece in _pieces(lettered(text), inches, points):
        if line and width((line + piece).rstrip(), points) > inches:
            lines.append(line.rstrip())
            line = ""
        line += piece.lstrip() if not line else piece
    lines.append(line.rstrip())
    if most_lines is None or len(lines) <= most_lines:
        return lines
    last = lines[most_lines - 1]
    while last and width(last + ELLIPSIS, points) > inches:
        last = last[:-1]
    return [*lines[: most_lines - 1], last + ELLIPSIS]


def write(axes: Axes, x: float, y: float, lines: Sequence[str], points: float = BODY, **looks: Any) -> Text:
    """Text of lines at (x, y), whatever signs it holds; `looks` are those of Axes.text."""
    return axes.text(
        x, y, "\n".join(lines), fontsize=points, linespacing=LINE_SPACING, parse_math=False, **{"va": "center"} | looks
    )


def _pieces(text: str, inches: float, points: float) -> list[str]:
    """What a line may end after: words, and parts of what is wider than a line."""
    pieces, piece = [], ""
    for letter in text:
        if piece and width(piece + letter, points) > inches:
            pieces.append(piece)
            piece = ""
        piece += letter
        if letter in BREAKS_AFTER:
            pieces.append(piece)
            piece = ""
    return [*pieces, piece] if piece else pieces


@cache
def _advance(letter: str) -> float:
    """Of the size of the letters."""
    font = get_font(findfont(FONT))
    font.set_size(100.0, POINTS_PER_INCH)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


@cache
def _has(letter: str) -> bool:
    return letter.isprintable() and get_font(findfont(FONT)).get_char_index(ord(letter)) != 0

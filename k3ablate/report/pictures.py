"""What is a published picture? What draws it, every number that it shows, and its words for those who do not see it.

A picture is drawn once per theme, light for paper, both for the site. `write` makes PNG, SVG, PDF and a CSV of what is
drawn; the same picture gives the same bytes, and `digest` is of the numbers, not of the pixels. What there is to draw
is in the modules of pictures (`figures` and those beside it).
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import matplotlib
import pandas
from matplotlib.figure import Figure

from k3ablate.config import DIGEST_LENGTH
from k3ablate.report.style import LIGHT, Theme
from k3ablate.storage import write_atomic

Row = dict[str, str | int | float]  # of the data of a picture
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor")
# Names inside an SVG are random unless salted; fonts of a PDF are embedded as TrueType, which journals want.
FONTS: dict[Any, Any] = {"svg.hashsalt": "k3ablate", "svg.fonttype": "path", "pdf.fonttype": 42}
# Dates and versions would change the bytes of an unchanged picture.
METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Picture:
    """`name` is the stem of its files, `description` says what a reader sees and what is to be learned from it."""

    name: str
    title: str
    description: str
    data: pandas.DataFrame  # every number that is drawn, units in the names of columns
    draw: Callable[[Theme], Figure]

    @property
    def table(self) -> str:
        """The data as CSV with every digit."""
        return self.data.to_csv(index=False, lineterminator="\n")

    @property
    def digest(self) -> str:
        """Of the data: it changes when a number does, and not with fonts or library versions."""
        return sha256(self.table.encode()).hexdigest()[:DIGEST_LENGTH]


def write(picture: Picture, folder: Path) -> list[Path]:
    """Write `<name>.png`, `.svg`, `.pdf` and `.csv` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = rendered(picture, ("png", "svg", "pdf")) | {"csv": picture.table.encode()}
    paths = {suffix: folder / f"{picture.name}.{suffix}" for suffix in contents}
    for suffix, path in paths.items():
        write_atomic(path, contents[suffix])
    return list(paths.values())


def rendered(picture: Picture, suffixes: Sequence[str], theme: Theme = LIGHT) -> dict[str, bytes]:
    """A picture, drawn once, as PNG, SVG (text as paths: it looks the same everywhere) or PDF (text as text)."""
    found = {}
    with themed(theme), matplotlib.rc_context(FONTS):
        figure = picture.draw(theme)
        for suffix in suffixes:
            drawn = io.BytesIO()
            figure.savefig(drawn, format=suffix, metadata=METADATA[suffix])
            figure.set_layout_engine("none")  # everything has its place now; to find it again takes as long as to draw
            found[suffix] = drawn.getvalue()
    return found


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """Inside, new figures have the theme's paper, ink and grid; colours of arms are asked of the theme."""
    colours: dict[Any, str] = {
        **dict.fromkeys(INKED, theme.ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper),
        "grid.color": theme.faint,
    }
    with matplotlib.rc_context(colours):
        yield

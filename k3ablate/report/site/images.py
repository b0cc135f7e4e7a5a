"""How does a picture come onto a page? As a small SVG per theme, or a PNG where many points make that smaller.

Coordinates of an SVG are rounded to a hundredth of a point, which nobody sees and which halves it.
"""

import re
from dataclasses import dataclass

import matplotlib

from k3ablate.report.pictures import Picture, rendered
from k3ablate.report.style import DARK, LIGHT, Theme

LARGE_SVG = 160_000  # bytes; above, a PNG is tried
PIXELS_PER_POINT = 4 / 3
SHARP = 2 * 96  # dots per inch of a PNG: two per CSS pixel
# A scale keeps its digits: glyphs are drawn at 0.015625.
LONG_DECIMAL = re.compile(rb"(scale\([^)]*\))|(-?\d+\.\d{2})\d+")


@dataclass(frozen=True)
class ThemedImage:
    """One file; `width` and `height` in CSS pixels."""

    theme: str
    file: str
    content: bytes
    width: int
    height: int


def themed_images(picture: Picture) -> tuple[ThemedImage, ...]:
    """The picture on light and on dark paper."""
    return tuple(_image(picture, theme) for theme in (LIGHT, DARK))


def _image(picture: Picture, theme: Theme) -> ThemedImage:
    svg = smaller(rendered(picture, ["svg"], theme)["svg"])
    width, height = _size(svg)
    suffix, content = "svg", svg
    if len(svg) > LARGE_SVG:
        with matplotlib.rc_context({"savefig.dpi": SHARP}):
            png = rendered(picture, ["png"], theme)["png"]
        if len(png) < len(svg):
            suffix, content = "png", png
    return ThemedImage(theme.name, f"{picture.name}.{theme.name}.{suffix}", content, width, height)


def smaller(svg: bytes) -> bytes:
    """The same drawing with two decimals."""
    return LONG_DECIMAL.sub(lambda match: match[1] or match[2], svg)


def _size(svg: bytes) -> tuple[int, int]:
    """From its head, in CSS pixels."""
    head = svg[svg.index(b"<svg ") :][:800]
    found = [re.search(rb'\b%s="([\d.]+)pt"' % name, head) for name in (b"width", b"height")]
    sizes = [round(float(match[1]) * PIXELS_PER_POINT) for match in found if match is not None]
    assert len(sizes) == 2, "matplotlib writes width and height in points"
    return sizes[0], sizes[1]

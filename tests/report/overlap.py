"""Does anything that is written in a picture lie on something else that is written, or outside the canvas?

`from tests.report.overlap import assert_legible, rounded_digest`.
"""

import hashlib
import itertools
from typing import Any
from unittest.mock import patch

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from k3ablate.report.pictures import Picture, themed
from k3ablate.report.style import LIGHT, Theme

TOLERANCE = 0.75  # of a pixel


def assert_legible(picture: Picture, theme: Theme = LIGHT) -> Figure:
    """Draw `picture`; no two texts that are drawn overlap, and none leaves the canvas. Returns the figure."""
    with themed(theme):
        figure = picture.draw(theme)
        boxes = written(figure)
    outside = [text for text, box in boxes if not _inside(box, figure)]
    assert not outside, f"{picture.name}: outside the canvas: {outside}"
    over = [(one, other) for (one, a), (other, b) in itertools.combinations(boxes, 2) if _overlap(a, b)]
    assert not over, f"{picture.name}: overlap: {over}"
    return figure


def written(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that a rendering of the figure puts on the canvas, with its box in pixels."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # the layout settles
    boxes: list[tuple[str, Bbox]] = []
    draw = Text.draw

    def recorded(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            boxes.append((text.get_text(), Text.get_window_extent(text, renderer)))
        draw(text, renderer)

    with patch.object(Text, "draw", recorded):
        figure.draw_without_rendering()
    return boxes


def rounded_digest(picture: Picture) -> str:
    """Digest of the data to nine digits, as processors and libraries differ in the last ones."""
    rounded = picture.data.map(lambda value: f"{value:.9g}" if isinstance(value, float) else value)
    return hashlib.sha256(rounded.to_csv(index=False, lineterminator="\n").encode()).hexdigest()[:16]


def _inside(box: Bbox, figure: Figure) -> bool:
    canvas = figure.bbox
    return bool(
        box.x0 >= -TOLERANCE
        and box.y0 >= -TOLERANCE
        and box.x1 <= canvas.width + TOLERANCE
        and box.y1 <= canvas.height + TOLERANCE
    )


def _overlap(one: Bbox, other: Bbox) -> bool:
    common = Bbox.intersection(one, other)
    return common is not None and common.width > TOLERANCE and common.height > TOLERANCE

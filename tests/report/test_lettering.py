"""Text from files in a picture: measured, wrapped, and in letters that the font has."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from k3ablate.report.lettering import height, lettered, width, wrapped, write
from k3ablate.report.pictures import Picture
from tests.report.overlap import assert_legible

AWKWARD = ["k2", "W" * 90, "<b>&amp;</b> $x$ and $", "+attention+residual+feed_forward", "ключ Ωμέγα", "你好 " * 9, ""]


@pytest.mark.parametrize("text", AWKWARD)
def test_measured_width_is_the_drawn_width(text: str) -> None:
    figure = Figure(dpi=160)
    drawn = figure.text(0.1, 0.5, lettered(text), fontsize=8, parse_math=False)
    box = drawn.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    assert width(lettered(text), 8) == pytest.approx(
        box.width / 160, abs=0.05, rel=0.04
    )  # letters are drawn on whole pixels


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("inches", [0.4, 1.5, 30.0])
def test_lines_hold_all_of_a_text_and_none_is_wider(text: str, inches: float) -> None:
    lines = wrapped(text, inches)
    assert all(width(line) <= inches for line in lines)
    assert "".join(lines).replace(" ", "") == lettered(text).replace(" ", "")
    assert lines == lines[:1] or inches < width(lettered(text))


def test_what_is_left_out_is_shown_by_dots() -> None:
    lines = wrapped("one two three four five", 0.5, most_lines=2)
    assert len(lines) == 2
    assert lines[0] == "one two"
    assert lines[1].endswith("...")
    assert all(width(line) <= 0.5 for line in lines)


def test_letters_that_the_font_lacks_stay_apart() -> None:
    assert lettered("你 a\nb\x07") == "U+4F60 a bU+0007"


@pytest.mark.parametrize("sign", ["overlaps", "leaves", "apart"])
def test_texts_that_overlap_or_leave_the_canvas_are_found(sign: str) -> None:
    import pandas

    place = {"overlaps": (0.5, 0.5), "leaves": (0.99, 0.2), "apart": (0.5, 0.2)}[sign]

    def draw(theme: object) -> Figure:
        figure = Figure()
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        write(axes, 0.5, 0.5, ["text one"])
        write(axes, *place, ["text $ two", "你".encode("unicode-escape").decode()])
        return figure

    picture = Picture("p", "", "", pandas.DataFrame(), draw)
    if sign == "apart":
        assert_legible(picture)
    else:
        with pytest.raises(AssertionError, match="overlap" if sign == "overlaps" else "outside"):
            assert_legible(picture)


def test_height_grows_by_line() -> None:
    assert height(3, 8.0) == pytest.approx(3 * height(1, 8.0))

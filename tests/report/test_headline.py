"""The K2-vs-K3 figure: what is drawn are the published coordinates and the analysis, and nothing overlaps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis
from k3ablate.report.headline import k2_vs_k3
from k3ablate.report.pictures import write
from k3ablate.report.style import DARK, LIGHT
from tests.report.overlap import assert_legible, rounded_digest, written

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
# Of the data of the published panel: it changes with the coordinates, with what is read from them, and with its words.
DIGEST = "c0eb70ce05009ec9"
LONG = "+attention " + "n" * 80
STRANGE = {"k3": "<script>alert(1)</script> $x$ _y", "k2": "_基準 \u202e&amp; 🙂"}


def plots(figure: Figure) -> list[Axes]:
    """The Axes with curves, in order; those with heads stand above them."""
    return [axes for axes in figure.axes if axes.axison]


def said(figure: Figure) -> str:
    return "\n".join(text for text, _ in written(figure))


def test_the_published_panel_is_the_published_data() -> None:
    picture = k2_vs_k3(PUBLISHED)
    (axes,) = plots(assert_legible(picture))
    points = pandas.read_csv(PUBLISHED / "k3_figure7.csv")
    curves = pandas.read_csv(PUBLISHED / "k3_figure7_curves.csv")
    for series in ("K2", "K3"):
        drawn = [line for line in axes.get_lines() if len(line.get_xdata()) == (points["series"] == series).sum()]
        (stars,) = (line for line in drawn if line.get_marker() == "*")
        np.testing.assert_array_equal(stars.get_ydata(), points.loc[points["series"] == series, "loss_ticks"])
        (curve,) = (line for line in axes.get_lines() if len(line.get_xdata()) == (curves["series"] == series).sum())
        np.testing.assert_array_equal(curve.get_xdata(), curves.loc[curves["series"] == series, "flops"])
        assert curve.get_linestyle() == "--"
    assert rounded_digest(picture) == DIGEST


def test_the_published_arrow_is_measured_and_says_how() -> None:
    picture = k2_vs_k3(PUBLISHED)
    figure = assert_legible(picture)
    text = said(figure)
    for piece in ("2.44 to 2.53×", "dashed curves 2.44 to 2.50", "stars 2.53 (95 %: 2.47 to 2.59)", "2.5×",
                  "axis unnumbered in the report; ticks", "training compute (FLOPs)", "PFLOP/s-days",
                  "arXiv 2607.24653", "k3ablate figure k2-vs-k3 --table"):  # fmt: skip
        assert piece in text
    (arrow,) = (text for text in plots(figure)[0].texts if getattr(text, "arrow_patch", None) is not None)
    ratio = arrow.xy[0] / arrow.xyann[0]  # type: ignore[attr-defined]
    assert 2.4438 <= ratio <= 2.5
    assert arrow.xy[1] == arrow.xyann[1] == picture.data.loc[picture.data["kind"] == "arrow", "loss"].item()  # type: ignore[attr-defined]
    days = plots(figure)[0].child_axes[0]
    shown = [label.get_text() for label in days.get_xticklabels()]
    assert shown == ["1", "3", "10", "30"]
    assert days.get_xlim() == pytest.approx([limit / 8.64e19 for limit in plots(figure)[0].get_xlim()])
    assert all(label.get_text() == "" for label in plots(figure)[0].get_yticklabels())


def test_ours_stands_beside_it_with_bands_and_the_multiplier(analysis: Analysis) -> None:
    picture = k2_vs_k3(PUBLISHED, analysis, name="planted", provenance="experiment planted (0123); code 1")
    figure = assert_legible(picture)
    axes = plots(figure)[1]
    read = analysis.arm("k3").multiplier
    assert read is not None
    (arrow,) = (text for text in axes.texts if getattr(text, "arrow_patch", None) is not None)
    assert (arrow.xyann, arrow.xy) == ((read.arm_compute, read.loss), (read.baseline_compute, read.loss))  # type: ignore[attr-defined]
    text = said(figure)
    for piece in (f"{read.value:.2f}×", f"95 %: {read.interval.low:.2f} to {read.interval.high:.2f}", "Ours: planted",
                  "measured by both", "experiment planted (0123)", "validation loss (nats per token)"):  # fmt: skip
        assert piece in text
    data = picture.data[picture.data["panel"] == "ours"]
    runs = data[(data["kind"] == "run") & (data["arm"] == "k3")]
    assert runs["loss"].tolist() == [point.loss for point in analysis.arm("k3").points]
    assert runs["seed"].tolist() == [point.seed for point in analysis.arm("k3").points]
    curve = data[(data["kind"] == "curve") & (data["arm"] == "k3")]
    draws = analysis.arm("k3").draws["power"].predict(curve["flops"].to_numpy())
    inside = (draws >= curve["loss_low"].to_numpy()) & (draws <= curve["loss_high"].to_numpy())
    assert ((inside.mean(axis=0) >= 0.95) & (inside.mean(axis=0) < 1)).all()
    assert len(axes.collections) == 2


def test_where_one_number_does_not_hold_it_shows_from_where_to_where(analyses: Callable[..., Analysis]) -> None:
    analysis = analyses(steeper=0.01, form="shared_floor")
    picture = k2_vs_k3(PUBLISHED, analysis)
    figure = assert_legible(picture)
    along = analysis.arm("k3").multiplier_curve
    assert along is not None
    assert analysis.arm("k3").multiplier is None
    assert f"m(C) {along.value_G[0]:.2f} to {along.value_G[-1]:.2f}×" in said(figure)
    assert "no single number" in said(figure)
    arrows = picture.data[(picture.data["panel"] == "ours") & (picture.data["kind"] == "arrow")]
    assert arrows["multiplier"].tolist() == along.value_G[[0, -1]].tolist()


def test_an_extrapolated_number_says_so(analysis: Analysis) -> None:
    arm = analysis.arm("k3")
    assert arm.multiplier is not None
    further = replace(arm, multiplier=replace(arm.multiplier, beyond=3.2))
    arms = tuple(further if one.arm == "k3" else one for one in analysis.arms)
    assert "extrapolated 3.20x" in said(assert_legible(k2_vs_k3(PUBLISHED, replace(analysis, arms=arms))))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("case", ["long", "strange", "one size", "diverged", "one arm", "arm diverged", "no interval"])
def test_nothing_overlaps_whatever_the_table(analyses: Callable[..., Analysis], case: str, theme: object) -> None:
    made = {
        "long": lambda: analyses(renamed={"k2": ("k2 " * 30).strip(), "k3": LONG}),
        "strange": lambda: analyses(renamed=STRANGE),
        "one size": lambda: analyses(num_sizes=1),
        "diverged": lambda: analyses(unfinished=["k2", "k3", "kda", "again"]),
        "arm diverged": lambda: analyses(unfinished=["k3"]),
        "one arm": lambda: replace(analyses(), arms=(analyses().arm("k2"),)),
        "no interval": lambda: analyses(unfinished=["k2"]),
    }[case]()
    picture = k2_vs_k3(PUBLISHED, made, name=LONG, provenance="x" * 300 + " $y$ " + "words " * 60)
    text = said(assert_legible(picture, theme))  # type: ignore[arg-type]
    expected = {
        "diverged": "no run finished: 24 are listed", "one arm": "no arm but k2", "one size": "no multiplier of k3",
        "arm diverged": "no run of this arm finished", "strange": "U+57FAU+6E96", "long": "+attention\nnnn",
    }  # fmt: skip
    assert expected.get(case, "") in text


def test_the_arm_that_stands_for_k3(analysis: Analysis) -> None:
    assert set(k2_vs_k3(PUBLISHED, analysis).data["arm"].dropna()) == {"Kimi K2", "Kimi K3", "k2 (baseline)", "k3"}
    assert "kda" in set(k2_vs_k3(PUBLISHED, analysis, "kda").data["arm"])
    with pytest.raises(InputError, match=r"--arm kdb: no such arm beside the baseline k2; write one of kda|k3, kda"):
        k2_vs_k3(PUBLISHED, analysis, "kdb")


def test_the_same_bytes_twice(analysis: Analysis, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write(k2_vs_k3(PUBLISHED, analysis), tmp_path)]
    assert first == [path.read_bytes() for path in write(k2_vs_k3(PUBLISHED, analysis), tmp_path)]
    assert [path.name for path in write(k2_vs_k3(PUBLISHED), tmp_path)] == [
        f"k2_vs_k3.{suffix}" for suffix in ("png", "svg", "pdf", "csv")
    ]

"""Waterfall, interactions and forest: what is drawn is the split and the analysis, and nothing overlaps."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from k3ablate.fits.analysis import Analysis
from k3ablate.fits.attribution import TOGETHER, UNATTRIBUTED, split
from k3ablate.fits.coalitions import design
from k3ablate.fits.solve import Interval
from k3ablate.fits.split import effect
from k3ablate.fits.split_analysis import AnalysedSplit
from k3ablate.report.evidence import claims
from k3ablate.report.forest import forest_picture
from k3ablate.report.interactions import cell_colour, interactions_picture
from k3ablate.report.pictures import Picture, write
from k3ablate.report.split_figures import claims_picture, split_pictures
from k3ablate.report.style import DARK, LIGHT, Theme
from tests.report.overlap import assert_legible, rounded_digest, written

CLAIMS = Path(__file__).parents[2] / "analysis" / "published" / "claims.yaml"
CLAIMED_DIGEST = "cf5565ee73be7c5e"
COMPONENTS = ("attention", "residual", "balancing")
LONG = "n" * 90
STRANGE = "<b>&amp;</b> $x$ _y 基準 \u202e"


def arms(*changed: tuple[str, ...]) -> dict[str, dict[str, str]]:
    return {"+".join(names) or "k2": dict.fromkeys(names, "k3") for names in changed}


def factorial(components: tuple[str, ...]) -> dict[str, dict[str, str]]:
    sizes = range(len(components) + 1)
    return arms(*(names for size in sizes for names in itertools.combinations(components, size)))


def analysed(
    changed: Mapping[str, Mapping[str, str]], claimed: float | None = None,
    read: Callable[[str], bool] = lambda _: True, spread: float = 0.02,
) -> AnalysedSplit:  # fmt: skip
    """Gains of .4, less .15 per component, a pair that is worth .1 less together; `read`: arms with a value."""
    planned = design(changed, "k2")
    generator = np.random.default_rng(3)
    names, values = planned.names, {}
    for coalition, arm in planned.arms.items():
        if coalition and not read(arm):
            continue
        gain = sum(0.4 - 0.15 * names.index(name) for name in coalition)
        gain -= 0.1 * (len(coalition & set(names[:2])) == 2)
        values[coalition] = gain + np.concatenate([[0.0], spread * generator.normal(size=60) * bool(coalition)])
    return AnalysedSplit(
        baseline="k2", form="power", form_reason="power, as asked for", elsewhere="untested", loss=2.5, compute=3e18,
        beyond={"k2": 1.0}, split=split(planned, values, {}, claimed), other_targets=(), checks=(), warnings=(),
    )  # fmt: skip


def plot(figure: Figure) -> Axes:
    return figure.axes[0]


def said(figure: Figure) -> str:
    return "\n".join(text for text, _ in written(figure))


def bars(figure: Figure) -> list[tuple[float, float]]:
    """Begin and end of every bar, from above."""
    patches = [patch for patch in plot(figure).patches if isinstance(patch, Rectangle)]
    return [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in patches]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_bars_lead_from_the_baseline_to_the_whole(theme: Theme) -> None:
    found = analysed(factorial(COMPONENTS))
    waterfall, _ = split_pictures(found)
    figure = assert_legible(waterfall, theme)
    drawn = bars(figure)
    assert found.split.whole is not None
    assert drawn[0] == (0.0, 0.0)
    assert drawn[-1] == pytest.approx((0.0, found.split.whole.log))
    for (_, end), (begin, _) in itertools.pairwise(drawn[:-1]):
        assert begin == pytest.approx(end)
    assert drawn[-2][1] == pytest.approx(found.split.whole.log)
    lengths = [end - begin for begin, end in drawn[1:-1]]
    assert lengths == pytest.approx([part.effect.log for part in found.split.parts])
    assert waterfall.data["log"].tolist() == pytest.approx([0.0, *lengths, found.split.whole.log])


def test_whiskers_and_ticks_stand_where_the_numbers_are() -> None:
    found = analysed(factorial(COMPONENTS))
    waterfall, _ = split_pictures(found)
    lines = plot(assert_legible(waterfall)).get_lines()
    start = 0.0
    for row, part in zip(found.split.components, found.split.parts, strict=True):
        interval = part.effect.log_interval
        assert interval is not None
        assert row.first_in is not None
        assert row.last_in is not None
        ends = [start + interval.low, start + interval.high]
        assert any(line.get_xdata() == pytest.approx(ends) for line in lines if len(line.get_xdata()) == 2)
        for marker, log in (("v", row.first_in.log), ("^", row.last_in.log)):
            ticks = [line.get_xdata()[0] for line in lines if line.get_marker() == marker]
            assert any(math.isclose(start + log, tick) for tick in ticks)
        start += part.effect.log


def test_what_the_design_cannot_tell_is_said() -> None:
    one_at_a_time = analysed(arms((), *((name,) for name in COMPONENTS), COMPONENTS))
    waterfall, matrix = split_pictures(one_at_a_time)
    assert one_at_a_time.split.method == "first in"
    text = said(assert_legible(waterfall))
    for piece in (TOGETHER, "no Shapley values, which need all 8 arms", "not in the table (3)", "first in"):
        assert piece in text
    text = said(assert_legible(matrix))
    assert text.count("not identified") == 3 + 3 + 1
    assert "3 of 3 pairs are not identified" in text


def test_no_single_arm_at_all_still_shows_the_whole() -> None:
    found = analysed(arms((), ("attention", "residual"), COMPONENTS), read=lambda arm: "balancing" in arm)
    assert found.split.method == "none"
    text = said(assert_legible(split_pictures(found)[0]))
    for piece in ("no arm shows a component alone", "not identified", "not split: attention, residual, balancing"):
        assert piece in text.replace("\n", " ")


def test_without_the_target_arm_parts_begin_at_one() -> None:
    found = analysed(arms((), *((name,) for name in COMPONENTS), COMPONENTS), read=lambda arm: arm.count("+") == 0)
    assert found.split.whole is None
    figure = assert_legible(split_pictures(found)[0])
    assert all(begin == 0.0 for begin, _ in bars(figure))
    assert "the target arm was not read" in said(figure)


def test_the_published_claims_leave_a_hatched_remainder() -> None:
    picture = claims_picture(claims(CLAIMS))
    figure = assert_legible(picture)
    names, factors = picture.data["name"].tolist(), picture.data["factor"].tolist()
    assert names == ["K2", "attention", "residual", UNATTRIBUTED, "K3, as claimed"]
    assert factors == pytest.approx([1, 1.16, 1.25, 2.5 / 1.45, 2.5])
    hatched = [patch.get_hatch() for patch in plot(figure).patches]
    assert [bool(hatch) for hatch in hatched] == [False, False, False, True, False]
    assert bars(figure)[-1][1] == pytest.approx(math.log(2.5))
    for piece in ("1.72", "59.4 %", "no public source", "arXiv 2510.26692", "self-cited"):
        assert piece in said(figure)
    assert rounded_digest(picture) == CLAIMED_DIGEST


def test_a_claimed_total_hatches_what_our_parts_leave() -> None:
    waterfall, _ = split_pictures(analysed(factorial(COMPONENTS), claimed=2.5))
    figure = assert_legible(waterfall)
    assert UNATTRIBUTED in waterfall.data["name"].tolist()
    assert sum(bool(patch.get_hatch()) for patch in plot(figure).patches) == 1
    assert waterfall.data["kind"].tolist()[-2:] == ["whole", "whole"]


def test_every_kind_of_bar_at_once_leaves_its_legend_on_the_page() -> None:
    components = (*COMPONENTS, "optimizer")
    found = analysed(
        arms((), *((name,) for name in components), ("attention", "residual", "balancing"), components), 2.5
    )
    figure = assert_legible(split_pictures(found)[0])
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"gain", "loss", "of no single component", "no public source", "95 % interval", "first in"} <= set(shown)


def test_cells_hold_the_interactions_with_their_sign() -> None:
    found = analysed(factorial(COMPONENTS), spread=0.002)
    picture = interactions_picture(found)
    text = said(assert_legible(picture))
    pair = found.split.pairs[0].effect
    assert pair is not None
    assert f"\u25bc {pair.factor:.3f}"[:6] in text
    row = picture.data[(picture.data["first"] == "attention") & (picture.data["second"] == "residual")]
    assert row["log"].item() == pair.log
    assert len(picture.data) == 3 + 3


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_ink_stays_readable_on_every_cell(theme: Theme) -> None:
    def luminance(colour: str) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    for log in (-1.0, -0.5, 0.0, 0.5, 1.0):
        pair = luminance(cell_colour(effect(np.array([log])), 1.0, theme)), luminance(theme.ink)
        assert (max(pair) + 0.05) / (min(pair) + 0.05) >= 4.5


@pytest.mark.parametrize(
    "components", [("a",), (LONG, STRANGE), tuple(f"component {index}" for index in range(7))], ids=["one", "odd", "7"]
)
def test_any_number_of_components_with_any_names(components: tuple[str, ...]) -> None:
    for picture in split_pictures(analysed(factorial(components))):
        assert_legible(picture)
        assert_legible(picture, DARK)
    text = said(assert_legible(interactions_picture(analysed(factorial(components)))))
    assert ("one component" in text) == (len(components) == 1)


def test_intervals_without_an_end_become_arrows() -> None:
    found = analysed(factorial(COMPONENTS[:2]), spread=0.3)
    part = found.split.parts[0]
    open_ended = replace(part, effect=effect(np.concatenate([[part.effect.log], [-np.inf, np.inf] * 20])))
    parts = (open_ended, *found.split.parts[1:])
    (waterfall, _) = split_pictures(replace(found, split=replace(found.split, parts=parts)))
    markers = [line.get_marker() for line in plot(assert_legible(waterfall)).get_lines()]
    assert markers.count("<") == markers.count(">") == 1


def forest_text(analysis: Analysis) -> str:
    return said(assert_legible(forest_picture(analysis)))


def test_the_forest_has_every_arm_and_the_repeat_at_the_bottom(analysis: Analysis) -> None:
    picture = forest_picture(analysis)
    figure = assert_legible(picture)
    assert picture.data["arm"].tolist() == ["k3", "kda", "again"]
    axes = plot(figure)
    assert axes.get_xscale() == "log"
    filled = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in filled] == picture.data["multiplier"].tolist()
    paired = [line.get_xdata()[0] for line in axes.get_lines() if line.get_marker() == "D"]
    assert paired == [arm.paired.value for arm in analysis.arms if arm.paired is not None]
    heights = [line.get_ydata()[0] for line in filled]
    assert heights == sorted(heights)
    text = said(figure)
    assert "A/A: repeats the baseline" in text
    rules = [line.get_ydata()[0] for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert any(heights[-2] < rule < heights[-1] for rule in rules)
    assert [1.0, 1.0] in [list(line.get_xdata()) for line in axes.get_lines()]


def test_the_forest_tells_measured_from_extrapolated_and_names_reasons(analyses: Callable[..., Analysis]) -> None:
    analysis = analyses(unfinished=["kda"])
    further = [
        replace(arm, multiplier=replace(arm.multiplier, beyond=2.0)) if arm.arm == "k3" and arm.multiplier else arm
        for arm in analysis.arms
    ]
    picture = forest_picture(replace(analysis, arms=tuple(further)))
    figure = assert_legible(picture)
    faces = {line.get_markerfacecolor() for line in plot(figure).get_lines() if line.get_marker() == "o"}
    assert faces == {LIGHT.paper, LIGHT.ink}
    text = said(figure)
    assert "extrapolated 2.00x" in text
    assert "no multiplier of kda: no run of this arm finished" in text
    assert picture.data["range"].tolist() == ["extrapolated 2.00x", "", "measured"]


def test_the_forest_shows_m_of_c_where_no_number_holds(analyses: Callable[..., Analysis]) -> None:
    analysis = analyses(steeper=0.01, form="shared_floor")
    along = analysis.arm("k3").multiplier_curve
    assert along is not None
    picture = forest_picture(analysis)
    assert f"m(C) {along.value_G[0]:.2f} to {along.value_G[-1]:.2f}" in said(assert_legible(picture))
    thick = [line for line in plot(picture.draw(LIGHT)).get_lines() if line.get_linewidth() == 4.0]
    assert list(thick[0].get_xdata()) == [along.value_G.min(), along.value_G.max()]


def test_the_forest_ends_an_interval_without_end_in_an_arrow(analysis: Analysis) -> None:
    arm = analysis.arm("k3")
    assert arm.multiplier is not None
    endless = replace(arm, multiplier=replace(arm.multiplier, interval=Interval(0.0, math.inf)))
    figure = assert_legible(forest_picture(replace(analysis, arms=(analysis.arm("k2"), endless))))
    markers = [line.get_marker() for line in plot(figure).get_lines()]
    assert markers.count("<") == markers.count(">") == 1
    assert all(0 < limit < 100 for limit in plot(figure).get_xlim())
    assert "(0.00 to inf)" in said(figure)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_forty_arms_with_any_names(analysis: Analysis, theme: Theme) -> None:
    names = [LONG, STRANGE, "$", *(f"+component_{index}+another_{index}" for index in range(37))]
    many = tuple(replace(analysis.arm("kda"), arm=name) for name in names)
    picture = forest_picture(replace(analysis, arms=(analysis.arm("k2"), *many)))
    assert_legible(picture, theme)
    assert picture.data["arm"].tolist() == names


@pytest.mark.parametrize("case", ["diverged", "one size", "one arm"])
def test_a_forest_with_nothing_to_show_says_so(analyses: Callable[..., Analysis], case: str, tmp_path: Path) -> None:
    made = {
        "diverged": lambda: analyses(unfinished=["k2", "k3", "kda", "again"]),
        "one size": lambda: analyses(num_sizes=1),
        "one arm": lambda: replace(analyses(), arms=(analyses().arm("k2"),)),
    }[case]()
    expected = {"diverged": "no run of this arm finished", "one size": "one size", "one arm": "no arm but k2"}
    picture: Picture = forest_picture(made)
    assert expected[case] in said(assert_legible(picture))
    assert all(path.stat().st_size for path in write(picture, tmp_path))

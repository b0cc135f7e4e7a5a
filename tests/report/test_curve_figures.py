"""Loss against tokens and hours, and residuals: the picture's data against the analysis, what is drawn against both."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.solve import fit
from k3ablate.report.curve_figures import HOURS_NOTE, curve_pictures
from k3ablate.report.pictures import Picture
from k3ablate.report.residual_figures import residual_picture
from k3ablate.report.style import DARK, LIGHT, Theme
from tests.report.overlap import assert_legible, rounded_digest

RUNS = Path(__file__).parents[2] / "analysis" / "results" / "demo" / "runs.csv"
MEASURED = {"loss_vs_tokens": ["arm", "size", "seed", "spent", "loss"], "residuals": ["arm", "size", "seed", "flops"],
            "loss_vs_hours": ["arm", "size", "seed", "spent", "loss"]}  # fmt: skip
DIGESTS = {"loss_vs_tokens": "3e910930e181d1fe", "loss_vs_hours": "1ffd19b605b54d5a", "residuals": "a447faf65515928b"}
AWKWARD = ["<script>alert(1)</script>", "n" * 90, "a_$x$_{b", "你好 Ωμέγα"]


def tabled(num_arms: int = 4, num_sizes: int = 3, num_seeds: int = 2, names: tuple[str, ...] = ()) -> pandas.DataFrame:
    generator = np.random.default_rng(3)
    return pandas.DataFrame([
        {"arm": names[arm] if arm < len(names) else f"arm{arm}", "size": f"s{size}", "seed": seed, "status": "finished",
         "reason": "", "flops": 10.0 ** (13 + size) * (1 + 0.02 * arm), "tokens": 10 ** (6 + size),
         "wall_seconds": 3600.0 * 10**size * (1 + arm), "tokens_trained": 10 ** (6 + size), "attention": f"level{arm}",
         "loss": 30 * (10.0 ** (13 + size) * (1 + arm)) ** -0.09 * np.exp(0.002 * generator.standard_normal())}
        for arm in range(num_arms) for size in range(num_sizes) for seed in range(num_seeds)
    ])  # fmt: skip


def analysed(table: pandas.DataFrame) -> Analysis:
    return analyse(table, str(table["arm"].iloc[0]), None, np.random.default_rng(0), num_draws=40)


def by_name(table: pandas.DataFrame) -> dict[str, Picture]:
    return {picture.name: picture for picture in curve_pictures(analysed(table), table)}


def test_runs_stand_at_their_tokens_and_hours_and_curves_are_fits() -> None:
    table = tabled()
    found = by_name(table)
    assert set(found) == {"loss_vs_tokens", "loss_vs_hours", "residuals"}
    for name, unit, column in (("loss_vs_tokens", 1, "tokens"), ("loss_vs_hours", 3600, "wall_seconds")):
        runs = found[name].data.query("kind == 'run'")
        both = runs.merge(table, on=["arm", "size", "seed"], suffixes=("", "_table"))
        assert len(both) == len(runs) == len(table)
        np.testing.assert_allclose(both["spent"], both[column] / unit)
        np.testing.assert_array_equal(both["loss"], both["loss_table"])
    curve = found["loss_vs_tokens"].data.query("kind == 'curve' and arm == 'arm2'")
    rows = table[table["arm"] == "arm2"]
    expected = fit(rows["tokens"], rows["loss"], "power").predict(curve["spent"].to_numpy(float))
    np.testing.assert_allclose(curve["loss"].to_numpy(float), expected)
    assert not len(found["loss_vs_hours"].data.query("kind == 'curve'"))
    assert HOURS_NOTE in found["loss_vs_hours"].description


def test_what_is_drawn_is_the_data() -> None:
    picture = by_name(tabled())["loss_vs_tokens"]
    axes = assert_legible(picture).axes[0]
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for arm in ("arm0", "arm3"):
        for kind, label in (("run", arm), ("curve", f"_{arm}")):
            rows = picture.data[(picture.data["arm"] == arm) & (picture.data["kind"] == kind)]
            np.testing.assert_array_equal(np.asarray(lines[label].get_xdata(), float), rows["spent"].to_numpy(float))
            np.testing.assert_array_equal(np.asarray(lines[label].get_ydata(), float), rows["loss"].to_numpy(float))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_equal_tokens_have_no_curve_and_the_reason_is_said() -> None:
    table = tabled().assign(tokens=10**6)
    found = by_name(table)["loss_vs_tokens"]
    assert set(found.data["kind"]) == {"run"}
    assert "No curve over tokens for arm0, arm1, arm2, arm3" in found.description


def test_runs_without_their_own_hours_are_left_out_and_listed() -> None:
    table = tabled()
    table.loc[0, "tokens_trained"] = 10**5
    table.loc[1, "wall_seconds"] = np.nan
    data = by_name(table)["loss_vs_hours"].data
    left = data[data["kind"] == "left out"]
    assert list(zip(left["size"], left["seed"], strict=True)) == [("s0", 0), ("s0", 1)]
    assert left["note"].tolist() == [
        "began from a checkpoint of another run, whose hours are not in its own", "no wall_seconds in the table"
    ]  # fmt: skip
    assert len(data[data["kind"] == "run"]) == len(table) - 2


def test_a_table_without_tokens_and_hours_says_so() -> None:
    table = tabled().drop(columns=["wall_seconds", "tokens"])
    for name, picture in by_name(table).items():
        figure = assert_legible(picture)
        if name != "residuals":
            assert any("nothing to show" in text.get_text().replace("\n", " ") for text in figure.axes[0].texts)


def test_residuals_are_of_the_fit_and_clipped_beyond_delta(analysis: Analysis) -> None:
    data = residual_picture(analysis).data
    assert analysis.form is not None
    for arm in analysis.arms:
        rows = data[(data["arm"] == arm.arm) & (data["kind"] == "run")]
        fitted = arm.fits[analysis.form]
        expected = np.array([
            np.log(point.loss) - np.log(fitted.predict([point.compute])[0]) for point in arm.points
        ])  # fmt: skip
        np.testing.assert_allclose(rows["residual"].to_numpy(float), expected, atol=1e-15)
        assert rows["clipped"].mean() == pytest.approx(fitted.clipped_share)


def test_residual_panels_show_band_runs_and_who_is_in_no_fit(analysis: Analysis) -> None:
    picture = residual_picture(analysis)
    figure = assert_legible(picture)
    panels = [axes for axes in figure.axes if axes.get_label() != "feet"]
    assert len(panels) == len(analysis.arms)
    assert analysis.form is not None
    half = 2 * analysis.noise[analysis.form].pooled_sd
    for axes, arm in zip(panels, ["k2", "k3", "kda", "again"], strict=True):
        (band,) = axes.patches
        box = band.get_path().get_extents(band.get_patch_transform())
        assert (box.y0, box.y1) == pytest.approx((-half, half))
        drawn = {str(line.get_label()): line for line in axes.get_lines()}
        for is_clipped in (True, False):
            rows = picture.data[(picture.data["arm"] == arm) & (picture.data["clipped"] == is_clipped)]
            np.testing.assert_array_equal(
                np.asarray(drawn[str(is_clipped)].get_ydata(), float), rows["residual"].to_numpy(float)
            )
    listed = picture.data[picture.data["kind"] == "not in a fit"]
    assert listed["note"].tolist() == ["diverged: loss above 30 at step 12"]
    assert "In no fit: again s2 seed 6: diverged: loss above 30 at step 12" in picture.description


@pytest.mark.parametrize(
    ("num_arms", "num_sizes", "num_seeds", "names", "theme"),
    [
        (1, 3, 1, (), LIGHT), (40, 2, 1, (), LIGHT), (4, 1, 2, (), DARK), (4, 3, 2, tuple(AWKWARD), DARK),
        (2, 2, 1, (), LIGHT),
    ],
)  # fmt: skip
def test_nothing_overlaps(num_arms: int, num_sizes: int, num_seeds: int, names: tuple[str, ...], theme: Theme) -> None:
    for picture in by_name(tabled(num_arms, num_sizes, num_seeds, names)).values():
        assert_legible(picture, theme)


def test_where_no_run_finished_every_picture_says_so(analyses: Callable[..., Analysis]) -> None:
    empty = analyses(unfinished=["k2", "k3", "kda", "again"])
    for picture in curve_pictures(empty, pandas.DataFrame({"arm": [], "size": [], "seed": []})):
        assert any("n" in text.get_text() for text in assert_legible(picture).axes[0].texts)
    assert len(residual_picture(empty).data) == 24
    assert "12 more are in the CSV" in residual_picture(empty).description


def test_the_demo_runs_are_drawn_as_ever() -> None:
    """Digests of what is measured; what is fitted differs by processors in its last digits and is compared above."""
    table = pandas.read_csv(RUNS)
    found = by_name(table)
    measured = {
        name: replace(picture, data=picture.data[picture.data["kind"] == "run"][MEASURED[name]])
        for name, picture in found.items()
    }  # fmt: skip
    assert {name: rounded_digest(picture) for name, picture in measured.items()} == DIGESTS

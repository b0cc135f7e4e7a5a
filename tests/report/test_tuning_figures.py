"""Tuning curves, sweeps at equal compute, laws: data against what was tuned, what is drawn against the data."""

import math
from dataclasses import replace

import numpy as np
import pandas
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.text import Annotation

from k3ablate.config import parse
from k3ablate.report.isoflop_figures import isoflop_pictures
from k3ablate.report.parabolas import parabola
from k3ablate.report.pictures import Picture
from k3ablate.report.style import DARK, LIGHT, Theme
from k3ablate.report.traces import Sweep
from k3ablate.report.tuning_figures import tuning_pictures
from k3ablate.tuned import Law, TunedValues
from k3ablate.tuning.optimum import Axis, optima
from tests.report.overlap import assert_legible

RATE, BATCH, WARM = "training.optimizer.learning_rate", "training.batch_size", "training.warm"
SPACE = {RATE: {"low": 1e-4, "high": 1e-1}, WARM: {"low": 0.0, "high": 0.2, "scale": "linear"},
         BATCH: {"choices": [8, 16]}}  # fmt: skip
FLOPS = {"xs": 1e10, "s": 1e11, "m": 1e12}


def tried(num_trials: int = 14, seed: int = 0, noise: float = 0.0) -> pandas.DataFrame:
    """Trials with their least loss at a rate of 3e-3 and a warm-up of 0.1, and batches of 16 better by 0.5."""
    generator = np.random.default_rng(seed)
    rows = []
    for size in FLOPS:
        for trial in range(num_trials):
            rate, warm = 10 ** generator.uniform(-4, -1), generator.uniform(0, 0.2)
            batch = 16 if trial % 2 else 8
            loss = 2.5 + 0.2 * math.log10(rate / 3e-3) ** 2 + 9 * (warm - 0.1) ** 2 + 0.5 * (batch == 8)
            loss += noise * generator.standard_normal()
            lost = trial == 4
            rows.append({"size": size, "trial": trial, "status": "diverged" if lost else "finished",
                         "loss": np.nan if lost else loss, RATE: rate, WARM: warm, BATCH: batch})  # fmt: skip
    return pandas.DataFrame(rows)


def values(names: list[str], space: dict[str, object] = SPACE, **changed: object) -> TunedValues:
    """As files say it; `changed` is of the learning rate's optimum."""
    rate = {"value": 3e-3, "low": 2e-3, "high": 4e-3, "is_from_curve": True} | changed
    paths = {RATE: rate, WARM: {"value": 0.1, "note": "the curve's curvature is not told from zero"},
             BATCH: {"value": 16, "is_at_edge": True, "note": "a choice: that of the best trial"}}  # fmt: skip
    arm = {"experiment": "x", "setting": "d", "corpus": "c", "seed": 0,
           "tuning": {"trials": 14, "sizes": list(FLOPS), "space": space},
           "sizes": {size: {"baseline_flops": flops, "trials": {"finished": 13}, "best_loss": 2.51, "curve_loss": 2.5,
                            "space": space, "paths": {path: paths[path] for path in space}}
                     for size, flops in FLOPS.items()}}  # fmt: skip
    law = {"coefficient": 3.0, "exponent": -0.3, "sizes": list(FLOPS), "smallest": 1e10, "largest": 1e12}
    tree = {"experiment": "x", "tuned": {name: {**arm, "arm": name} for name in names}, "laws": {names[0]: {RATE: law}}}
    return parse(TunedValues, tree, source="test")


def pictured(names: list[str], table: pandas.DataFrame, **changed: object) -> dict[str, Picture]:
    found = tuning_pictures(values(names, **changed), dict.fromkeys(names, table), names)  # type: ignore[arg-type]
    return {picture.name: picture for picture in found}


def panels(picture: Picture, theme: Theme = LIGHT) -> list[Axes]:
    return [axes for axes in assert_legible(picture, theme).axes if axes.get_label() != "feet"]


def test_a_parabola_is_the_one_whose_vertex_is_the_optimum() -> None:
    generator = np.random.default_rng(1)
    place_NA = generator.uniform(size=(20, 2))
    loss_N = 3 + (place_NA[:, 0] - 0.4) ** 2 + 2 * (place_NA[:, 1] - 0.6) ** 2 + 0.01 * generator.standard_normal(20)
    for along, best in enumerate(optima([Axis(0, 1, "linear")] * 2, place_NA, loss_N)):
        curve = parabola(place_NA, loss_N, along)
        assert curve is not None
        fine = np.polynomial.Polynomial.fit(curve.place_K, curve.loss_K, 2)
        assert float(fine.deriv().roots()[0]) == pytest.approx(best.value)
        assert float(fine(best.value)) == pytest.approx(best.loss)
        assert (curve.place_K[0], curve.place_K[-1]) == pytest.approx(
            (place_NA[:, along].min(), place_NA[:, along].max())
        )


@pytest.mark.parametrize("places", [[0.1, 0.2], [0.1, 0.1, 0.2, 0.2], [0.3] * 5])
def test_too_few_places_have_no_parabola(places: list[float]) -> None:
    assert parabola(np.array(places)[:, None], np.arange(float(len(places)))) is None


def test_trials_optima_and_curves_are_those_of_the_files() -> None:
    table = tried()
    found = pictured(["k2", "k3"], table)
    assert list(found) == [
        "tuning_training_optimizer_learning_rate", "tuning_law_training_optimizer_learning_rate",
        "tuning_training_warm", "tuning_law_training_warm", "tuning_training_batch_size",
    ]  # fmt: skip
    data = found["tuning_training_optimizer_learning_rate"].data.query("arm == 'k3' and size == 's'")
    rows = table[table["size"] == "s"]
    both = data[data["kind"].isin(["trial", "diverged"])]
    np.testing.assert_array_equal(both["value"].to_numpy(float), rows[RATE])
    np.testing.assert_array_equal(both["loss"].to_numpy(float), rows["loss"])
    assert (both["kind"] == "diverged").sum() == 1
    (best,) = data[data["kind"] == "optimum"].to_dict("records")
    assert (best["value"], best["low"], best["high"], best["loss"]) == (3e-3, 2e-3, 4e-3, 2.5)
    curve = data[data["kind"] == "curve"]
    # through trials with the best one's batch, which have their least loss where it was planted
    assert curve["value"].iloc[int(curve["loss"].argmin())] == pytest.approx(3e-3, rel=0.15)
    assert float(curve["loss"].min()) == pytest.approx(2.5, abs=1e-3)
    warm = found["tuning_training_warm"].data
    assert set(warm[warm["kind"] == "best trial"]["note"]) == {
        "optimum not claimed: the curve's curvature is not told from zero"
    }
    batch = found["tuning_training_batch_size"].data
    assert set(batch["value"]) == {0.0, 1.0}
    assert "curve" not in set(batch["kind"])


def test_what_is_drawn_is_the_data_and_what_diverged_is_at_the_top() -> None:
    picture = pictured(["k2", "k3"], tried())["tuning_training_optimizer_learning_rate"]
    for axes, arm in zip(panels(picture), ["k2", "k3"], strict=True):
        data = picture.data[picture.data["arm"] == arm]
        lines = axes.get_lines()
        top = axes.get_ylim()[1]
        shown = np.concatenate([np.asarray(line.get_ydata(), float) for line in lines[::5]])
        expected = data[(data["kind"] == "trial") & (data["loss"].astype(float) <= top)]["loss"]
        assert set(expected) <= {value for line in lines for value in np.asarray(line.get_ydata(), float)}
        ticks = [line for line in lines if line.get_marker() == "|"]
        assert sum(len(np.asarray(line.get_xdata())) for line in ticks) == 3
        arrows = [line for line in lines if line.get_marker() == "^" and line.get_transform() != axes.transData]
        above = data[(data["kind"] == "trial") & (data["loss"].astype(float) > top)]
        assert sum(len(np.asarray(line.get_xdata())) for line in arrows) == len(above) > 0
        claimed = [line for line in lines if line.get_gid() == "claimed"]
        assert [np.asarray(line.get_xdata(), float).tolist() for line in claimed] == [[3e-3]] * 3
        assert len(shown)


def test_an_open_end_has_an_arrow_and_an_edge_is_told() -> None:
    picture = pictured(["k2"], tried(), high=None)["tuning_training_optimizer_learning_rate"]
    (axes,) = panels(picture)
    arrows = [text for text in axes.texts if isinstance(text, Annotation)]
    assert [(arrow.xy, arrow.xyann[0] > 0) for arrow in arrows] == [((3e-3, 2.5), True)] * 3
    edge = pictured(["k2"], tried(), is_from_curve=False, is_at_edge=True, low=None, high=None, note="above all")
    assert "k2 xs, k2 s, k2 m: optimum not claimed: at the edge of its range; above all" in (
        edge["tuning_training_optimizer_learning_rate"].description
    )


def test_reach_leaves_trials_far_from_the_best_one_out_of_the_curve() -> None:
    table = tried(40)
    found = values(["k2"], {RATE: SPACE[RATE]})
    near = found.tuned["k2"].model_copy(update={"tuning": found.tuned["k2"].tuning.model_copy(update={"reach": 0.2})})
    (picture, _) = tuning_pictures(found.model_copy(update={"tuned": {"k2": near}}), {"k2": table}, ["k2"])
    curve = picture.data.query("kind == 'curve' and size == 'xs'")["value"].astype(float)
    rows = table[(table["size"] == "xs") & table["loss"].notna()]
    best = rows[RATE].iloc[int(rows["loss"].argmin())]
    inside = rows[RATE][np.abs(np.log(rows[RATE] / best)) <= 0.2 * math.log(1e3)]
    assert (curve.min(), curve.max()) == pytest.approx((inside.min(), inside.max()))
    assert len(inside) < len(rows)


def test_laws_are_lines_through_what_was_tuned() -> None:
    picture = pictured(["k2", "k3"], tried())["tuning_law_training_optimizer_learning_rate"]
    law = picture.data[picture.data["kind"] == "law"]
    np.testing.assert_allclose(law["value"].astype(float), 3 * law["flops"].astype(float) ** -0.3)
    assert (law["flops"].min(), law["flops"].max()) == pytest.approx((1e10, 1e12))
    assert "k2: goes as FLOPs^-0.3." in picture.description
    assert "k3: no law" in picture.description
    first, second = panels(picture)
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    assert [len(axes.get_lines()) for axes in (first, second)] == [3, 4]


def test_the_band_is_the_interval_of_the_law() -> None:
    law = Law(coefficient=1.0, exponent=0.1, exponent_low=0.05, exponent_high=0.15, centre=3e12, spread=1.0,
              sizes=("1", "2", "3"), smallest=1e12, largest=1e13)  # fmt: skip
    _, picture = isoflop_pictures([swept("k2", flops) for flops in (1e12, 3e12, 1e13)], {"k2": law}, "k2")
    rows = picture.data[picture.data["kind"] == "law"]
    told = np.array([law.interval(flops) for flops in rows["flops"]])
    np.testing.assert_array_equal(rows[["low", "high"]].astype(float), told)
    (axes,) = panels(picture)
    band = next(one for one in axes.collections if isinstance(one, PolyCollection))
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((told.min(), told.max()))


def test_a_law_of_which_nothing_is_known_leaves_the_optima_room() -> None:
    law = Law(coefficient=1.0, exponent=0.1, exponent_low=-1e3, exponent_high=1e3, centre=3e12, spread=1.0,
              sizes=("1", "2", "3"), smallest=1e12, largest=1e13)  # fmt: skip
    _, picture = isoflop_pictures([swept("k2", flops) for flops in (1e12, 3e12, 1e13)], {"k2": law}, "k2")
    (axes,) = panels(picture)
    assert axes.get_ylim()[0] > 1
    assert axes.get_ylim()[1] < 200
    assert np.isinf(picture.data["high"].astype(float)).any()


def test_arms_without_their_table_of_trials_keep_their_optimum() -> None:
    found = tuning_pictures(values(["k2", "gone"]), {"k2": tried()}, ["k2"])
    assert set(found[0].data.query("arm == 'gone'")["kind"]) == {"optimum"}
    for picture in found:
        assert_legible(picture)


def swept(arm: str, flops: float, is_claimed: bool = True) -> Sweep:
    ratios = tuple(20 * (flops / 1e12) ** 0.1 * 2.0**step for step in (-2, -1, 0, 1, 2))
    losses = tuple(3 - 0.1 * math.log10(flops / 1e12) + 0.02 * step**2 for step in (-2, -1, 0, 1, 2))
    low, high = (15.0, 30.0) if is_claimed else (None, None)
    return Sweep(arm, flops, ("a", "b", "c", "d", "e"), ratios, losses, ratios[2], losses[2], is_claimed, low, high,
                 "" if is_claimed else "the curve has no minimum")  # fmt: skip


def test_sweeps_are_curves_by_budget_with_their_minima() -> None:
    sweeps = [swept("k3", 1e12), swept("k2", 1e12), swept("k2", 1e13, is_claimed=False)]
    law = Law(coefficient=1.0, exponent=0.1, sizes=("1e12", "1e13"), smallest=1e12, largest=1e13)
    picture, laws = isoflop_pictures(sweeps, {"k2": law}, "k2")
    one = picture.data.query("arm == 'k2' and flops == 1e12")
    np.testing.assert_array_equal(one[one["kind"] == "run"]["tokens_per_parameter"], sweeps[1].ratios)
    curve = one[one["kind"] == "curve"]
    assert curve["tokens_per_parameter"].iloc[int(curve["loss"].argmin())] == pytest.approx(20, rel=0.05)
    other = picture.data.query("arm == 'k2' and flops == 1e13")
    assert set(other["kind"]) == {"run", "curve, not claimed", "best run"}
    assert "k2 1e+13 FLOPs: not claimed: the curve has no minimum" in picture.description
    first, second = panels(picture)
    dotted = [line.get_linestyle() for line in first.get_lines() if line.get_gid() == "curve, not claimed"]
    assert ":" in dotted
    claimed = [line for line in first.get_lines() if line.get_gid() == "claimed"]
    assert [np.asarray(line.get_xdata(), float).tolist() for line in claimed] == [[20.0], []]
    assert laws.data["kind"].tolist() == ["optimum", "best run", "optimum", *["law"] * 30]
    assert isoflop_pictures([], {}, "k2") == []
    assert len(isoflop_pictures([swept("k2", 1e12)], {}, "k2")) == 1
    assert second.get_shared_y_axes().joined(first, second)


@pytest.mark.parametrize(
    ("names", "theme"),
    [
        (["k2"], LIGHT), (["<i>&", "n" * 90, "a_$x$_{b", "你好"], DARK),
        ([f"arm{number}" for number in range(40)], LIGHT),
    ],
)  # fmt: skip
def test_nothing_overlaps(names: list[str], theme: Theme) -> None:
    space = {RATE: SPACE[RATE]} if len(names) > 4 else SPACE
    table = tried(8)
    for picture in tuning_pictures(values(names, space), dict.fromkeys(names, table), names):
        assert_legible(picture, theme)
    sweeps = [swept(name, flops, is_claimed=flops < 3e12) for name in names for flops in (1e12, 1e13)]
    for picture in isoflop_pictures(sweeps, {}, names[0]):
        assert_legible(picture, theme)


def test_one_run_and_a_study_without_spread_are_drawn() -> None:
    one = replace(swept("k2", 1e12, is_claimed=False), sizes=("a",), ratios=(3.0,), losses=(2.0,), value=3.0, loss=2.0)
    for picture in isoflop_pictures([one], {}, "k2"):
        assert_legible(picture)
    table = tried().assign(loss=np.nan, status="diverged")
    for picture in tuning_pictures(values(["k2"]), {"k2": table}, ["k2"]):
        assert_legible(picture)

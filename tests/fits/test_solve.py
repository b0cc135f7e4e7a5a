"""Published curves, planted curves, traps of the solver, and what it refuses."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import optimize

from k3ablate.config import InputError
from k3ablate.fits.forms import CURVES, POWER, POWER_FLOOR, form_named
from k3ablate.fits.minimise import huber
from k3ablate.fits.solve import LEAST_ABSOLUTE, LEAST_SQUARES, fit

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
COMPUTE = np.geomspace(1, 100, 7)
PLANTED = {"power": {"A": 2.3, "a": 0.055}, "power_floor": {"E": 1.4, "A": 0.9, "a": 0.16}}


def kimi_linear(series: str) -> pandas.DataFrame:
    points = pandas.read_csv(PUBLISHED / "kimi_linear_figure5.csv")
    return points[points["series"] == series]


@pytest.mark.parametrize(
    ("series", "delta", "coefficient", "exponent"),
    [
        ("MLA", LEAST_SQUARES, 2.3085, 0.0534),
        ("Kimi Linear", LEAST_SQUARES, 2.2874, 0.0525),
        ("MLA", 1e-3, 2.3127, 0.0540),
        ("Kimi Linear", 1e-3, 2.2909, 0.0530),
    ],
)
def test_published_points_give_the_known_curves(series: str, delta: float, coefficient: float, exponent: float) -> None:
    points = kimi_linear(series)
    fitted = fit(points["pflop_s_days"], points["loss"], "power", delta)
    assert round(fitted.values["A"], 4) == coefficient
    assert round(fitted.values["a"], 4) == exponent
    assert fitted.converged_share == 1.0
    assert fitted.x_range == (points["pflop_s_days"].min(), points["pflop_s_days"].max())


def test_markers_without_a_loss_axis_are_refused() -> None:
    """Figure 7 of the K3 report has no numbers on its loss axis: heights in ticks go below zero."""
    markers = pandas.read_csv(PUBLISHED / "k3_figure7.csv")
    k3 = markers[markers["series"] == "K3"]
    with pytest.raises(InputError, match=r"loss: point 4 is -0.14378, and a logarithm is taken"):
        fit(k3["flops"], k3["loss_ticks"], "power")


def test_least_squares_equals_the_closed_form() -> None:
    points = kimi_linear("MLA")
    slope, intercept = np.polyfit(np.log(points["pflop_s_days"]), np.log(points["loss"]), 1)
    fitted = fit(points["pflop_s_days"], points["loss"], "power", LEAST_SQUARES)
    assert fitted.values["a"] == pytest.approx(-slope, rel=1e-9)
    assert fitted.values["A"] == pytest.approx(np.exp(intercept), rel=1e-9)


@pytest.mark.parametrize(
    ("form", "delta"), [(form, delta) for form in CURVES for delta in (1e-3, LEAST_SQUARES, LEAST_ABSOLUTE)]
)
def test_planted_curves_come_back(form: str, delta: float) -> None:
    loss = form_named(form).predict(PLANTED[form], COMPUTE)
    fitted = fit(COMPUTE, loss, form, delta)
    assert fitted.values == pytest.approx(PLANTED[form], rel=1e-5)
    assert fitted.objective < (1e-14 if delta else 1e-9)
    assert fitted.at_bounds == ()
    assert fitted.compute_at(float(loss[2])) == pytest.approx(COMPUTE[2], rel=1e-6)
    np.testing.assert_allclose(fitted.predict(COMPUTE), loss, rtol=1e-7)


def test_unit_of_compute_changes_only_the_coefficient() -> None:
    loss = kimi_linear("MLA")["loss"]
    days = kimi_linear("MLA")["pflop_s_days"]
    by_days, by_flops = fit(days, loss, "power"), fit(days * 8.64e19, loss, "power")
    assert by_flops.values["a"] == pytest.approx(by_days.values["a"], rel=1e-8)
    assert by_flops.objective == pytest.approx(by_days.objective, rel=1e-8)
    assert by_flops.compute_at(2.1) / 8.64e19 == pytest.approx(by_days.compute_at(2.1), rel=1e-8)


def test_one_outlier_moves_the_robust_curve_little() -> None:
    loss = POWER.predict(PLANTED["power"], COMPUTE)
    spoiled = loss.copy()
    spoiled[3] += 0.1
    robust, squares = fit(COMPUTE, spoiled, "power"), fit(COMPUTE, spoiled, "power", LEAST_SQUARES)
    assert robust.predict(10.0) == pytest.approx(loss[3], rel=1e-3)
    assert abs(squares.predict(10.0) - loss[3]) > 0.01
    assert robust.clipped_share == pytest.approx(1 / 7)


def test_no_general_solver_gets_below_the_minimum() -> None:
    generator = np.random.default_rng(5)
    loss = POWER_FLOOR.predict(PLANTED["power_floor"], COMPUTE) * np.exp(0.004 * generator.standard_normal(7))

    def objective(parameters: np.ndarray) -> float:
        prediction = parameters[0] + np.exp(parameters[1]) * COMPUTE ** -parameters[2]
        return float(huber(np.log(loss) - np.log(np.maximum(prediction, 1e-9)), 1e-3).sum())

    fitted = fit(COMPUTE, loss, "power_floor")
    found = [fitted.values["E"], np.log(fitted.values["A"]), fitted.values["a"]]
    assert objective(np.array(found)) == pytest.approx(fitted.objective, rel=1e-9)
    for start in (found, [0.5, 0.0, 0.1], [1.0, 0.0, 0.1], [1.5, 0.0, 0.2]):
        reached = optimize.minimize(objective, start, method="Nelder-Mead", options={"maxfev": 4000, "fatol": 1e-14})
        assert fitted.objective <= reached.fun * (1 + 1e-6)


def test_gradient_equals_finite_differences() -> None:
    theta = np.array([[0.4, -0.5, 0.2]])
    x = np.log(COMPUTE)[:, None] - np.log(COMPUTE).mean()
    _, gradient = POWER_FLOOR.log_prediction(theta, x)
    for index in range(3):
        step = np.zeros((1, 3))
        step[0, index] = 1e-6
        above, below = (POWER_FLOOR.log_prediction(theta + sign * step, x)[0] for sign in (1, -1))
        np.testing.assert_allclose(gradient[..., index], (above - below) / 2e-6, rtol=1e-7)


def test_two_seeds_per_size_have_one_answer() -> None:
    """Between two seeds the Huber sum is flat; the tie goes to least squares, in any order of points."""
    compute = np.repeat([1.0, 3.0, 10.0], 2)
    loss = POWER.predict(PLANTED["power"], compute) * np.exp(np.tile([-0.01, 0.01], 3))
    forward, backward = fit(compute, loss, "power"), fit(compute[::-1], loss[::-1], "power")
    assert forward.values == pytest.approx(backward.values, rel=1e-6)
    assert forward.values == pytest.approx(PLANTED["power"], rel=1e-5)


def test_a_floor_that_is_not_there_is_a_fit_at_a_bound() -> None:
    bent = np.exp(0.8 - 0.05 * np.log(COMPUTE) - 0.01 * np.log(COMPUTE) ** 2)
    fitted = fit(COMPUTE, bent, "power_floor")
    assert fitted.at_bounds == ("E",)
    assert any("bound" in warning for warning in fitted.warnings)


def test_two_sizes_fit_with_a_warning() -> None:
    fitted = fit([1.0, 1.0, 10.0, 10.0], [2.3, 2.31, 2.0, 2.01], "power")
    assert any("nothing checks its shape" in warning for warning in fitted.warnings)


def test_no_compute_reaches_a_loss_below_the_floor() -> None:
    fitted = fit(COMPUTE, POWER_FLOOR.predict(PLANTED["power_floor"], COMPUTE), "power_floor")
    with pytest.raises(InputError, match=r"loss 1.3: no compute reaches it.*ask above E = 1.4"):
        fitted.compute_at(1.3)


@pytest.mark.parametrize(
    ("compute", "loss", "form", "message"),
    [
        ([1, 10], [2.3, 2.0], "power", "2 points for 2 free parameters; add sizes or seeds"),
        ([5, 5, 5], [2.3, 2.2, 2.1], "power", "one size, no curve"),
        ([1, 3, 9], [2.3, 2.1, 2.0], "power_floor", "3 points for 3 free parameters"),
        ([1, 1, 3, 3, 9, 9], [2.3, 2.3, 2.1, 2.1, 2, 2], "power_floor", "undetermined: 3 different compute values"),
        ([1, 3, 9], [2.3, 0.0, 2.0], "power", "loss: point 1 is 0.0, and a logarithm is taken"),
        ([1, 3, 9], [2.3, -1.0, 2.0], "power", "loss: point 1 is -1.0"),
        ([1, 3, 9], [2.3, float("nan"), 2.0], "power", "loss: point 1 is nan"),
        ([1, float("inf"), 9], [2.3, 2.1, 2.0], "power", "compute: point 1 is inf"),
        ([1, 3], [2.3, 2.1, 2.0], "power", "compute has 2 values and loss 3"),
        ([1, 3, 9], [2.3, 2.1, 2.0], "cubic", "unknown form 'cubic'; write one of power, power_floor, chinchilla"),
    ],
)
def test_refusals_teach(compute: list[float], loss: list[float], form: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(compute, loss, form)


@pytest.mark.parametrize("delta", [-1.0, float("nan")])
def test_a_delta_below_nothing_is_refused(delta: float) -> None:
    with pytest.raises(InputError, match="delta: found"):
        fit([1, 3, 9], [2.3, 2.1, 2.0], "power", delta)

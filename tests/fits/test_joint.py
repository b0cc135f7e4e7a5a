"""Curves of all arms at once: planted curves, single arms as the plain twin, no general solver below the minimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from k3ablate.config import InputError
from k3ablate.fits.joint import NUM_FLOORS, Joint, JointForm, fit_joint
from k3ablate.fits.minimise import huber
from k3ablate.fits.solve import LEAST_SQUARES, fit

E, A, EXPONENT = 1.4, 0.9, 0.16
Columns = tuple[list[np.ndarray], list[np.ndarray]]


def planted(
    multipliers: list[float], exponents: list[float] | None = None, floor: float = E, deviation: float = 0.0
) -> Columns:
    """Arms of unequal sizes and ranges: arm k has 5 + k % 3 points."""
    generator = np.random.default_rng(3)
    compute = [np.geomspace(1 + index % 2, 100, 5 + index % 3) for index in range(len(multipliers))]
    loss = []
    for index, (multiplier, compute_N) in enumerate(zip(multipliers, compute, strict=True)):
        exponent = exponents[index] if exponents else EXPONENT
        noise_N = deviation * generator.standard_normal(len(compute_N))
        loss.append((floor + A * (multiplier * compute_N) ** -exponent) * np.exp(noise_N))
    return compute, loss


def multipliers_of(joint: Joint) -> np.ndarray:
    curves = joint.curves()
    return np.array([(curves[0]["A"][0] / curve["A"][0]) ** (1 / curve["a"][0]) for curve in curves])


@pytest.mark.parametrize("num_arms", [2, 5, 20])
@pytest.mark.parametrize("delta", [1e-3, LEAST_SQUARES])
@pytest.mark.parametrize("floor", [None, E])
def test_planted_parallel_curves_come_back(num_arms: int, delta: float, floor: float | None) -> None:
    multipliers = list(np.linspace(1.0, 2.5, num_arms))
    joint = fit_joint(*planted(multipliers), True, floor, delta)
    np.testing.assert_allclose(multipliers_of(joint), multipliers, rtol=1e-5)
    for curve in joint.curves():
        assert curve["E"][0] == pytest.approx(E, rel=1e-5)
        assert curve["a"][0] == pytest.approx(EXPONENT, rel=1e-4)
    assert joint.objective < 1e-14
    assert joint.converged_share > 0.9
    assert {joint.at_bounds(arm) for arm in range(num_arms)} == {()}
    assert joint.form.num_free == num_arms + 1 + (floor is None)


def test_planted_own_exponents_with_a_common_floor_come_back() -> None:
    exponents = [0.12, 0.16, 0.2]
    joint = fit_joint(*planted([1.0, 1.0, 1.0], exponents), False, None, LEAST_SQUARES)
    assert [curve["a"][0] for curve in joint.curves()] == pytest.approx(exponents, rel=1e-5)
    assert [curve["E"][0] for curve in joint.curves()] == pytest.approx([E] * 3, rel=1e-6)


@pytest.mark.parametrize(("floor", "form"), [(0.0, "power"), (None, "power_floor")])
@pytest.mark.parametrize("delta", [1e-3, LEAST_SQUARES])
def test_one_arm_alone_is_the_fit_of_one_arm(floor: float | None, form: str, delta: float) -> None:
    compute, loss = planted([1.0], deviation=0.0005)
    alone = fit(compute[0], loss[0], form, delta)
    joint = fit_joint(compute, loss, True, floor, delta)
    assert joint.objective == pytest.approx(alone.objective, rel=1e-7)
    for name, value in alone.values.items():
        assert joint.curves()[0][name][0] == pytest.approx(value, rel=1e-4)


def test_own_exponents_without_a_floor_are_the_fits_of_single_arms() -> None:
    compute, loss = planted([1.0, 1.5, 2.0], deviation=0.003, floor=0.0)
    joint = fit_joint(compute, loss, False, 0.0, 1e-3)
    alone = [fit(*pair, "power") for pair in zip(compute, loss, strict=True)]
    assert joint.objective == pytest.approx(sum(one.objective for one in alone), rel=1e-6)
    assert [curve["a"][0] for curve in joint.curves()] == pytest.approx([one.values["a"] for one in alone], rel=1e-5)


def test_a_common_exponent_without_a_floor_is_linear_regression() -> None:
    compute, loss = planted([1.0, 1.5, 2.0], deviation=0.003, floor=0.0)
    arm = np.repeat(np.arange(3), [len(part) for part in compute])
    design = np.column_stack([arm == 0, arm == 1, arm == 2, np.log(np.concatenate(compute))]).astype(float)
    coefficients, squares, _, _ = np.linalg.lstsq(design, np.log(np.concatenate(loss)), rcond=None)
    joint = fit_joint(compute, loss, True, 0.0, LEAST_SQUARES)
    assert 2 * joint.objective == pytest.approx(float(squares[0]), rel=1e-9)
    assert joint.curves()[0]["a"][0] == pytest.approx(-coefficients[3], rel=1e-8)
    assert [np.log(curve["A"][0]) for curve in joint.curves()] == pytest.approx(list(coefficients[:3]), rel=1e-8)


@pytest.mark.parametrize("common_exponent", [True, False])
def test_no_general_solver_gets_below_the_minimum(common_exponent: bool) -> None:
    compute, loss = planted([1.0, 1.6], deviation=0.003)
    joint = fit_joint(compute, loss, common_exponent, None, 1e-3)

    def objective(parameters: np.ndarray) -> float:
        exponents = [parameters[3], parameters[3 if common_exponent else 4]]
        terms = [
            huber(np.log(loss_N) - np.log(np.maximum(parameters[0] + np.exp(log) * compute_N**-a, 1e-9)), 1e-3).sum()
            for compute_N, loss_N, log, a in zip(compute, loss, parameters[1:3], exponents, strict=True)
        ]
        return float(sum(terms))

    curves = joint.curves()
    found = [curves[0]["E"][0], *(np.log(curve["A"][0]) for curve in curves), curves[0]["a"][0]]
    found += [] if common_exponent else [curves[1]["a"][0]]
    assert objective(np.array(found)) == pytest.approx(joint.objective, rel=1e-7)
    for floor in (found[0], 0.5, 1.2):
        start = np.array([floor, *found[1:]])
        reached = optimize.minimize(objective, start, method="Nelder-Mead", options={"maxfev": 6000, "fatol": 1e-14})
        assert joint.objective <= reached.fun * (1 + 1e-6)


@pytest.mark.parametrize("common_exponent", [True, False])
def test_derivative_equals_finite_differences(common_exponent: bool) -> None:
    form = JointForm((3, 2), common_exponent)
    theta = np.array([[0.4, -0.5, -0.7, 0.2, 0.25][: form.num_parameters]])
    x = np.array([[-1.0], [0.2], [0.9], [-0.4], [0.6]])
    _, derivative = form.log_prediction(theta, x)
    for index in range(form.num_parameters):
        step = np.zeros_like(theta)
        step[0, index] = 1e-6
        above, below = (form.log_prediction(theta + sign * step, x)[0] for sign in (1, -1))
        np.testing.assert_allclose(derivative[..., index], (above - below) / 2e-6, rtol=1e-7, atol=1e-12)


@settings(max_examples=8, deadline=None)
@given(unit=st.floats(1e-3, 1e20), loss_unit=st.floats(0.1, 10), order=st.permutations(range(3)))
def test_units_and_the_order_of_arms_change_no_multiplier(unit: float, loss_unit: float, order: list[int]) -> None:
    compute, loss = planted([1.0, 1.5, 2.2], deviation=0.001)
    first = fit_joint(compute, loss, True, None, 1e-3)
    other = fit_joint([compute[k] * unit for k in order], [loss[k] * loss_unit for k in order], True, None, 1e-3)
    log_A = np.array([np.log(curve["A"][0]) for curve in other.curves()]) / other.curves()[0]["a"][0]
    assert other.objective == pytest.approx(first.objective, rel=1e-6)
    expected = np.log(multipliers_of(first))[list(order)]
    np.testing.assert_allclose(log_A[order.index(0)] - log_A, expected, atol=1e-4)


def test_draws_without_noise_return_the_curves_and_a_given_floor_stays() -> None:
    compute, loss = planted([1.0, 1.7])
    for floor in (None, 0.7):
        joint = fit_joint(compute, loss, True, floor, 1e-3)
        drawn = joint.refit(np.zeros((3, sum(map(len, compute)))))
        for curve, draws in zip(joint.curves(), drawn, strict=True):
            for name, value in curve.items():
                np.testing.assert_allclose(draws[name], value[0], rtol=1e-5)
            assert floor is None or curve["E"][0] == pytest.approx(floor, rel=1e-12)


def test_deviation_over_draws_is_the_textbook_one() -> None:
    """Without a floor least squares is linear regression on an intercept per arm and one slope."""
    compute, loss = planted([1.0, 1.7], floor=0.0)
    joint = fit_joint(compute, loss, True, 0.0, LEAST_SQUARES)
    drawn = joint.refit(0.004 * np.random.default_rng(2).standard_normal((3000, sum(map(len, compute)))))
    square = sum(float(((np.log(part) - np.log(part).mean()) ** 2).sum()) for part in compute)
    assert drawn[0]["a"].std() == pytest.approx(0.004 / np.sqrt(square), rel=0.05)
    np.testing.assert_array_equal(drawn[0]["a"], drawn[1]["a"])


def test_an_arm_with_one_size_takes_part_in_the_common_curves() -> None:
    compute, loss = planted([1.0, 1.7])
    joint = fit_joint([compute[0], compute[1][:1]], [loss[0], loss[1][:1]], True, None, LEAST_SQUARES)
    assert multipliers_of(joint)[1] == pytest.approx(1.7, rel=1e-4)


@pytest.mark.parametrize(
    ("floor", "message"),
    [(-0.1, "floor -0.1: write 0 or more"), (1.9, "less than the lowest loss"), (float("nan"), "floor nan: write 0")],
)
def test_floors_that_no_curve_can_have_are_refused(floor: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_joint(*planted([1.0, 1.7]), True, floor, 1e-3)


def test_draws_in_blocks_are_the_draws_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit_joint(*planted([1.0, 1.7, 2.0], deviation=0.002), True, None, LEAST_SQUARES)
    num_points = len(fitted.data.x_NV)
    noise_DN = 0.002 * np.random.default_rng(0).standard_normal((15, num_points))
    at_once = fitted.refit(noise_DN)
    monkeypatch.setattr("k3ablate.fits.joint.HELD", 4 * NUM_FLOORS * num_points)  # four draws
    for one, other in zip(at_once, fitted.refit(noise_DN), strict=True):
        for name, value_D in one.items():
            np.testing.assert_allclose(other[name], value_D, rtol=1e-6)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="4 points of 2 arms for 4 free parameters"):
        fit_joint([np.array([1.0, 9.0])] * 2, [np.array([2.3, 2.0])] * 2, True, None, 1e-3)


def test_floors_that_are_not_there_are_at_a_bound_unless_they_were_given() -> None:
    compute, _ = planted([1.0, 1.7])
    bent = [np.exp(0.8 - 0.05 * np.log(part) - 0.01 * np.log(part) ** 2) for part in compute]
    assert fit_joint(compute, bent, True, None, 1e-3).at_bounds(1) == ("E",)
    assert fit_joint(compute, bent, True, 0.0, 1e-3).at_bounds(1) == ()
    flat = [np.full_like(part, 2.0) for part in compute]
    assert fit_joint(compute, flat, True, 0.0, 1e-3).at_bounds(0) == ("a",)

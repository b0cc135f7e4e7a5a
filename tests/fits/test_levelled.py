"""The coordinates of the search are the same curves, and reach minima where a form's own parameters do not."""

import numpy as np
import pytest
from scipy import optimize

from k3ablate.fits.forms import CHINCHILLA, POWER, POWER_FLOOR, Form
from k3ablate.fits.levelled import Levelled, least
from k3ablate.fits.minimise import Scaled, grid_starts, huber, minimise, scale
from k3ablate.fits.solve import LEAST_SQUARES, fit

FORMS = {"power_floor": POWER_FLOOR, "chinchilla": CHINCHILLA}
THETA = {
    "power_floor": np.array([[0.4, -0.5, 0.2], [0.9, -3.0, 2e-4]]),
    "chinchilla": np.array([[0.4, -0.5, -1.5, 0.2, 0.9], [0.1, 0.2, -4.0, 2e-4, 2.5]]),
}


def inputs(form: Form, num_points: int = 7, decades: float = 2.0) -> np.ndarray:
    columns = [np.random.default_rng(index).uniform(0, decades * np.log(10), num_points)
               for index in range(len(form.variables))]  # fmt: skip
    return np.stack(columns, axis=1) - np.mean(columns, axis=1)


def table(seed: int, num_points: int = 30, deviation: float = 3e-3) -> tuple[np.ndarray, np.ndarray]:
    """A curve with a small exponent over little more than a decade: E, A and a are hardly told apart."""
    generator = np.random.default_rng(seed)
    compute = np.exp(generator.uniform(0, 3, num_points))
    return compute, (1.0 + 2.0 * compute**-0.05) * np.exp(deviation * generator.standard_t(3, num_points))


def searched(compute: np.ndarray, loss: np.ndarray) -> tuple[Scaled, np.ndarray, np.ndarray]:
    data = scale(np.log(compute)[:, None], np.log(loss)[None])
    starts = grid_starts(POWER_FLOOR, data)[0]
    return data, starts, np.repeat(data.y_SN, len(starts), axis=0)


@pytest.mark.parametrize("name", FORMS)
def test_there_and_back_are_the_same_curves(name: str) -> None:
    form, theta = FORMS[name], THETA[name]
    levelled = Levelled(form, 0)
    there = levelled.forth(theta)
    np.testing.assert_allclose(levelled.back(there), theta, atol=1e-9)
    x = inputs(form)
    np.testing.assert_allclose(levelled.log_prediction(there, x)[0], form.log_prediction(theta, x)[0], rtol=1e-9)
    np.testing.assert_allclose(levelled.log_prediction(there, 0 * x)[0], np.log(there[:, :1]) + np.zeros(len(x)))


@pytest.mark.parametrize("name", FORMS)
def test_gradients_equal_finite_differences(name: str) -> None:
    levelled, x = Levelled(FORMS[name], 0), inputs(FORMS[name])
    there = levelled.forth(THETA[name])
    _, gradient = levelled.log_prediction(there, x)
    for index in range(there.shape[1]):
        step = np.zeros_like(there)
        step[:, index] = 1e-6
        above, below = (levelled.log_prediction(there + sign * step, x)[0] for sign in (1, -1))
        np.testing.assert_allclose(gradient[..., index], (above - below) / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("delta", [1e-3, LEAST_SQUARES])
@pytest.mark.parametrize("seed", range(6))
def test_no_exponent_has_a_lower_minimum(seed: int, delta: float) -> None:
    """The plain twin: the best floor and coefficient for each exponent of a fine grid, by a general solver."""
    compute, loss = table(seed)
    data, starts, y = searched(compute, loss)
    lowest = least(POWER_FLOOR, y, data.x_NV, starts, delta)[1].min()

    def profile(exponent: float) -> float:
        powers = np.exp(-exponent * data.x_NV[:, 0])
        design = np.stack([np.ones_like(powers), powers], axis=1)

        def objective(coefficients: np.ndarray) -> float:
            prediction = np.maximum(design @ coefficients, 1e-9)
            return float(huber(data.y_SN[0] - np.log(prediction), delta).sum())

        first, _ = optimize.nnls(design, np.exp(data.y_SN[0]))
        options = {"xatol": 1e-9, "fatol": 1e-15, "maxfev": 2000}
        return float(optimize.minimize(objective, first, method="Nelder-Mead", bounds=[(0, None)] * 2,
                                       options=options).fun)  # fmt: skip

    assert lowest <= min(profile(exponent) for exponent in np.geomspace(1e-3, 1.0, 25)) * (1 + 1e-9)


def test_every_start_arrives_where_half_of_them_did_not() -> None:
    """What the coordinates are for: the same starts and number of steps, in the form's own parameters and in these."""
    own, levelled = [], []
    for seed in range(20):
        data, starts, y = searched(*table(seed))
        ends = [search(POWER_FLOOR, y, data.x_NV, starts, 1e-3)[1] for search in (minimise, least)]
        lowest = min(end.min() for end in ends)
        for shares, end in zip((own, levelled), ends, strict=True):
            shares.append(np.mean(end <= lowest * (1 + 1e-6)))
    assert min(levelled) > 0.99
    assert np.mean(own) < 0.75


def test_a_floor_below_zero_is_none() -> None:
    compute = np.geomspace(1, 1000, 9)
    loss = -0.5 + 3 * compute**-0.1
    found, plain = fit(compute, loss, "power_floor"), fit(compute, loss, "power")
    assert found.at_bounds == ("E",)
    assert found.values["E"] == 0.0
    assert found.objective == pytest.approx(plain.objective, rel=1e-9)
    assert found.values["a"] == pytest.approx(plain.values["a"], rel=1e-6)


def test_two_powers_without_a_floor_share_the_level() -> None:
    """No start of a general solver, near or far, gets below."""
    points = np.array([(n, d) for n in np.geomspace(1e8, 1e10, 5) for d in np.geomspace(1e9, 1e12, 5)])
    loss = np.log(CHINCHILLA.predict({"E": 0.0, "A": 4.0, "B": 60.0, "alpha": 0.05, "beta": 0.2}, points)) + 1.2
    found = fit(points, loss, "chinchilla")
    assert found.at_bounds == ("E",)
    log = np.log(points) - np.log(points).mean(axis=0)

    def objective(theta: np.ndarray) -> float:
        parts = np.exp(theta[0] - theta[2] * log[:, 0]) + np.exp(theta[1] - theta[3] * log[:, 1])
        return float(huber(np.log(loss) - np.log(parts), 1e-3).sum())

    for start in ([0.0, 0.0, 0.05, 0.1], [0.5, -1.0, 0.02, 0.3], [-1.0, 0.5, 0.1, 0.05]):
        options = {"xatol": 1e-10, "fatol": 1e-16, "maxfev": 8000, "adaptive": True}
        reached = optimize.minimize(objective, start, method="Nelder-Mead", options=options)
        assert found.objective <= reached.fun * (1 + 1e-6)


def test_forms_without_a_floor_are_searched_as_they_are() -> None:
    compute = np.geomspace(1, 100, 7)
    data = scale(np.log(compute)[:, None], np.log(POWER.predict({"A": 2.3, "a": 0.055}, compute))[None])
    starts = grid_starts(POWER, data)[0][:3]
    y = np.repeat(data.y_SN, 3, axis=0)
    np.testing.assert_array_equal(
        least(POWER, y, data.x_NV, starts, 1e-3)[0], minimise(POWER, y, data.x_NV, starts, 1e-3)[0]
    )

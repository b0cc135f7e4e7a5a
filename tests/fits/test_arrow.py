"""Steps of many arms at once against a matrix over all parameters, the plain twin."""

import numpy as np
import pytest

from k3ablate.fits.arrow import Arrow
from k3ablate.fits.joint import JointForm
from k3ablate.fits.minimise import minimise
from k3ablate.fits.normal_equations import Dense
from k3ablate.fits.solve import LEAST_SQUARES

FEW, MANY = (5, 1, 7, 2), (16, 12, 21, 13)  # points of each arm


def points(counts: tuple[int, ...], num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centred inputs with repeated values in no order, losses of parallel curves with noise, and the curves."""
    generator = np.random.default_rng(0)
    x_N = np.concatenate([generator.permutation(np.resize([-1.0, 0.3, 0.9, -0.2], count)) for count in counts])
    theta = np.concatenate([[0.5], np.log(0.5) - 0.1 * np.arange(len(counts)), [0.3]])
    loss_N = theta[0] + np.exp(np.repeat(theta[1:-1], counts) - theta[-1] * x_N)
    return x_N[:, None], np.log(loss_N) + 0.01 * generator.standard_normal((num_rows, len(x_N))), theta


def start_of(form: JointForm, theta: np.ndarray, num_rows: int) -> np.ndarray:
    own = theta if form.common_exponent else np.append(theta[:-1], np.full(len(form.counts), theta[-1]))
    return own + 0.05 * np.random.default_rng(1).standard_normal((num_rows, len(own)))


def arrow_of(form: JointForm) -> Arrow:
    """Every point a cell of its own."""
    return Arrow(form.columns, form.bounds(), form.counts, (1,) * sum(form.counts), form.common_exponent)


@pytest.mark.parametrize("common_exponent", [True, False])
@pytest.mark.parametrize("hold_floor", [True, False])
def test_gradients_and_steps_are_those_of_the_whole_matrix(common_exponent: bool, hold_floor: bool) -> None:
    form, num_rows = JointForm(FEW, common_exponent, hold_floor), 6
    x, _, theta = points(FEW, num_rows)
    theta_SP, generator = start_of(form, theta, num_rows), np.random.default_rng(2)
    weight, factor = generator.uniform(0.1, 1, (num_rows, len(x))), generator.standard_normal((num_rows, len(x)))
    found = []
    for equations in (arrow_of(form), Dense(form)):
        log_loss, derivative = equations.log_prediction(theta_SP, x)
        gradient, matrix = equations.gradient(derivative, factor), equations.matrix(derivative, weight + 0.5)
        held = np.random.default_rng(3).uniform(size=gradient.shape) < 0.3
        held[0] = False  # a row in which all are free
        matrix = matrix + equations.matrix(derivative, weight)
        if not common_exponent:  # two parameters for an arm of one point, as damping makes it solvable
            held[:, 1 + len(FEW) + 1] = True
        if hold_floor:
            held[:, 0] = True
        step = equations.solve(matrix, gradient, held)
        assert np.all(step[held] == 0)
        found.append((log_loss, gradient, step))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("common_exponent", [True, False])
@pytest.mark.parametrize("hold_floor", [True, False])
@pytest.mark.parametrize("delta", [1e-2, LEAST_SQUARES])
def test_minima_are_those_of_the_whole_matrix(common_exponent: bool, hold_floor: bool, delta: float) -> None:
    form, num_rows = JointForm(MANY, common_exponent, hold_floor), 40
    x, y, theta = points(MANY, num_rows)
    start = start_of(form, theta, num_rows)
    start[:, 0] = theta[0]
    (one, objective), (other, plain) = form.minimise(y, x, start, delta), minimise(form, y, x, start, delta)
    np.testing.assert_allclose(objective, plain, rtol=1e-9)
    np.testing.assert_allclose(form.log_loss(one, x), form.log_loss(other, x), rtol=1e-9, atol=1e-9)


def test_large_tables_come_out_as_by_the_whole_matrix() -> None:
    """Twenty arms of unequal sizes with three seeds, with bootstrap draws."""
    generator, counts = np.random.default_rng(4), tuple(3 * (4 + arm % 3) for arm in range(20))
    x = np.concatenate([np.repeat(np.linspace(-3, 3, count // 3), 3) for count in counts])[:, None]
    theta = np.concatenate([[0.6], np.log(0.4) - 0.01 * np.arange(20), [0.25]])
    form = JointForm(counts, True)
    y = form.log_loss(theta[None], x) + 0.001 * generator.standard_normal((20, len(x)))
    start = np.repeat(theta[None], 20, axis=0)
    for delta in (1e-3, LEAST_SQUARES):
        one, other = form.minimise(y, x, start, delta)[0], minimise(form, y, x, start, delta)[0]
        np.testing.assert_allclose(one, other, rtol=1e-9)

"""The Chinchilla points: the known minimum from any start, the traps that miss it, intervals, and what is refused."""

import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import optimize
from scipy.special import logsumexp

from k3ablate.config import InputError
from k3ablate.fits.forms import CHINCHILLA
from k3ablate.fits.minimise import grid_starts, huber, minimise, scale
from k3ablate.fits.resampling import MIN_POINTS, resample
from k3ablate.fits.solve import LEAST_ABSOLUTE, LEAST_SQUARES, Fit, fit
from k3ablate.fits.uncertainty import refit, residual_noise

TABLE = pandas.read_csv(Path(__file__).parents[2] / "analysis" / "published" / "chinchilla_epoch.csv")
USED = TABLE[TABLE["used_in_fit"] == 1]
INPUTS, LOSS = USED[["params", "tokens"]].to_numpy(dtype=float), USED["loss"].to_numpy()
MINIMUM = 0.0010182740161
NAMES = ("E", "A", "B", "alpha", "beta")
PUBLISHED = dict(zip(NAMES, (1.8172, 482.01, 2085.43, 0.3478, 0.3658), strict=True))  # arXiv 2404.10102
HOFFMANN = [np.log(406.4), np.log(410.7), np.log(1.69), 0.34, 0.28]  # a, b, e, alpha, beta of arXiv 2203.15556
PLANTED = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}
GRID = np.array([(n, d) for n in np.geomspace(1e8, 1e10, 5) for d in np.geomspace(1e9, 1e12, 5)])


@pytest.fixture(scope="module")
def fitted() -> Fit:
    return fit(INPUTS, LOSS, "chinchilla")


def objective(values: dict[str, float]) -> float:
    return float(huber(np.log(LOSS) - np.log(CHINCHILLA.predict(values, INPUTS)), 1e-3).sum())


def rounded(values: dict[str, float], digits: tuple[int, ...]) -> list[float]:
    return [round(values[name], count) for name, count in zip(NAMES, digits, strict=True)]


def test_the_minimum_to_the_last_digit(fitted: Fit) -> None:
    assert round(fitted.objective, 13) == MINIMUM
    assert rounded(fitted.values, (5, 3, 3, 5, 5)) == [1.81722, 477.826, 2143.417, 0.34731, 0.36717]
    assert (fitted.num_points, fitted.converged_share, fitted.at_bounds) == (240, 1.0, ())
    assert fitted.objective == pytest.approx(objective(dict(fitted.values)), rel=1e-12)
    assert fitted.ranges["tokens"] == (INPUTS[:, 1].min(), INPUTS[:, 1].max())


def test_any_seed_of_the_start_design_reaches_the_minimum() -> None:
    found = [fit(INPUTS, LOSS, "chinchilla", generator=np.random.default_rng(seed)) for seed in range(40)]
    reached = [one.objective <= MINIMUM * (1 + 1e-9) and rounded(one.values, (5, 3, 3, 5, 5))[2] == 2143.417
               for one in found]  # fmt: skip
    assert np.mean(reached) >= 0.95
    assert min(one.converged_share for one in found) > 0.5


def test_least_absolute_deviations() -> None:
    found = fit(INPUTS, LOSS, "chinchilla", LEAST_ABSOLUTE)
    assert found.objective == pytest.approx(1.1294947, abs=5e-8)
    assert found.values["A"] == pytest.approx(482.00, abs=0.01)
    assert rounded(found.values, (5, 1, 1, 5, 5)) == [1.81686, 482.0, 2085.4, 0.34781, 0.36585]
    assert found.converged_share > 0.5


def test_least_squares_of_ln_loss_and_of_the_loss() -> None:
    plain = fit(INPUTS, LOSS, "chinchilla", LEAST_SQUARES, residuals="plain")
    assert [round(plain.values[name], 3) for name in ("E",)] == [1.883]
    assert [round(plain.values[name]) for name in ("A", "B")] == [568, 7582]
    squares = np.sum((LOSS - plain.predict(INPUTS)) ** 2)
    assert plain.objective == pytest.approx(squares / 2, rel=1e-9)
    assert objective(dict(plain.values)) == pytest.approx(1.09 * MINIMUM, rel=0.005)
    logarithmic = fit(INPUTS, LOSS, "chinchilla", LEAST_SQUARES)
    reached, _ = optimize.curve_fit(
        lambda x, *theta: np.log(CHINCHILLA.predict(dict(zip(NAMES, theta, strict=True)), x)),
        INPUTS, np.log(LOSS), p0=[PUBLISHED[name] for name in NAMES], maxfev=10_000, xtol=1e-12, ftol=1e-12,
    )  # fmt: skip
    assert [logarithmic.values[name] for name in NAMES] == pytest.approx(reached, rel=1e-3)


def test_the_published_set_is_a_mixture_above_the_minimum(fitted: Fit) -> None:
    """E is that of the Huber fit, the other four those of least absolute deviations."""
    absolute = fit(INPUTS, LOSS, "chinchilla", LEAST_ABSOLUTE)
    assert round(fitted.values["E"], 4) == PUBLISHED["E"] != round(absolute.values["E"], 4)
    for name in ("alpha", "beta"):
        assert round(absolute.values[name], 4) == pytest.approx(PUBLISHED[name], abs=1.1e-4)
    for name in ("A", "B"):
        assert absolute.values[name] == pytest.approx(PUBLISHED[name], rel=1e-4)
    assert round(objective(PUBLISHED), 10) == 0.0010228428
    assert 100 * (objective(PUBLISHED) / fitted.objective - 1) == pytest.approx(0.45, abs=0.005)


def unscaled(parameters: np.ndarray, how: str) -> float:
    """The objective as it is usually written down: nothing centred, nothing scaled, no gradient."""
    a, b, e, alpha, beta = parameters
    parts = [a - alpha * np.log(INPUTS[:, 0]), b - beta * np.log(INPUTS[:, 1]), np.full(len(LOSS), e)]
    terms = huber(np.log(LOSS) - logsumexp(parts, axis=0), 1e-3)
    return float(terms.sum() if how == "sum" else terms.mean())


@pytest.mark.parametrize(
    ("how", "start", "above"),
    [
        ("sum", HOFFMANN, 0.0011633),
        ("mean", [*HOFFMANN[:2], np.log(1.6934), 0.3392, 0.2849], 0.0011720),
        ("sum", [6.0, 6.0, 0.0, 0.3, 0.3], 0.0011883),
    ],
)
def test_one_unscaled_start_barely_moves_and_the_objective_shows_it(
    fitted: Fit, how: str, start: list[float], above: float
) -> None:
    trapped = optimize.minimize(unscaled, start, args=(how,), method="L-BFGS-B")
    assert trapped.success  # which is what makes it a trap
    there = unscaled(trapped.x, "sum")
    assert there == pytest.approx(above, rel=0.003)
    assert there > 1.1 * fitted.objective  # the comparison that shows it
    data = scale(np.log(INPUTS), np.log(LOSS)[None])
    centred = [trapped.x[0] - trapped.x[3] * data.centre_V[0], trapped.x[1] - trapped.x[4] * data.centre_V[1]]
    theta = [np.exp(trapped.x[2] - data.log_scale), *(np.array(centred) - data.log_scale), *trapped.x[3:]]
    _, reached = minimise(CHINCHILLA, data.y_SN, data.x_NV, np.array([theta]), 1e-3)
    assert reached[0] == pytest.approx(MINIMUM, rel=1e-9)  # the same start, scaled and with a gradient


def test_mean_instead_of_sum_is_the_same_fit(fitted: Fit) -> None:
    """Tolerances are on scaled parameters, so that dividing the objective changes nothing."""
    data = scale(np.log(INPUTS), np.log(LOSS)[None])
    starts = grid_starts(CHINCHILLA, data)[0]
    weights = np.full((len(starts), len(LOSS)), 1 / len(LOSS))
    theta, means = minimise(CHINCHILLA, np.repeat(data.y_SN, len(starts), 0), data.x_NV, starts, 1e-3, weights)
    best = means.argmin()
    natural = CHINCHILLA.natural(theta[best : best + 1], data.centre_V, data.log_scale)
    assert means[best] * len(LOSS) == pytest.approx(fitted.objective, rel=1e-9)
    assert {name: float(value[0]) for name, value in natural.items()} == pytest.approx(dict(fitted.values), rel=1e-5)


def test_the_default_start_of_curve_fit_stays_where_it_is(fitted: Fit) -> None:
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("ignore", optimize.OptimizeWarning)
        ones, _ = optimize.curve_fit(
            lambda x, *theta: CHINCHILLA.predict(dict(zip(NAMES, theta, strict=True)), x), INPUTS, LOSS, p0=np.ones(5)
        )
    np.testing.assert_allclose(ones, 1.0, atol=1e-6)
    assert objective(dict(zip(NAMES, ones, strict=True))) > 100 * fitted.objective


def test_resampling_gives_the_known_deviations(fitted: Fit) -> None:
    drawn = resample(fitted, INPUTS, LOSS, np.random.default_rng(0))
    for name, known in {"E": 0.025, "A": 117, "B": 1278, "alpha": 0.0146, "beta": 0.0204}.items():
        assert drawn.values[name].std(ddof=1) == pytest.approx(known, rel=0.15)
        assert drawn.intervals()[name].contains(fitted.values[name])


def test_no_refit_lies_above_its_own_minimum(fitted: Fit) -> None:
    """A sample of the drawings, each fitted again from every start of the grid."""
    drawn = resample(fitted, INPUTS, LOSS, np.random.default_rng(1), num_draws=200)
    same = np.random.default_rng(1).multinomial(len(LOSS), np.full(len(LOSS), 1 / len(LOSS)), 200)
    data = scale(np.log(INPUTS), np.log(LOSS)[None])
    for index in range(0, 200, 10):
        weight = same[index : index + 1].astype(float)
        starts = grid_starts(CHINCHILLA, data, weight)[0]
        repeated = [np.repeat(array, len(starts), axis=0) for array in (data.y_SN, weight)]
        lowest = minimise(CHINCHILLA, repeated[0], data.x_NV, starts, 1e-3, repeated[1])[1].min()
        values = {name: float(value[index]) for name, value in drawn.values.items()}
        terms = huber(np.log(LOSS) - np.log(CHINCHILLA.predict(values, INPUTS)), 1e-3)
        assert (weight * terms).sum() <= lowest * (1 + 1e-6)


def test_resampling_a_small_table_is_refused() -> None:
    loss = CHINCHILLA.predict(PLANTED, GRID)
    message = f"25 points; from fewer than {MIN_POINTS} it gives intervals that hold the truth too seldom"
    with pytest.raises(InputError, match=message):
        resample(fit(GRID, loss, "chinchilla"), GRID, loss, np.random.default_rng(0))


@pytest.mark.parametrize("delta", [1e-3, LEAST_SQUARES, LEAST_ABSOLUTE])
def test_planted_surfaces_come_back(delta: float) -> None:
    loss = CHINCHILLA.predict(PLANTED, GRID)
    found = fit(GRID, loss, "chinchilla", delta)
    assert found.values == pytest.approx(PLANTED, rel=1e-4)
    np.testing.assert_allclose(found.predict(GRID), loss, rtol=1e-7)


def test_units_of_parameters_and_tokens_change_only_the_coefficients(fitted: Fit) -> None:
    billions = fit(INPUTS / 1e9, LOSS, "chinchilla")
    assert billions.values["alpha"] == pytest.approx(fitted.values["alpha"], rel=1e-6)
    assert billions.values["A"] * 1e9 ** billions.values["alpha"] == pytest.approx(fitted.values["A"], rel=1e-5)
    assert billions.objective == pytest.approx(fitted.objective, rel=1e-9)


def test_a_loss_that_tokens_do_not_move_is_a_fit_at_a_bound() -> None:
    found = fit(GRID, 1.8 + 480 * GRID[:, 0] ** -0.35, "chinchilla")
    assert found.at_bounds
    assert any("at a bound" in warning for warning in found.warnings)


def test_how_far_a_forecast_lies_beyond_the_points() -> None:
    found = fit(GRID, CHINCHILLA.predict(PLANTED, GRID), "chinchilla")
    assert found.beyond((1e9, 1e11)) == 1.0
    assert found.beyond((1e10, 4e12)) == pytest.approx(4.0)
    assert found.beyond((1e7, 1e13)) == pytest.approx(10.0)


def test_intervals_from_residuals_hold_the_planted_values() -> None:
    generator = np.random.default_rng(3)
    points = np.repeat(GRID, 2, axis=0)
    loss = CHINCHILLA.predict(PLANTED, points) * np.exp(0.002 * generator.standard_normal(len(points)))
    found = fit(points, loss, "chinchilla", LEAST_SQUARES)
    noise = residual_noise({"all": found}, {"all": points}, {"all": loss}, list(range(len(points))))
    assert noise.degrees_of_freedom == len(points) - 5
    assert noise.pooled_sd == pytest.approx(0.002, rel=0.3)
    drawn = refit(found, points, noise.draw(list(range(len(points))), 300, generator))
    for name, interval in drawn.intervals().items():
        assert interval.contains(found.values[name])
        assert interval.contains(PLANTED[name])


SIZES = np.geomspace(1e8, 1e10, 8)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.stack([SIZES, np.full(8, 1e11)], 1), "cannot tell E, B, beta apart.* rank 3 of 5; tokens has 1 different"),
        (np.stack([np.full(8, 1e9), SIZES], 1), "cannot tell E, A, alpha apart.* rank 3 of 5; params has 1 different"),
        (np.stack([SIZES, 20 * SIZES], 1), "rank 3 of 5; all have 20 to 20 tokens per param: vary that, or fit the"),
        (np.stack([SIZES, 20 * SIZES + 1e7], 1), "alpha, beta apart.*; all have 20 to 20.1 tokens per param"),
        (np.stack([np.tile([1e8, 1e9], 4), SIZES], 1), "rank 4 of 5; params has 2 different values"),
        (np.tile([[1e9, 2e10]], (8, 1)), "one size, no curve: all points are at params 1e[+]09, tokens 2e[+]10"),
        (GRID[:5], "5 points for 5 free parameters"),
        (np.repeat(GRID[[0, 8, 11, 19, 22]], 2, axis=0), "undetermined: 5 different params and tokens values for 5"),
        (GRID[:, :1], r"inputs of shape \(25, 1\); it takes one column each of params, tokens"),
        (np.where(GRID == 1e9, 0.0, GRID), "params: point 10 is 0.0, and a logarithm is taken"),
    ],
)  # fmt: skip
def test_points_that_determine_nothing_are_refused(inputs: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(inputs, np.linspace(3, 2, len(inputs)), "chinchilla")


def test_the_reduced_form_that_is_offered_fits() -> None:
    """Twenty tokens per parameter throughout: a curve of compute, which is a surface's diagonal."""
    compute = 6 * SIZES * 20 * SIZES
    loss = CHINCHILLA.predict({**PLANTED, "beta": 0.35}, np.stack([SIZES, 20 * SIZES], 1))
    assert fit(compute, loss, "power_floor").values["a"] == pytest.approx(0.35 / 2, rel=1e-3)

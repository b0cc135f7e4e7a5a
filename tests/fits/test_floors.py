"""Floors that points determine, and floors that they do not, published and planted."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import optimize, stats

from k3ablate.config import InputError
from k3ablate.fits.floors import floor_range, undetermined_floor
from k3ablate.fits.solve import fit

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
SIZES = np.geomspace(1, 1000, 5)


def planted(deviation: float, num_seeds: int = 3, seed: int = 0, floor: float = 1.4) -> tuple[np.ndarray, ...]:
    compute = np.repeat(SIZES, num_seeds)
    noise = deviation * np.random.default_rng(seed).standard_normal(len(compute))
    return compute, (floor + 0.9 * compute**-0.16) * np.exp(noise)


@pytest.mark.parametrize(
    ("arm", "best", "high"), [("baseline", 1.20, 1.67), ("block", 0.47, 1.64), ("full", 0.59, 1.68)]
)
def test_five_published_points_leave_the_floor_open_and_are_refused(arm: str, best: float, high: float) -> None:
    """Attention Residuals, Table 2: floors of 1.20, 0.47 and 0.59 fit best, and none is told from none at all."""
    table = pandas.read_csv(PUBLISHED / "attnres_table2.csv")
    compute, loss = table["pflop_s_days_6nd"].to_numpy(), table[f"loss_{arm}"].to_numpy()
    found = floor_range([compute], [loss])
    assert (found.low, round(found.best, 2), round(found.high, 2)) == (0.0, best, high)
    message = f"power_floor: undetermined: any floor from 0 to {high} fits these 5 points .* loss is {loss.min()}"
    with pytest.raises(InputError, match=message):
        fit(compute, loss, "power_floor")
    assert fit(compute, loss, "power").values["a"] > 0


def test_arms_together_know_more_of_a_floor_they_share() -> None:
    table = pandas.read_csv(PUBLISHED / "attnres_table2.csv")
    compute = table["pflop_s_days_6nd"].to_numpy()
    losses = [table[f"loss_{arm}"].to_numpy() for arm in ("baseline", "block", "full", "mhc_lite")]
    together, alone = floor_range([compute] * 4, losses), floor_range([compute], losses[:1])
    assert together.high < alone.high


@pytest.mark.parametrize("deviation", [0.0, 0.001])
def test_well_determined_floors_pass(deviation: float) -> None:
    compute, loss = planted(deviation)
    assert undetermined_floor([compute], [loss]) is None
    found = floor_range([compute], [loss])
    assert found.low <= found.best <= found.high < found.low + 0.1
    assert fit(compute, loss, "power_floor").values["E"] == pytest.approx(1.4, abs=0.1)


def test_a_floor_that_is_known_to_be_small_passes() -> None:
    compute, loss = planted(0.02, floor=0.02)
    found = floor_range([compute], [loss])
    assert found.low == 0.0
    assert undetermined_floor([compute], [loss]) is None


def test_more_noise_leaves_the_same_floor_open() -> None:
    compute, loss = planted(0.03)
    assert "any floor from 0 to" in str(undetermined_floor([compute], [loss]))


def test_profile_ends_where_a_general_solver_finds_the_critical_sum_of_squares() -> None:
    compute, loss = planted(0.01)

    def squares(floor: float) -> float:
        def left(parameters: np.ndarray) -> np.ndarray:
            return np.log(floor + np.exp(parameters[0]) * compute ** -parameters[1]) - np.log(loss)

        return float((optimize.least_squares(left, [0.0, 0.15], xtol=1e-14, ftol=1e-14, gtol=1e-14).fun ** 2).sum())

    found = floor_range([compute], [loss])
    degrees = len(loss) - 3
    critical = squares(found.best) * (1 + stats.f.isf(0.05, 1, degrees) / degrees)
    assert found.low > 0
    for end in (found.low, found.high):
        assert squares(end) - squares(found.best) == pytest.approx(critical - squares(found.best), rel=0.02)


def test_the_range_covers_as_often_as_it_says() -> None:
    hits = 0
    for table in range(300):
        compute, loss = planted(0.002, num_seeds=2, seed=table)
        found = floor_range([compute], [loss])
        hits += found.low <= 1.4 <= found.high
    assert 0.92 <= hits / 300 <= 0.98

"""What a planned experiment may assume of its noise and curve, and how it says so."""

import numpy as np
import pandas
import pytest
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.pilot import from_pilot, stated


def pilot(num_sizes: int = 4, num_seeds: int = 5, deviation: float = 0.01, floor: float = 0.0) -> pandas.DataFrame:
    """Two arms whose runs of one seed share three quarters of their variance."""
    generator = np.random.default_rng(0)
    compute = np.geomspace(1e16, 1e19, num_sizes)
    shared = generator.standard_normal((num_sizes, num_seeds))
    return pandas.DataFrame([
        {"arm": arm, "size": f"s{size}", "seed": seed, "flops": compute[size],
         "loss": (floor + 40 * compute[size] ** -0.08)
         * np.exp(deviation * (np.sqrt(0.75) * shared[size, seed] + 0.5 * generator.standard_normal()))}
        for arm in ("k3", "k2") for size in range(num_sizes) for seed in range(num_seeds)
    ])  # fmt: skip


def test_a_pilot_gives_deviation_share_and_curve() -> None:
    found = from_pilot(pilot(num_seeds=40), "k2", 1e20, "pilot.csv")
    assert found.truth.seed_sd == pytest.approx(0.01, rel=0.1)
    assert found.truth.shared_share == pytest.approx(0.75, abs=0.1)
    assert found.truth.values["a"] == pytest.approx(0.08, rel=0.05)
    assert found.degrees_of_freedom == 2 * 4 * 39
    assert found.worth == pytest.approx(np.exp(found.truth.seed_sd / found.truth.values["a"]), rel=1e-6)
    assert "pilot.csv (312 degrees of freedom); the curve of k2 there (power: A" in found.source


def test_the_deviation_comes_with_the_interval_of_chi_square() -> None:
    found = from_pilot(pilot(num_seeds=2), None, 1e20, "pilot.csv")
    interval = found.seed_sd_interval
    assert interval is not None
    tails = (found.truth.seed_sd / np.array([interval.low, interval.high])) ** 2 * 8
    assert stats.chi2.cdf(tails, 8) == pytest.approx([0.975, 0.025])
    assert "the curve of k3 there" in found.source  # the first arm


def test_a_pilot_with_a_floor_has_a_curve_with_a_floor() -> None:
    found = from_pilot(pilot(6, 4, deviation=1e-5, floor=1.0), "k2", 1e20, "pilot.csv")
    assert found.truth.form == "power_floor"
    assert found.truth.values["E"] == pytest.approx(1.0, abs=0.02)


def test_a_pilot_of_one_size_leaves_the_exponent_assumed() -> None:
    found = from_pilot(pilot(num_sizes=1), "k2", 1e20, "pilot.csv")
    assert found.truth.values["a"] == 0.057
    assert "exponent 0.057 (Attention Residuals), as pilot.csv has no curve that falls" in found.source


def test_pilots_that_tell_no_noise_are_refused() -> None:
    with pytest.raises(InputError, match=r"pilot.csv: no arm has two finished seeds at one size.*--seed-deviation"):
        from_pilot(pilot(num_seeds=1), "k2", 1e20, "pilot.csv")
    with pytest.raises(InputError, match="its seeds are copies of one run"):
        from_pilot(pilot(deviation=0.0), "k2", 1e20, "pilot.csv")


def test_a_stated_deviation_is_in_loss_at_the_largest_size() -> None:
    found = stated(1e20, 0.01, 2.5, 0.05)
    assert found.truth.seed_sd == pytest.approx(0.004)
    assert found.truth.log_loss(np.array([1e20]), 0.0) == pytest.approx(np.log(2.5))
    assert found.worth == pytest.approx(np.exp(0.004 / 0.05))
    assert found.seed_sd_interval is None
    assert "a deviation of 0.01 in loss between seeds, as stated; loss 2.5" in found.source


def test_what_is_assumed_is_worth_one_and_a_quarter_percent_of_compute() -> None:
    found = stated(1e20, None, None, None)
    assert found.worth == pytest.approx(1.0124, abs=2e-4)  # section 7 of the statistics: about 1.3 percent
    assert "0.0012 in loss between seeds, that of a public speed-run" in found.source


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0.0, None, None), "--seed-deviation 0.0: write a positive number"),
        ((None, -1.0, None), "--loss -1.0"),
        ((None, None, np.inf), "--exponent inf"),
        ((2.0, None, None), "--seed-deviation 2.0: not below the loss 1.714"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(numbers: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stated(1e20, *numbers)


def test_a_pilot_whose_seeds_vary_something_else_is_refused() -> None:
    table = pilot().assign(varied="initialisation")
    found = from_pilot(table, "k2", 1e20, "pilot.csv", "initialisation")
    assert "the deviation between seeds, which vary initialisation alone, in pilot.csv" in found.source
    assert from_pilot(pilot(), "k2", 1e20, "pilot.csv", "both").truth == found.truth  # a table that does not say
    with pytest.raises(InputError, match=r"pilot.csv: its seeds vary initialisation and those of the plan both"):
        from_pilot(table, "k2", 1e20, "pilot.csv", "both")

"""One multiplier per arm from parallel curves: published arms, planted ones, and what is said when it does not hold."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.joint import fit_joint
from k3ablate.fits.paired import Point, paired_multiplier
from k3ablate.fits.shared import SharedFit, fit_shared
from k3ablate.fits.solve import LEAST_SQUARES

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
FORMS = ("shared_floor", "shared_exponent")
Columns = dict[str, np.ndarray]


def attnres(*arms: str) -> tuple[Columns, Columns]:
    table = pandas.read_csv(PUBLISHED / "attnres_table2.csv")
    names = ("baseline", *arms)
    compute = table["pflop_s_days_6nd"].to_numpy()
    return dict.fromkeys(names, compute), {arm: table[f"loss_{arm}"].to_numpy() for arm in names}


def planted(multipliers: dict[str, float], floor: float = 1.4) -> tuple[Columns, Columns]:
    compute = {arm: np.geomspace(1, 100, 5 + index) for index, arm in enumerate(multipliers)}
    return compute, {arm: floor + 0.9 * (multipliers[arm] * compute[arm]) ** -0.16 for arm in multipliers}


def multiplier(shared: SharedFit, arm: str, loss: float) -> float:
    return shared.fits[shared.baseline].compute_at(loss) / shared.fits[arm].compute_at(loss)


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_are_the_same_curves_with_one_multiplier_at_every_loss(form: str) -> None:
    compute, loss = planted({"k2": 1.0, "kda": 1.4, "k3": 2.5})
    shared = fit_shared(compute, loss, form, "k2", 1e-3)
    for arm, factor in {"k2": 1.0, "kda": 1.4, "k3": 2.5}.items():
        np.testing.assert_allclose(shared.fits[arm].predict(compute[arm]), loss[arm], rtol=1e-7)
        for at_loss in (1.7, 1.9, 2.2):
            assert multiplier(shared, arm, at_loss) == pytest.approx(factor, rel=1e-5)
    values = shared.fits["k3"].values
    if form == "shared_floor":
        assert values["m"] == pytest.approx(2.5, rel=1e-5)
        assert values["A"] == shared.fits["k2"].values["A"]
    else:
        assert values["A"] == pytest.approx(0.9 * 2.5**-0.16, rel=1e-5)
    assert values["a"] == shared.fits["k2"].values["a"]


def test_diagnostics_are_those_of_the_joint_fit() -> None:
    compute, loss = planted({"k2": 1.0, "k3": 2.5})
    spoiled = loss | {"k3": loss["k3"] * np.exp([0.0, 0.01, 0.0, 0.0, 0.0, 0.0])}
    k2, k3 = fit_shared(compute, spoiled, "shared_floor", "k2", 1e-3).fits.values()
    assert (k2.num_points, k3.num_points) == (11, 11)
    assert k2.objective == k3.objective > 0
    assert k2.clipped_share == pytest.approx(1 / 11)
    assert k2.converged_share > 0.9
    assert k3.x_range == (compute["k3"].min(), compute["k3"].max())


@pytest.mark.parametrize(("arm", "ratio"), [("block", 1.239), ("full", 1.306), ("mhc_lite", 1.264)])
def test_published_ratios_with_a_common_exponent(arm: str, ratio: float) -> None:
    compute, loss = attnres(arm)
    shared = fit_shared(compute, loss, "shared_floor", "baseline", LEAST_SQUARES, floor=0.0)
    assert round(shared.fits[arm].values["m"], 3) == ratio
    assert shared.fits[arm].warnings == ()


@pytest.mark.parametrize(("floor", "ratio"), [(0.0, 1.239), (0.6, 1.239), (1.2, 1.241), (1.5, 1.249)])
def test_a_shared_floor_moves_the_published_ratio_little(floor: float, ratio: float) -> None:
    """Residuals of ln(L - E), as published: from 1.239 without a floor to 1.249 at 1.5."""
    compute, loss = attnres("block")
    baseline, block = (
        [Point(str(rung), 0, *pair) for rung, pair in enumerate(zip(compute[arm], loss[arm], strict=True))]
        for arm in ("baseline", "block")
    )
    found = paired_multiplier(baseline, block, floor)
    assert found is not None
    assert found.value == pytest.approx(ratio, abs=6e-4)
    assert found.floor == floor


@pytest.mark.parametrize(("floor", "ratio"), [(0.6, 1.238), (1.2, 1.233), (1.5, 1.219)])
def test_the_same_floors_with_residuals_of_ln_loss(floor: float, ratio: float) -> None:
    """Our objective weighs the rungs otherwise, which moves the ratio the other way and stays in its interval."""
    compute, loss = attnres("block")
    shared = fit_shared(compute, loss, "shared_floor", "baseline", LEAST_SQUARES, floor=floor)
    assert round(shared.fits["block"].values["m"], 3) == ratio
    assert shared.fits["block"].values["E"] == pytest.approx(floor)


def test_a_free_common_floor_of_published_arms_is_undetermined_and_says_so() -> None:
    compute, loss = attnres("block", "full", "mhc_lite")
    shared = fit_shared(compute, loss, "shared_floor", "baseline", LEAST_SQUARES)
    (warning,) = shared.fits["block"].warnings
    assert "the common floor is undetermined: any floor from 0 to 1." in warning
    assert shared.fits["block"].values["m"] == pytest.approx(1.2376, abs=1e-4)


def test_draws_belong_together() -> None:
    compute, loss = planted({"k2": 1.0, "k3": 2.5})
    shared = fit_shared(compute, loss, "shared_floor", "k2", 1e-3)
    draws = shared.refit(0.001 * np.random.default_rng(0).standard_normal((50, 11)))
    np.testing.assert_array_equal(draws["k2"].values["a"], draws["k3"].values["a"])
    np.testing.assert_allclose(draws["k2"].values["m"], 1.0)
    for at_loss in (1.8, 2.0):
        ratio = draws["k2"].log_compute_at(at_loss) - draws["k3"].log_compute_at(at_loss)
        np.testing.assert_allclose(np.exp(ratio), draws["k3"].values["m"], rtol=1e-9)
    own = fit_shared(compute, loss, "shared_exponent", "k2", 1e-3)
    noise = 0.001 * np.random.default_rng(0).standard_normal((50, 11))
    expected = fit_joint(list(compute.values()), list(loss.values()), True, None, 1e-3).refit(noise)
    np.testing.assert_allclose(own.refit(noise)["k3"].values["A"], expected[1]["A"])


@pytest.mark.parametrize(
    ("arms", "num_sizes", "floor", "message"),
    [
        (["k2"], 5, None, "needs finished runs of k2 and of another arm; there are some of k2"),
        (["kda", "k3"], 5, None, "needs finished runs of k2 and of another arm; there are some of kda, k3"),
        (["k2", "k3"], 2, None, "no arm has more than 2 different compute values and 3 are needed"),
        (["k2", "k3"], 1, 0.0, "no arm has more than 1 different compute values and 2 are needed"),
        (["k2", "k3"], 3, 5.0, "floor 5.0: write 0 or more, and less than the lowest loss"),
    ],
)
def test_what_determines_no_shared_curve_is_refused(
    arms: list[str], num_sizes: int, floor: float | None, message: str
) -> None:
    compute, loss = planted({"k2": 1.0, "kda": 1.4, "k3": 2.5})
    kept = ({arm: column[arm][:num_sizes] for arm in arms} for column in (compute, loss))
    with pytest.raises(InputError, match=message):
        fit_shared(*kept, "shared_floor", "k2", 1e-3, floor)


@pytest.mark.parametrize("floor", [0.0, None])
def test_one_outlier_moves_the_robust_multipliers_by_less_than_a_percent(floor: float | None) -> None:
    compute, loss = planted({"k2": 1.0, "kda": 1.4, "k3": 2.5}, floor=floor if floor is not None else 1.4)
    spoiled = loss | {"k3": loss["k3"] + 0.1 * (np.arange(7) == 3)}
    clean, moved = (
        fit_shared(compute, losses, "shared_floor", "k2", 1e-3, floor).fits["k3"].values["m"]
        for losses in (loss, spoiled)
    )
    squares = fit_shared(compute, spoiled, "shared_floor", "k2", LEAST_SQUARES, floor).fits["k3"].values["m"]
    assert clean == pytest.approx(2.5, rel=1e-4)
    assert moved == pytest.approx(clean, rel=0.01)
    assert abs(squares / clean - 1) > 0.05

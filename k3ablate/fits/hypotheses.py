"""Which hypotheses about the arms survive, and at what level?

`f_test` compares nested least-squares fits; `holm` corrects the p-values of many arms against one baseline;
`parallel_test` asks the question behind one multiplier per arm: do the arms' curves have one exponent (statistics.md,
section 2), or one each? Both hypotheses have one floor for all arms, free or given. The answer has three parts: an F
test and Akaike's criterion for small samples, both of which know what noise runs of equal size and seed have in common,
and the error with which each hypothesis predicts the largest size from the smaller ones. Multipliers are not read here.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, stats

from k3ablate.config import InputError
from k3ablate.fits.determined import num_distinct
from k3ablate.fits.forms import Array
from k3ablate.fits.joint import SIZES_FOR_FLOOR, Joint, fit_joint
from k3ablate.fits.minimise import ROUNDING_SQUARE
from k3ablate.fits.paired import Point
from k3ablate.fits.solve import LEAST_SQUARES
from k3ablate.fits.uncertainty import Noise, linear_noise

LEVEL = 0.05


@dataclass(frozen=True)
class FTest:
    """Nested least-squares fits: how much worse the restricted one is, per restriction, in units of the noise."""

    statistic: float
    num_restrictions: int
    degrees_of_freedom: int  # of the noise
    p_value: float

    @property
    def rejected(self) -> bool:
        """Whether the restrictions fail at 5 percent."""
        return self.p_value < LEVEL


@dataclass(frozen=True)
class ParallelTest:
    """One exponent for all arms, against one each."""

    arms: tuple[str, ...]  # that have an exponent of their own to tell, with the baseline
    floor: float | None  # that was given; None where one free floor is common to all
    test: FTest
    aicc_common: float | None  # None with too few points for the correction
    aicc_own: float | None
    held_out_common: float | None  # root mean square error of ln L at the largest size of every arm
    held_out_own: float | None
    no_held_out: str  # why there is none; empty where there is

    @property
    def rejected(self) -> bool:
        """Whether one exponent for all fails."""
        return self.test.rejected

    @property
    def decision(self) -> str:
        """The F test, and what follows from it at 5 percent."""
        verdict = "is rejected" if self.rejected else "is not rejected"
        return (
            f"one exponent for {len(self.arms)} arms {verdict} against one each: "
            f"F({self.test.num_restrictions}, {self.test.degrees_of_freedom}) = {self.test.statistic:.3g}, "
            f"p = {self.test.p_value:.2g}"
        )


def f_test(restricted_square: float, free_square: float, num_restrictions: int, noise_square: float,
           degrees_of_freedom: int) -> FTest:  # fmt: skip
    """F test from two sums of squares of ln L and the noise's mean square, which must not be what is tested."""
    extra = max(restricted_square - free_square, 0.0) / num_restrictions
    # fits without noise differ by rounding only
    statistic = extra / max(noise_square, ROUNDING_SQUARE)
    p_value = float(stats.f.sf(statistic, num_restrictions, degrees_of_freedom))
    return FTest(statistic, num_restrictions, degrees_of_freedom, p_value)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Step-down correction (Holm, Scandinavian Journal of Statistics 6, 1979): valid however the tests depend."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    raised = [min(1.0, (len(ordered) - rank) * p_values[name]) for rank, name in enumerate(ordered)]
    corrected = dict(zip(ordered, np.maximum.accumulate(raised), strict=True)) if ordered else {}
    return {name: float(corrected[name]) for name in p_values}


def aicc(square_sum: float, num_points: int, num_parameters: int) -> float | None:
    """Akaike's criterion with the correction for small samples (Hurvich and Tsai, Biometrika 76, 1989).

    `square_sum` in any unit of the noise, `num_parameters` without its variance, which is counted here. None where
    points are too few.
    """
    counted = num_parameters + 1
    if num_points - counted - 1 <= 0:
        return None
    likelihood = num_points * np.log(max(square_sum / num_points, ROUNDING_SQUARE))
    return float(likelihood + 2 * counted * num_points / (num_points - counted - 1))


def parallel_test(
    points: Mapping[str, Sequence[Point]], floor: float | None, delta: float, seeds: Noise | None
) -> ParallelTest:
    """Test one exponent for all arms on their finished runs; `seeds` is their noise, None takes it from residuals.

    The fits are least squares of ln L; only the predictions of the largest size are made with `delta`. InputError
    where fewer than two arms have two sizes, or points are too few.
    """
    arms = {arm: found for arm, found in points.items() if num_distinct(_column(found, "compute")) > 1}
    if len(arms) < 2:
        raise InputError(
            f"parallel curves: {len(arms)} of {len(points)} arms with two sizes or more, two are needed; add sizes"
        )
    most = max(num_distinct(_column(found, "compute")) for found in arms.values())
    if floor is None and most < SIZES_FOR_FLOOR:
        raise InputError(f"parallel curves: no arm has more than {most} sizes, which lie on curves with any floor")
    common, own = (_fit(arms, shared, floor, LEAST_SQUARES) for shared in (True, False))
    keys = [(point.size, point.seed) for found in arms.values() for point in found]
    noise = seeds or linear_noise(own.residuals, own.jacobian, keys)
    sums = _weighted_sums(common, noise, keys)
    held_out, no_held_out = _held_out(arms, floor, delta)
    return ParallelTest(
        arms=tuple(arms),
        floor=floor,
        test=f_test(*sums, own.form.num_free - common.form.num_free, 1.0, noise.own_degrees),
        aicc_common=aicc(sums[0], len(keys), common.form.num_free),
        aicc_own=aicc(sums[1], len(keys), own.form.num_free),
        held_out_common=held_out[0] if held_out else None,
        held_out_own=held_out[1] if held_out else None,
        no_held_out=no_held_out,
    )


def _weighted_sums(common: Joint, noise: Noise, keys: Sequence[Hashable]) -> tuple[float, float]:
    """Sums of squares of ln L in units of the noise with one exponent, and with one each.

    Both by generalised least squares on the derivatives at the fit with one exponent, so that what runs of equal size
    and seed have in common counts neither as a difference of exponents nor as noise of one.
    """
    num_arms = len(common.form.counts)
    own_form = replace(common.form, common_exponent=False)
    own_theta_P = np.concatenate([common.theta_P[: 1 + num_arms], np.repeat(common.theta_P[1 + num_arms], num_arms)])
    own = replace(common, form=own_form, theta_P=own_theta_P)
    covariance_NN = noise.covariance(keys) + ROUNDING_SQUARE * np.eye(len(keys))
    root_NN = np.linalg.cholesky(covariance_NN)
    target_N = linalg.solve_triangular(root_NN, common.residuals, lower=True)
    sums = []
    for hypothesis in (common, own):
        columns_NP = linalg.solve_triangular(root_NN, hypothesis.jacobian, lower=True)
        columns_NP = columns_NP / np.linalg.norm(columns_NP, axis=0)
        solution_P = np.linalg.lstsq(columns_NP, target_N, rcond=None)[0]
        sums.append(float(((target_N - columns_NP @ solution_P) ** 2).sum()))
    return sums[0], sums[1]


def _held_out(
    arms: Mapping[str, Sequence[Point]], floor: float | None, delta: float
) -> tuple[tuple[float, float] | None, str]:
    """Errors of both hypotheses at the largest size of every arm, from fits without it; or why there are none."""
    largest = {arm: max(found, key=lambda point: point.compute).size for arm, found in arms.items()}
    kept = {arm: [point for point in found if point.size != largest[arm]] for arm, found in arms.items()}
    left_out = [[point for point in found if point.size == largest[arm]] for arm, found in arms.items()]
    sizes = {arm: num_distinct(_column(found, "compute")) for arm, found in kept.items()}
    too_few = [arm for arm, left in sizes.items() if left < 2]
    if too_few:
        return None, f"without its largest size {too_few[0]} has fewer than two sizes"
    if floor is None and max(sizes.values()) < SIZES_FOR_FLOOR:
        return None, f"without the largest size no arm has {SIZES_FOR_FLOOR} sizes, which a free floor needs"
    try:
        common, own = (_prediction_error(_fit(kept, shared, floor, delta), left_out) for shared in (True, False))
    except InputError as error:
        return None, f"without the largest size: {error}"
    return (common, own), ""


def _prediction_error(fitted: Joint, left_out: Sequence[Sequence[Point]]) -> float:
    """Root mean square of ln L minus that of the curves, over the points of all arms."""
    errors = [
        np.log(_column(points, "loss")) - np.log(curve["E"] + curve["A"] * _column(points, "compute") ** -curve["a"])
        for curve, points in zip(fitted.curves(), left_out, strict=True)
    ]
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def _fit(arms: Mapping[str, Sequence[Point]], common_exponent: bool, floor: float | None, delta: float) -> Joint:
    compute = [_column(found, "compute") for found in arms.values()]
    loss = [_column(found, "loss") for found in arms.values()]
    return fit_joint(compute, loss, common_exponent, floor, delta)


def _column(points: Sequence[Point], name: str) -> Array:
    return np.array([getattr(point, name) for point in points])

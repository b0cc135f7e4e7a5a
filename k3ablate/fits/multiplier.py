"""How many times more compute does the baseline need for the loss of an arm?

m(L) = C_baseline(L) / C_arm(L) (statistics.md, section 1), read from two fitted curves at one stated loss or compute.
Where curves are not parallel it is a curve itself, `multiplier_curve`. The other estimate, from runs of equal size and
seed, is in `paired`. Which runs are compared, with which form, and what many comparisons do to a p-value is decided in
`analysis`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.forms import Array, Form
from k3ablate.fits.paired import Paired, exponential, two_sided
from k3ablate.fits.solve import Fit, Interval
from k3ablate.fits.uncertainty import TAIL, Draws, percentile_interval

NUM_CURVE_POINTS = 25
FURTHEST = 1000.0  # times beyond the compute measured: no form of five sizes or ten is known to hold over more


@dataclass(frozen=True)
class Multiplier:
    """Equal-loss multiplier of one arm against the baseline, and everything it must be printed with."""

    value: float
    interval: Interval
    form: str
    loss: float  # where it is read
    baseline_compute: float
    arm_compute: float
    beyond: float  # factor by which the reading lies outside what was measured for both arms; 1 inside
    interval_method: str
    unreachable_share: float  # of draws in which a curve's floor lies above the loss
    paired: Paired | None
    p_value: float  # of m = 1, by Student's t with the interval's width: below .05 where the interval leaves 1 out
    warnings: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the loss lies inside the measured range of both arms."""
        return self.beyond == 1.0


@dataclass(frozen=True)
class MultiplierCurve:
    """m(C) over what was measured for both arms, with a 95 percent band at each of its losses [G]."""

    form: str
    loss_G: Array
    baseline_compute_G: Array
    arm_compute_G: Array
    value_G: Array
    low_G: Array
    high_G: Array


def common_loss(*curves: Fit) -> float:
    """The lowest loss that every curve reaches within the compute measured for it."""
    return float(max(curve.predict(curve.x_range[1]) for curve in curves))


def read_multiplier(
    baseline: Fit, arm: Fit, baseline_draws: Draws, arm_draws: Draws, paired: Paired | None, loss: float | None = None,
    compute: float | None = None, degrees_of_freedom: float = np.inf,
) -> Multiplier:  # fmt: skip
    """Curve multiplier at `loss`, or where the baseline has spent `compute` (default: at `common_loss`), with interval.

    `degrees_of_freedom` are those of the noise that the draws were made from. InputError where a curve never reaches
    the loss, more than `FURTHEST` times outside what was measured, or where the two fits differ in form.
    """
    if baseline.form != arm.form:
        raise InputError(f"multiplier: a {baseline.form} curve against a {arm.form} curve; fit both with one form")
    at_loss = loss_to_read(baseline, [arm], loss, compute)
    (baseline_compute, baseline_beyond), (arm_compute, arm_beyond) = (
        reach(curve, at_loss, name) for name, curve in (("the baseline", baseline), ("the arm", arm))
    )
    log_ratio_D = draw_log_multipliers(baseline_draws, arm_draws, at_loss, compute)
    log_interval = percentile_interval(log_ratio_D)
    interval = exponential(log_interval.low, log_interval.high)
    return Multiplier(
        value=baseline_compute / arm_compute,
        interval=interval,
        form=baseline.form,
        loss=at_loss,
        baseline_compute=baseline_compute,
        arm_compute=arm_compute,
        beyond=max(baseline_beyond, arm_beyond),
        interval_method=arm.interval_method,
        unreachable_share=float(np.mean(~np.isfinite(log_ratio_D))),
        paired=paired,
        p_value=_p_value(np.log(baseline_compute / arm_compute), log_interval, degrees_of_freedom),
        warnings=tuple(_cautions(baseline, arm, interval, paired)),
    )


def multiplier_curve(baseline: Fit, arm: Fit, baseline_draws: Draws, arm_draws: Draws) -> MultiplierCurve | None:
    """m over the losses that both curves pass within the compute measured for them; None where they share none."""
    highest = min(float(curve.predict(curve.x_range[0])) for curve in (baseline, arm))
    lowest = common_loss(baseline, arm)
    if lowest >= highest:
        return None
    baseline_compute_G = np.geomspace(baseline.compute_at(highest), baseline.compute_at(lowest), NUM_CURVE_POINTS)
    loss_G = baseline.predict(baseline_compute_G)
    arm_compute_G = np.array([arm.compute_at(float(loss)) for loss in loss_G])
    bands = [percentile_interval(draw_log_multipliers(baseline_draws, arm_draws, float(loss))) for loss in loss_G]
    factors = [exponential(band.low, band.high) for band in bands]
    return MultiplierCurve(
        form=baseline.form,
        loss_G=loss_G,
        baseline_compute_G=baseline_compute_G,
        arm_compute_G=arm_compute_G,
        value_G=baseline_compute_G / arm_compute_G,
        low_G=np.array([band.low for band in factors]),
        high_G=np.array([band.high for band in factors]),
    )


def equal_loss_ratio(form: Form, baseline: Mapping[str, float], arm: Mapping[str, float], arm_compute: float) -> float:
    """Compute that the baseline needs for the loss the arm reaches with `arm_compute`, over that compute.

    From parameters alone, as reports print them: no interval, and nobody says what was measured.
    """
    loss = float(form.predict(arm, arm_compute))
    (log_compute,) = form.log_compute_at({name: np.array([value]) for name, value in baseline.items()}, loss)
    return float(np.exp(log_compute - np.log(arm_compute)))


def worth_in_compute(baseline_loss: float, arm_loss: float, exponent: float) -> float:
    """The same from two losses at one compute, along a power law with that exponent: (L_baseline / L_arm)^(1/a)."""
    return float((baseline_loss / arm_loss) ** (1 / exponent))


def reach(curve: Fit, loss: float, name: str) -> tuple[float, float]:
    """Compute at which the curve of the arm `name` reaches `loss`, and how far outside what was measured that lies.

    InputError where it never does, and beyond `FURTHEST`.
    """
    compute = curve.compute_at(loss)
    beyond = curve.beyond([compute])
    if beyond > FURTHEST:
        low, high = curve.x_range
        raise InputError(
            f"loss {loss:.6g}: {name} reaches it at compute {compute:.4g}, {beyond:.3g} times outside the {low:.4g} to "
            f"{high:.4g} that were measured; ask within {FURTHEST:,.0f} times of them, or add sizes"
        )
    return compute, beyond


def check_place(loss: float | None, compute: float | None) -> None:
    """InputError where a multiplier cannot be read: at two places, or at a loss or compute that is none."""
    if loss is not None and compute is not None:
        raise InputError(f"multiplier: loss {loss:.6g} and compute {compute:.6g} were both stated; state one of them")
    if loss is not None and not 0 < loss < np.inf:
        raise InputError(f"multiplier: loss {loss}; write a positive number, in the unit of the table")
    if compute is not None and not 0 < compute < np.inf:
        raise InputError(f"multiplier: compute {compute}; write a positive number, in the unit of the table")


def loss_to_read(baseline: Fit, arms: Sequence[Fit], loss: float | None, compute: float | None) -> float:
    """The stated loss, that of the baseline at the stated compute, or the lowest that all measured; not both stated."""
    check_place(loss, compute)
    if compute is not None:
        return float(baseline.predict(compute))
    return common_loss(baseline, *arms) if loss is None else loss


def draw_log_multipliers(baseline: Draws, arm: Draws, loss: float | Array, compute: float | None = None) -> Array:
    """ln m [draws] at `loss` (one, or one each), or, where `compute` is stated, at each draw's loss of the baseline."""
    if compute is None:
        return _log_ratio(baseline.log_compute_at(loss), arm.log_compute_at(loss))
    loss_D = baseline.predict(np.array([compute]))[:, 0]
    log_ratio_D: Array = np.log(compute) - arm.log_compute_at(loss_D)
    return log_ratio_D


def _p_value(log_value: float, log_interval: Interval, degrees: float) -> float:
    """Of ln m = 0: the distance to 0 in units of the interval's half on that side, as a t value.

    Draws alone end at two over their number, which a correction for many arms would not survive.
    """
    half = log_value - log_interval.low if log_value > 0 else log_interval.high - log_value
    return two_sided(log_value, max(half, 0.0) / float(stats.t.isf(TAIL, degrees)), degrees)


def _log_ratio(baseline_D: Array, arm_D: Array) -> Array:
    """ln m per draw; where neither curve reaches the loss nothing is known, which counts against both ends in turn."""
    both_D = np.isinf(baseline_D) & np.isinf(arm_D)
    with np.errstate(invalid="ignore"):
        ratio_D = baseline_D - arm_D
    ratio_D[both_D] = np.where(np.arange(both_D.sum()) % 2, np.inf, -np.inf)
    return ratio_D


def _cautions(baseline: Fit, arm: Fit, interval: Interval, paired: Paired | None) -> list[str]:
    """What must stay attached to this number."""
    common = [text for text in arm.warnings if text in baseline.warnings]  # curves that share parameters say it once
    cautions = [f"both curves: {text}" for text in common]
    cautions += [f"baseline curve: {text}" for text in baseline.warnings if text not in common]
    cautions += [f"curve: {text}" for text in arm.warnings if text not in common]
    apart = paired is not None and (paired.interval.low > interval.high or paired.interval.high < interval.low)
    if apart:
        cautions.append("the paired and the curve estimate do not agree within their intervals")
    return cautions

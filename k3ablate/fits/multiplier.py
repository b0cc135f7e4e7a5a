"""How many times more compute does the baseline need for the loss of an arm?

Two estimates of m(L) = C_baseline(L) / C_arm(L) (statistics.md, section 1). The curve estimate reads two fitted curves
at one stated loss. The paired estimate compares runs of the same size and seed, whose noise is largely common, and
turns their differences of ln L into compute with the exponent that both arms share; it is an average over the sizes.
Which runs are compared, and with which form, is decided in `analysis`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.solve import LARGEST_LOG, Fit, Interval
from k3ablate.fits.uncertainty import TAIL, Draws, percentile_interval

ROUNDING = 1e-9  # relative: a point this close to the end of the measured range lies in it


@dataclass(frozen=True)
class Point:
    """One finished run: compute (FLOPs) and loss (nats per token) with the labels that pair it."""

    size: str
    seed: int
    compute: float
    loss: float


@dataclass(frozen=True)
class Paired:
    """Multiplier from runs of equal size and seed, with the common exponent that turned loss into compute."""

    value: float
    interval: Interval
    fixed_exponent_interval: Interval  # noise of the differences alone, as published pairings state it
    num_pairs: int
    exponent: float


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
    warnings: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the loss lies inside the measured range of both arms."""
        return self.beyond == 1.0


def common_loss(*curves: Fit) -> float:
    """The lowest loss that every curve reaches within the compute measured for it."""
    return float(max(curve.predict(curve.x_range[1]) for curve in curves))


def read_multiplier(
    baseline: Fit, arm: Fit, baseline_draws: Draws, arm_draws: Draws, paired: Paired | None, loss: float | None = None,
    compute: float | None = None,
) -> Multiplier:  # fmt: skip
    """Curve multiplier at `loss`, or where the baseline has spent `compute` (default: at `common_loss`), with interval.

    InputError where a curve never reaches the loss, or where the two fits do not have the same form.
    """
    if baseline.form != arm.form:
        raise InputError(f"multiplier: a {baseline.form} curve against a {arm.form} curve; fit both with one form")
    at_loss = loss_to_read(baseline, [arm], loss, compute)
    baseline_compute, arm_compute = baseline.compute_at(at_loss), arm.compute_at(at_loss)
    log_ratio_D = draw_log_multipliers(baseline_draws, arm_draws, at_loss, compute)
    log_interval = percentile_interval(log_ratio_D)
    interval = _exponential(log_interval.low, log_interval.high)
    return Multiplier(
        value=baseline_compute / arm_compute,
        interval=interval,
        form=baseline.form,
        loss=at_loss,
        baseline_compute=baseline_compute,
        arm_compute=arm_compute,
        beyond=max(beyond(baseline, baseline_compute), beyond(arm, arm_compute)),
        interval_method=arm.interval_method,
        unreachable_share=float(np.mean(~np.isfinite(log_ratio_D))),
        paired=paired,
        warnings=tuple(_cautions(baseline, arm, interval, paired)),
    )


def loss_to_read(baseline: Fit, arms: Sequence[Fit], loss: float | None, compute: float | None) -> float:
    """The stated loss, that of the baseline at the stated compute, or the lowest that all measured; not both stated."""
    if loss is not None and compute is not None:
        raise InputError(f"multiplier: loss {loss:.6g} and compute {compute:.6g} were both stated; state one of them")
    if compute is not None and not 0 < compute < np.inf:
        raise InputError(f"multiplier: compute {compute}; write a positive number, in the unit of the table")
    if compute is not None:
        return float(baseline.predict(compute))
    return common_loss(baseline, *arms) if loss is None else loss


def draw_log_multipliers(baseline: Draws, arm: Draws, loss: float, compute: float | None = None) -> Array:
    """ln m [draws] at `loss`, or, where `compute` is stated, at each draw's own loss of the baseline there."""
    if compute is None:
        return _log_ratio(baseline.log_compute_at(loss), arm.log_compute_at(loss))
    loss_D = baseline.predict(np.array([compute]))[:, 0]
    log_ratio_D: Array = np.log(compute) - arm.log_compute_at(loss_D)
    return log_ratio_D


def paired_multiplier(baseline: Sequence[Point], arm: Sequence[Point]) -> Paired | None:
    """Mean over pairs of equal (size, seed) of ln m = difference of ln L / a + difference of ln C, with a t interval.

    The exponent a is the slope of ln L over ln C common to both arms (least squares, an intercept each). Its own
    uncertainty enters by the delta method. None below two pairs, with a single size, or where loss does not fall
    or so little that no number holds the ratio.
    """
    others = {(point.size, point.seed): point for point in baseline}
    pairs = [(others[point.size, point.seed], point) for point in arm if (point.size, point.seed) in others]
    if len(pairs) < 2:
        return None
    log_compute_2N = np.log([[pair[side].compute for pair in pairs] for side in (0, 1)])
    log_loss_2N = np.log([[pair[side].loss for pair in pairs] for side in (0, 1)])
    slope = _common_slope(log_compute_2N, log_loss_2N)
    if slope is None:
        return None
    exponent, exponent_error = slope
    from_loss_N = (log_loss_2N[0] - log_loss_2N[1]) / exponent
    log_ratio_N = from_loss_N + log_compute_2N[0] - log_compute_2N[1]
    spread = float(log_ratio_N.std(ddof=1) / np.sqrt(len(pairs)))
    from_exponent = float(from_loss_N.mean() * exponent_error / exponent)
    centre = float(log_ratio_N.mean())
    if abs(centre) > LARGEST_LOG:
        return None
    return Paired(
        value=float(np.exp(centre)),
        interval=_t_interval(centre, float(np.hypot(spread, from_exponent)), len(pairs) - 1),
        fixed_exponent_interval=_t_interval(centre, spread, len(pairs) - 1),
        num_pairs=len(pairs),
        exponent=exponent,
    )


def _t_interval(centre: float, error: float, degrees: int) -> Interval:
    """95 percent interval of exp(centre), by Student's t."""
    half_width = float(stats.t.isf(TAIL, degrees)) * error
    return _exponential(centre - half_width, centre + half_width)


def _exponential(low: float, high: float) -> Interval:
    """The interval of factors; nearly flat curves give ends beyond any number, which are 0 and infinity."""
    with np.errstate(over="ignore"):
        return Interval(float(np.exp(low)), float(np.exp(high)))


def _common_slope(log_compute_2N: Array, log_loss_2N: Array) -> tuple[float, float] | None:
    """Exponent common to both rows and its standard error; None where compute does not vary or loss does not fall."""
    x_2N = log_compute_2N - log_compute_2N.mean(axis=1, keepdims=True)
    y_2N = log_loss_2N - log_loss_2N.mean(axis=1, keepdims=True)
    spread = float((x_2N**2).sum())
    if spread < 1e-9:
        return None
    exponent = -float((x_2N * y_2N).sum()) / spread
    if exponent <= 0:
        return None
    # the two rows share noise, so that residuals are averaged over them before their deviation is taken
    residual_N = (y_2N + exponent * x_2N).mean(axis=0)
    degrees = max(residual_N.size - 2, 1)
    return exponent, float(np.sqrt((residual_N**2).sum() / degrees / (spread / 2)))


def _log_ratio(baseline_D: Array, arm_D: Array) -> Array:
    """ln m per draw; where neither curve reaches the loss nothing is known, which counts against both ends in turn."""
    both_D = np.isinf(baseline_D) & np.isinf(arm_D)
    with np.errstate(invalid="ignore"):
        ratio_D = baseline_D - arm_D
    ratio_D[both_D] = np.where(np.arange(both_D.sum()) % 2, np.inf, -np.inf)
    return ratio_D


def beyond(fit: Fit, compute: float) -> float:
    """Factor by which `compute` lies outside what was measured for the curve; 1 inside."""
    low, high = fit.x_range
    factor = max(compute / high, low / compute)
    return float(factor) if factor > 1 + ROUNDING else 1.0


def _cautions(baseline: Fit, arm: Fit, interval: Interval, paired: Paired | None) -> list[str]:
    """What must stay attached to this number."""
    cautions = [f"baseline curve: {text}" for text in baseline.warnings] + [f"curve: {text}" for text in arm.warnings]
    apart = paired is not None and (paired.interval.low > interval.high or paired.interval.high < interval.low)
    if apart:
        cautions.append("the paired and the curve estimate do not agree within their intervals")
    return cautions

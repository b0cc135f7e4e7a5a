"""How much more must one training run spend than another until both reach the same loss?

A curve is what a run logged while it trained. `smooth` takes the mean over the last share of the tokens and never looks
ahead; `first_reached` says where a curve first meets a loss, `ratio` what the reference spent there over what a run
spent, with a t interval of the logarithm over seeds. Losses at the end of training are compared in `multiplier`; which
curves may be compared at all is decided in `logged_runs`.

Array legend: N logged steps, G losses, S seeds, P seeds that both groups have.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats
from scipy.optimize import isotonic_regression

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Interval
from k3ablate.fits.uncertainty import TAIL

AXES = ("tokens", "flops", "hours")
DEFAULT_WINDOW = 0.1
ONE_SEED = "no interval: one seed on a side does not tell how far seeds lie apart"
EARLIER = (2.0, 4.0, 8.0)  # parts of the tokens to the lowest loss, where further losses are read by default


@dataclass(frozen=True)
class TrainingCurve:
    """One run by logged step [N]. `start`: the first of them after the warm-up of its learning rate."""

    seed: Hashable | None  # None where it is not known, so that nothing pairs with it
    loss_N: Array  # smoothed
    spent: Mapping[str, Array]  # axis -> what had been spent, the step included; tokens always, the others where known
    start: int = 0
    learning_rate_N: Array | None = None  # over its peak

    @cached_property
    def falling(self) -> Array:
        """The falling curve [N] nearest to the losses by least squares: a dip that what follows takes back is none."""
        return np.asarray(isotonic_regression(self.loss_N, increasing=False).x, dtype=np.float64)


def smooth(tokens_N: Array, loss_N: Array, window: float) -> Array:
    """At every step the mean over the losses logged in the last `window` (0 to below 1) of the tokens until then.

    A window in proportion to the tokens leaves the form of a power law as it is: E + A t^-a becomes the same curve
    with a larger A, so that curves with one exponent are all late by one factor and their ratios are not touched.
    """
    assert 0 <= window < 1, "a share of the tokens"
    if window == 0:
        return loss_N
    first_N = np.searchsorted(tokens_N, tokens_N * (1 - window), side="right")
    sums = np.concatenate([[0.0], np.cumsum(loss_N)])
    return np.asarray((sums[1:] - sums[first_N]) / (np.arange(1, len(sums)) - first_N))


def first_reached(curve: TrainingCurve, loss_G: Array) -> Array:
    """Position [G] among the logged steps where the curve first meets each loss; infinite where it never does.

    That is where its falling curve does, which is never before the smoothed loss is there: later losses can only take
    back that a loss was met, by lying above it in the mean. Between two steps the curve is straight over ln tokens. A
    loss that is met within the warm-up, where curves start alike, has no position (NaN).
    """
    falling_N, tokens_N = curve.falling, curve.spent["tokens"]
    after_G = np.searchsorted(-falling_N, -loss_G, side="left")
    met_G = after_G < len(falling_N)
    known_G = met_G & (after_G > curve.start)
    after_K = after_G[known_G]
    high_K, low_K = falling_N[after_K - 1], falling_N[after_K]
    share_K = (high_K - loss_G[known_G]) / (high_K - low_K)
    before_K, span_K = tokens_N[after_K - 1], tokens_N[after_K] / tokens_N[after_K - 1]
    position_G = np.where(met_G, np.nan, np.inf)
    position_G[known_G] = after_K - 1 + before_K * (span_K**share_K - 1) / (tokens_N[after_K] - before_K)
    return position_G


def shared_losses(curves: Sequence[TrainingCurve]) -> tuple[float, float]:
    """The lowest loss that every curve reaches, and the highest that all meet after their warm-up."""
    lowest = max(float(curve.falling[-1]) for curve in curves)
    return lowest, min(float(curve.falling[curve.start]) for curve in curves)


def default_targets(groups: Sequence[Sequence[TrainingCurve]]) -> Array:
    """The lowest loss that every curve reaches, and those that the first group had at a half, a quarter and an eighth
    of the tokens it took to get there, as far as every curve meets them after its warm-up; ascending.

    InputError where there is no such loss.
    """
    lowest, highest = shared_losses([curve for group in groups for curve in group])
    if not lowest < highest:
        spans = "; ".join("{1:.4f} to {0:.4f}".format(*shared_losses(group)) for group in groups)
        raise InputError(
            f"compare: no loss that every run meets after its warm-up: from first to last they share {spans}; compare "
            "fewer runs, or train the worst of them longer"
        )
    tokens_S = log_spent(groups[0], "tokens", np.array([lowest]))[:, 0]
    earlier = np.exp(tokens_S.mean()) / np.array(EARLIER)
    losses_E = np.mean([np.interp(earlier, curve.spent["tokens"], curve.falling) for curve in groups[0]], axis=0)
    return np.array([lowest, *(float(loss) for loss in losses_E if lowest < loss < highest)])


def log_spent(curves: Sequence[TrainingCurve], axis: str, loss_G: Array) -> Array:
    """ln of what each curve had spent [S, G] when it met each loss; infinite where it never does."""
    spent_SG = np.array([_at(first_reached(curve, loss_G), curve.spent[axis]) for curve in curves])
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(spent_SG))


def learning_rates(curves: Sequence[TrainingCurve], loss_G: Array) -> Array | None:
    """Mean over seeds of the learning rate [G], over its peak, where each loss is met; None where it was not logged."""
    logged = [(curve, curve.learning_rate_N) for curve in curves if curve.learning_rate_N is not None]
    if len(logged) < len(curves):
        return None
    return np.asarray(np.mean([_at(first_reached(curve, loss_G), rate_N) for curve, rate_N in logged], axis=0))


@dataclass(frozen=True)
class Estimates:
    """Factors [G] with their 95 percent intervals; no interval (NaN) where `degrees_of_freedom` is 0."""

    value_G: Array
    low_G: Array
    high_G: Array
    degrees_of_freedom: float
    method: str

    def interval(self, index: int) -> Interval | None:
        """That of one loss, if there is one."""
        low, high = float(self.low_G[index]), float(self.high_G[index])
        return None if np.isnan(low) else Interval(low, high)


def mean_over_seeds(log_SG: Array) -> Estimates:
    """Geometric mean over seeds with a t interval of the logarithm; infinite where a seed never gets there."""
    return _estimates(log_SG, "t interval of the logarithm over seeds")


def ratio(reference_SG: Array, run_SG: Array, reference_seeds: Sequence[Hashable | None],
          run_seeds: Sequence[Hashable | None]) -> Estimates:  # fmt: skip
    """Reference over run, from logarithms of what each seed spent [S, G]; above 1 the run needs less.

    Runs of one seed saw the same tokens in the same order: with two or more such pairs only these count, and the
    interval is Student's over their differences; else it is Welch's (Biometrika 34, 1947) over all seeds.
    """
    shared = [seed for seed in reference_seeds if seed is not None and seed in run_seeds]
    if len(shared) > 1 or len(shared) == len(reference_seeds) == len(run_seeds):
        rows_P, run_rows_P = ([seeds.index(seed) for seed in shared] for seeds in (reference_seeds, run_seeds))
        method = f"paired over seeds {', '.join(map(str, shared))}"
        return _estimates(_difference(reference_SG[rows_P], run_SG[run_rows_P]), method)
    return _unpaired(reference_SG, run_SG)


def _at(position_G: Array, values_N: Array) -> Array:
    """Values between logged steps; what is infinite or unknown stays so."""
    finite_G = np.isfinite(position_G)
    inside_G = np.interp(np.where(finite_G, position_G, 0.0), np.arange(len(values_N)), values_N)
    return np.where(finite_G, inside_G, position_G)


def _estimates(log_SG: Array, method: str) -> Estimates:
    with np.errstate(invalid="ignore"):
        centre_G, degrees = log_SG.mean(axis=0), len(log_SG) - 1
        if degrees == 0:
            return _with_half_width(centre_G, np.full_like(centre_G, np.nan), 0, ONE_SEED)
        error_G = log_SG.std(axis=0, ddof=1) / np.sqrt(len(log_SG))
    return _with_half_width(centre_G, error_G * float(stats.t.isf(TAIL, degrees)), degrees, method)


def _unpaired(reference_SG: Array, run_SG: Array) -> Estimates:
    """Difference of means of groups with few or no seeds in common; the degrees of freedom are the fewest of any G."""
    centre_G = _difference(reference_SG.mean(axis=0), run_SG.mean(axis=0))
    if min(len(reference_SG), len(run_SG)) < 2:
        return _with_half_width(centre_G, np.full_like(centre_G, np.nan), 0, ONE_SEED)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = [values_SG.var(axis=0, ddof=1) / len(values_SG) for values_SG in (reference_SG, run_SG)]
        both_G = squares[0] + squares[1]
        parts_G = squares[0] ** 2 / (len(reference_SG) - 1) + squares[1] ** 2 / (len(run_SG) - 1)
        fewest = min(len(reference_SG), len(run_SG)) - 1
        degrees_G = np.where(parts_G > 0, both_G**2 / parts_G, fewest)
    half_G = np.sqrt(both_G) * stats.t.isf(TAIL, degrees_G)
    known_G = degrees_G[np.isfinite(degrees_G)]
    return _with_half_width(centre_G, half_G, float(known_G.min(initial=np.inf)), "Welch's t interval, no seeds paired")


def _difference(first: Array, second: Array) -> Array:
    """Infinity less infinity is unknown."""
    with np.errstate(invalid="ignore"):
        return np.asarray(first - second)


def _with_half_width(centre_G: Array, half_G: Array, degrees: float, method: str) -> Estimates:
    with np.errstate(over="ignore", invalid="ignore"):
        low_G, high_G = np.exp(centre_G - half_G), np.exp(centre_G + half_G)
        return Estimates(np.exp(centre_G), low_G, high_G, degrees, method)

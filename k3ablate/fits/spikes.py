"""Where does the loss of a training run jump up?

A logged loss is a spike where it lies above the median of the `BEFORE` logged before it by more than `DEVIATIONS`
times the usual distance from such a median: 1.4826 times the median size of these differences in the run, which is the
standard deviation of normal noise. Warm-up, where losses fall steeply, does not count, and spikes side by side are one,
at its highest. What is no spike by this rule may be one by another: it is for marks in a picture, not for a decision.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from k3ablate.fits.forms import Array

BEFORE = 9  # logged losses
DEVIATIONS = 8.0
NORMAL = 1.4826  # standard deviation over median size of a normal variable
RULE = (
    f"spike: a logged loss above the median of the {BEFORE} before it by more than {DEVIATIONS:g} robust standard "
    "deviations of that difference in the run, after its warm-up"
)


def spikes(loss_N: Array, start: int = 0) -> list[int]:
    """Positions of the spikes of a run among its logged losses, unsmoothed; `start`: the first after the warm-up."""
    first = max(BEFORE, start)
    if len(loss_N) <= first:
        return []
    above_M = loss_N[BEFORE:] - np.median(sliding_window_view(loss_N[:-1], BEFORE), axis=1)
    above_M = above_M[first - BEFORE :]
    usual = NORMAL * float(np.median(np.abs(above_M)))
    high = np.flatnonzero(above_M > DEVIATIONS * usual) if usual > 0 else np.array([], dtype=np.intp)
    runs = np.split(high, np.flatnonzero(np.diff(high) > 1) + 1) if len(high) else []
    return [first + int(run[np.argmax(above_M[run])]) for run in runs]

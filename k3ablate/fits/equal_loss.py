"""What did each group of runs spend until it met a loss, and how does that compare with the reference?

`read_at` reads one group at stated losses, `along_training` over all that it and the reference meet. Which losses the
command shows is in `training_curves.default_targets`, which groups compare is in `comparable`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from k3ablate.fits.comparable import Group
from k3ablate.fits.forms import Array
from k3ablate.fits.training_curves import (
    AXES,
    Estimates,
    first_reached,
    learning_rates,
    log_spent,
    mean_over_seeds,
    ratio,
    shared_losses,
)

NUM_ALONG = 50
OTHER_PHASE = 0.1  # of the peak of a learning rate


@dataclass(frozen=True)
class EqualLoss:
    """One group against the reference at losses [G], by axis as far as both logged it."""

    loss_G: Array
    position_SG: (
        Array  # of each seed among its logged steps; infinite where it never meets the loss, NaN in its warm-up
    )
    spent: Mapping[str, Estimates]
    ratio: Mapping[str, Estimates]  # above 1 the group needs less
    learning_rate_G: Array | None  # over its peak, where the loss is met
    reference_learning_rate_G: Array | None

    def not_met(self, index: int) -> str:
        """Which runs say nothing at one loss; empty where all do."""
        position_S = self.position_SG[:, index]
        never, early = int(np.isinf(position_S).sum()), int(np.isnan(position_S).sum())
        parts = [f"{never} of {len(position_S)} never meet it"] if never else []
        return "; ".join([*parts, *([f"{early} of {len(position_S)} meet it in the warm-up"] if early else [])])

    def caution(self, index: int) -> str:
        """Where the schedules stand at one loss, if they are in different phases there; else empty."""
        if self.learning_rate_G is None or self.reference_learning_rate_G is None:
            return ""
        ours, theirs = float(self.learning_rate_G[index]), float(self.reference_learning_rate_G[index])
        if not (np.isfinite(ours) and np.isfinite(theirs)) or abs(ours - theirs) <= OTHER_PHASE:
            return ""
        return (
            f"the learning rate is at {theirs:.2f} of its peak in the reference and at {ours:.2f} here: part of the "
            "ratio is the schedule's"
        )


def read_at(reference: Group, group: Group, loss_G: Array) -> EqualLoss:
    """What `group` spent until it met each loss, and what the reference did over that."""
    logs = {axis: log_spent(group.curves, axis, loss_G) for axis in AXES if group.has(axis)}
    theirs = {axis: log_spent(reference.curves, axis, loss_G) for axis in logs if reference.has(axis)}
    return EqualLoss(
        loss_G=loss_G,
        position_SG=np.array([first_reached(curve, loss_G) for curve in group.curves]),
        spent={axis: mean_over_seeds(log_SG) for axis, log_SG in logs.items()},
        ratio={
            axis: ratio(reference_SG, logs[axis], reference.seeds, group.seeds) for axis, reference_SG in theirs.items()
        },
        learning_rate_G=learning_rates(group.curves, loss_G),
        reference_learning_rate_G=learning_rates(reference.curves, loss_G),
    )


def along_training(reference: Group, group: Group) -> EqualLoss | None:
    """The comparison over all losses that both meet after their warm-up; None where there are none."""
    lowest, highest = shared_losses([*reference.curves, *group.curves])
    if not lowest < highest:
        return None
    return read_at(reference, group, np.linspace(highest, lowest, NUM_ALONG + 1)[1:])

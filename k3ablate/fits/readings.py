"""What is ln m of every arm at ONE common point, with draws that keep what the arms' noise has in common?

`analysis` reads each arm where it and the baseline were measured, which is where one number is worth most. What adds
arms up, like a split, needs all of them at one loss, and needs draw i of one arm to belong to draw i of another.
Nothing is fitted or drawn here, and no arm is printed from here without its `beyond` and its warnings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis
from k3ablate.fits.forms import Array
from k3ablate.fits.multiplier import draw_log_multipliers, loss_to_read, reach
from k3ablate.fits.solve import Fit
from k3ablate.fits.uncertainty import Draws


@dataclass(frozen=True)
class Readings:
    """ln m = ln C_baseline(loss) - ln C_arm(loss) of every arm that has a curve; 0 for the baseline itself."""

    baseline: str
    form: str
    loss: float  # where all are read
    compute: float  # of the baseline at that loss
    log_multiplier: Mapping[str, float]  # arm -> ln m
    draws: Mapping[str, Array]  # arm -> ln m [D], drawn jointly over arms
    beyond: Mapping[str, float]  # arm -> factor by which the reading lies outside what it and the baseline measured
    warnings: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)  # arm -> why it cannot be read there

    def measured(self, arm: str) -> bool:
        """Whether the loss lies inside the measured range of the arm and of the baseline."""
        return self.beyond[arm] == 1.0


def read_all(
    analysis: Analysis, form: str | None = None, loss: float | None = None, compute: float | None = None,
    arms: Sequence[str] | None = None,
) -> Readings:  # fmt: skip
    """Every arm's ln m at `loss`, or where the baseline has spent `compute`; both None: the lowest loss all measured.

    `form` None is the one the analysis chose, `arms` None all that it has. InputError where the baseline has no curve
    of the form or cannot be read there; an arm without one, or whose curve does not reach the loss, is in `refused`.
    """
    name, base = _form(analysis, form), analysis.arm(analysis.baseline)
    if name not in base.fits:
        raise InputError(f"{analysis.baseline}: no {name} curve: {base.no_fit.get(name, 'this form was not fitted')}")
    asked = [arm for arm in analysis.arms if arms is None or arm.arm in arms or arm is base]
    refused = {arm.arm: arm.no_fit.get(name, "no curve") for arm in asked if name not in arm.fits}
    fits = {arm.arm: arm.fits[name] for arm in asked if name in arm.fits}
    at_loss = loss_to_read(base.fits[name], list(fits.values()), loss, compute)
    log_compute, beyond_range = {}, {}
    for arm, fitted in fits.items():
        try:
            reached, beyond_range[arm] = reach(fitted, at_loss, arm)
        except InputError as error:
            if arm == analysis.baseline:
                raise
            refused[arm] = str(error)
            continue
        log_compute[arm] = float(np.log(reached))
    draws = {arm: analysis.arm(arm).draws[name] for arm in log_compute}
    at_baseline = log_compute[analysis.baseline]
    return Readings(
        baseline=analysis.baseline,
        form=name,
        loss=at_loss,
        compute=float(np.exp(at_baseline)),
        log_multiplier={arm: at_baseline - at_arm for arm, at_arm in log_compute.items()},
        draws=_joint_draws(draws, analysis.baseline, at_loss, compute),
        beyond={arm: max(factor, beyond_range[analysis.baseline]) for arm, factor in beyond_range.items()},
        warnings=_warnings(analysis, {arm: fits[arm] for arm in log_compute}, refused),
        refused=refused,
    )


def _form(analysis: Analysis, asked: str | None) -> str:
    name = asked or analysis.form
    if name is None:
        raise InputError(f"no curve to read a multiplier from: {analysis.form_reason}")
    return name


def _joint_draws(draws: Mapping[str, Draws], baseline: str, loss: float, compute: float | None) -> dict[str, Array]:
    """ln m [D] of every arm; the baseline against itself is 0 in every draw, also where it does not reach the loss."""
    read = {arm: draw_log_multipliers(draws[baseline], drawn, loss, compute) for arm, drawn in draws.items()}
    return read | {baseline: np.zeros_like(read[baseline])}


def _warnings(analysis: Analysis, fits: Mapping[str, Fit], refused: Mapping[str, str]) -> tuple[str, ...]:
    """What holds for the table, what for single curves, and the arms that are missing."""
    of_curves = [f"{arm}: {text}" for arm, fitted in fits.items() for text in fitted.warnings]
    of_arms = [f"{arm}: no multiplier here: {reason}" for arm, reason in refused.items()]
    return (*analysis.warnings, *of_curves, *of_arms)

"""What is one multiplier per arm, if the arms differ by nothing else?

Both forms here are the same curves, L_S = E + A_S C^-a with floor and exponent common to all arms (statistics.md,
section 2): `shared_exponent` names each arm's own coefficient A_S, `shared_floor` its multiplier against the baseline,
m_S = (A_S / A_baseline)^(-1/a), the same at every loss. A floor may be given; 0 makes both a power law with a common
exponent. Both are a hypothesis: `hypotheses` tests it, and `analysis` reads no multiplier from it where it fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.determined import condition_number, num_distinct
from k3ablate.fits.floors import undetermined_floor
from k3ablate.fits.forms import SHARED_FLOOR, Array
from k3ablate.fits.joint import SIZES_FOR_FLOOR, Joint, fit_joint
from k3ablate.fits.solve import ILL_CONDITIONED, Fit
from k3ablate.fits.uncertainty import Draws


@dataclass(frozen=True)
class SharedFit:
    """Curves of one shared form through all arms; each `Fit` is one arm's, with the diagnostics of the joint fit."""

    form: str
    baseline: str
    joint: Joint
    fits: Mapping[str, Fit]

    def refit(self, noise_DN: Array) -> dict[str, Draws]:
        """Every arm's curve with other noise on every point, all arms fitted together in each draw."""
        return self._draws(self.joint.refit(noise_DN))

    def _draws(self, curves: list[dict[str, Array]]) -> dict[str, Draws]:
        named = dict(zip(self.fits, curves, strict=True))
        base = named[self.baseline]
        return {arm: Draws(self.form, _parameters(self.form, curve, base)) for arm, curve in named.items()}


def fit_shared(
    compute: Mapping[str, Array], loss: Mapping[str, Array], form: str, baseline: str, delta: float,
    floor: float | None = None,
) -> SharedFit:  # fmt: skip
    """Fit a shared form to losses [N] of every arm at compute in any unit; `floor` None leaves E free.

    InputError where the points are too few, or lack the sizes, to determine the curves.
    """
    _refuse(compute, baseline, form, floor)
    compute_K, loss_K = list(compute.values()), list(loss.values())
    joint = fit_joint(compute_K, loss_K, True, floor, delta)
    condition = condition_number(joint.jacobian)
    warnings = _warnings(joint, condition, compute_K, loss_K)
    curves = dict(zip(compute, joint.curves(), strict=True))
    fits = {}
    for index, (arm, curve) in enumerate(curves.items()):
        fits[arm] = Fit(
            form=form,
            values={name: float(value_S[0]) for name, value_S in _parameters(form, curve, curves[baseline]).items()},
            objective=joint.objective,
            delta=delta,
            num_points=len(joint.data.x_NV),
            ranges={"compute": (float(compute[arm].min()), float(compute[arm].max()))},
            clipped_share=float(np.mean(np.abs(joint.residuals) > delta)),
            num_starts=len(joint.objective_G),
            converged_share=joint.converged_share,
            at_bounds=joint.at_bounds(index),
            condition_number=condition,
            warnings=warnings,
        )
    return SharedFit(form, baseline, joint, fits)


def _parameters(form: str, curve: Mapping[str, Array], baseline: Mapping[str, Array]) -> dict[str, Array]:
    """Parameters [S] of one arm as the form names them."""
    if form != SHARED_FLOOR.name:
        return dict(curve)
    log_multiplier_S = (np.log(baseline["A"]) - np.log(curve["A"])) / curve["a"]
    return {**curve, "A": baseline["A"], "m": np.exp(log_multiplier_S)}


def _refuse(compute: Mapping[str, Array], baseline: str, form: str, floor: float | None) -> None:
    if baseline not in compute or len(compute) < 2:
        raise InputError(
            f"{form}: needs finished runs of {baseline} and of another arm; there are some of "
            f"{', '.join(compute) or 'none'}"
        )
    most = max(num_distinct(compute_N) for compute_N in compute.values())
    needed = SIZES_FOR_FLOOR if floor is None else 2
    if most < needed:
        hint = "" if floor is not None else ", or give the floor (0 for none)"
        raise InputError(
            f"{form}: undetermined: no arm has more than {most} different compute values and {needed} are needed "
            f"(seeds do not help); add sizes{hint}"
        )


def _warnings(joint: Joint, condition: float, compute_K: list[Array], loss_K: list[Array]) -> tuple[str, ...]:
    warnings = []
    at_bounds = dict.fromkeys(name for arm in range(len(compute_K)) for name in joint.at_bounds(arm))
    if at_bounds:
        warnings.append(f"{', '.join(at_bounds)} at a bound: this form does not suit the points")
    if condition > ILL_CONDITIONED:
        warnings.append(f"parameters hardly told apart by these points (condition number {condition:.1e})")
    undetermined = None if joint.form.hold_floor else undetermined_floor(compute_K, loss_K)
    if undetermined:
        warnings.append(f"the common floor is undetermined: {undetermined}; intervals include that")
    return tuple(warnings)

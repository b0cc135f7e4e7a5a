"""Do these points determine a form at all?

Refused are points that leave a parameter free whatever the losses: too few of them, one size, too few different inputs
(statistics.md, section 6), and, for a form of several variables, inputs that move together. The last is told by the
rank of the Jacobian with columns of unit length at equal exponents, where it depends on the design alone: one token
count leaves rank 3 of 5, and so do models that all have 20 tokens per parameter. Losses are not looked at, nor noise:
whether a determined form suits the points stands in `solve`, how well it is known in the intervals.
"""

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.forms import Array, Form

SAME_INPUT = 1e-6  # relative: rounding of one value
DESIGN_EXPONENT = 1 / 3  # near what curves in print have; the rank does not depend on it
# Smallest over largest singular value. The Chinchilla points have .026, three by three sizes and token counts that span
# a factor of two .001; a tenth of spread about 20 tokens per parameter has .0017, a twentieth .0005.
RANK_TOLERANCE = 1e-3
LOADING = 0.3  # part of a parameter in a direction that the points leave free


def num_distinct(values_N: Array) -> int:
    """How many values differ by more than a rounding error (1e-6 relative)."""
    return int(1 + np.count_nonzero(np.diff(np.sort(np.log(values_N))) > SAME_INPUT)) if len(values_N) else 0


def condition_number(jacobian_NP: Array) -> float:
    """Of the Jacobian with columns of unit length."""
    return float(np.linalg.cond(_unit_columns(jacobian_NP)))


def refuse_undetermined(form: Form, x_NV: Array) -> list[str]:
    """InputError where these inputs cannot determine the form; a warning where they only just do."""
    num_free, inputs = len(form.parameters), " and ".join(form.variables)
    distinct = num_distinct(x_NV[:, 0]) if len(form.variables) == 1 else _num_distinct_rows(x_NV)
    if distinct == 1:
        where = ", ".join(f"{name} {value:.4g}" for name, value in zip(form.variables, x_NV[0], strict=True))
        raise InputError(f"{form.name}: one size, no curve: all points are at {where}; add a size")
    if len(x_NV) <= num_free:
        raise InputError(
            f"{form.name}: {len(x_NV)} points for {num_free} free parameters; "
            "add sizes or seeds until there are more points"
        )
    if len(form.variables) > 1:
        _refuse_moving_together(form, x_NV)
    if distinct < form.min_distinct:
        raise InputError(
            f"{form.name}: undetermined: {distinct} different {inputs} values for {num_free} free parameters "
            f"(seeds do not help); add sizes until there are {form.min_distinct}"
            + (", or ask for the form power" if len(form.variables) == 1 else "")
        )
    if distinct == num_free:
        return [f"{distinct} different {inputs} values determine {form.name} exactly: nothing checks its shape"]
    return []


def _num_distinct_rows(x_NV: Array) -> int:
    """Different inputs, up to rounding."""
    return len(np.unique(np.round(np.log(x_NV) / SAME_INPUT), axis=0))


def _refuse_moving_together(form: Form, x_NV: Array) -> None:
    """InputError where the Jacobian's rank says which parameters these inputs cannot tell apart."""
    log_NV = np.log(x_NV) - np.log(x_NV).mean(axis=0)
    coefficients, exponents = np.ones((1, len(form.terms))), np.full((1, len(form.exponents)), DESIGN_EXPONENT)
    _, jacobian_SNP = form.log_prediction(form.scaled(coefficients, exponents), log_NV)
    _, singular_P, directions_PP = np.linalg.svd(_unit_columns(jacobian_SNP[0]), full_matrices=False)
    free_FP = directions_PP[singular_P < RANK_TOLERANCE * singular_P[0]]
    if not len(free_FP):
        return
    together = [name for name, part in zip(form.parameters, np.abs(free_FP).max(axis=0), strict=True) if part > LOADING]
    raise InputError(
        f"{form.name}: these points cannot tell {', '.join(together)} apart: the scaled Jacobian has rank "
        f"{len(form.parameters) - len(free_FP)} of {len(form.parameters)}; {_reason(form, x_NV)}"
    )


def _reason(form: Form, x_NV: Array) -> str:
    """What moves too little, and the form that these points do determine."""
    few = {name: num_distinct(x_N) for name, x_N in zip(form.variables, x_NV.T, strict=True)}
    spread = {name: float(np.ptp(np.log(x_N))) for name, x_N in zip(form.variables, x_NV.T, strict=True)}
    first, second = form.variables
    ratio_N = x_NV[:, 1] / x_NV[:, 0]
    held, other = (first, second) if (few[first], spread[first]) < (few[second], spread[second]) else (second, first)
    if few[held] <= 2 or spread[held] < float(np.ptp(np.log(ratio_N))):
        low, high = x_NV[:, form.variables.index(held)].min(), x_NV[:, form.variables.index(held)].max()
        return (
            f"{held} has {few[held]} different value{'s' if few[held] > 1 else ''} ({low:.4g} to {high:.4g}): vary it, "
            f"or fit the reduced form power_floor over {other} alone (--form power_floor, --x its column)"
        )
    return (
        f"all have {ratio_N.min():.3g} to {ratio_N.max():.3g} {second} per {first.removesuffix('s')}: vary that, "
        "or fit the reduced form power_floor over compute alone (--form power_floor)"
    )


def _unit_columns(jacobian_NP: Array) -> Array:
    lengths_P = np.linalg.norm(jacobian_NP, axis=0)
    return np.asarray(jacobian_NP / np.where(lengths_P > 0, lengths_P, 1.0), dtype=np.float64)

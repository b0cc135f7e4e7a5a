"""What is known before a planned experiment about its curves and its seeds?

Either a pilot, any table with two seeds at some size, whose pooled deviation and baseline curve are taken over; or a
stated deviation with a stated curve. What is assumed without either is the spread of a public speed-run, as section 7
of the statistics has it: .0012 in loss, at the loss and the exponent of the Attention Residuals ladder (arXiv
2603.15031: 1.714 at its end, published baseline curve 1.891 C^-.057), where it is worth 1.2 percent of compute.
"""

from dataclasses import dataclass

import numpy as np
import pandas
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.analysis import analyse
from k3ablate.fits.curves import seeds_of
from k3ablate.fits.forms import POWER, curve_named
from k3ablate.fits.observations import observations
from k3ablate.fits.simulated_tables import Truth
from k3ablate.fits.solve import Interval
from k3ablate.fits.uncertainty import TAIL
from k3ablate.records import Varied

SEED_DEVIATION = 0.0012  # in loss
LOSS, EXPONENT = 1.714, 0.057
FEW_DRAWS = 39  # only the curve is read
SEED = 0
ROUNDING = 1e-9  # of ln L: seeds closer than this are copies


@dataclass(frozen=True)
class Basis:
    """What is planted, where it comes from, and how well the deviation is known."""

    truth: Truth
    source: str
    degrees_of_freedom: int | None  # of the deviation; None where it was stated or assumed
    seed_sd_interval: Interval | None  # 95 percent, of ln L
    worth: float  # factor of compute that one deviation is worth at the largest size


def stated(largest: float, deviation: float | None, loss: float | None, exponent: float | None) -> Basis:
    """A power law through `loss` at the `largest` planned compute, with a `deviation` in loss there; None is assumed.

    InputError where a number is not positive.
    """
    for name, value in (("--seed-deviation", deviation), ("--loss", loss), ("--exponent", exponent)):
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"{name} {value}: write a positive number")
    at_loss, slope = loss or LOSS, exponent or EXPONENT
    if deviation is not None and deviation >= at_loss:
        raise InputError(f"--seed-deviation {deviation}: not below the loss {at_loss}; write it in nats per token")
    curve = f"loss {at_loss:g} at the largest size and exponent {slope:g}"
    curve += "" if loss and exponent else " (Attention Residuals, arXiv 2603.15031, where not stated)"
    assumed = "that of a public speed-run, for want of a pilot (toy models spread over ten times more)"
    spread = (
        f"a deviation of {deviation or SEED_DEVIATION:g} in loss between seeds, {'as stated' if deviation else assumed}"
    )
    truth = Truth(POWER.name, {"A": at_loss * largest**slope, "a": slope}, (deviation or SEED_DEVIATION) / at_loss)
    return _basis(truth, largest, f"{spread}; {curve}; no noise common to arms", None)


def from_pilot(
    table: pandas.DataFrame, baseline: str | None, largest: float, called: str, varied: str | None = None
) -> Basis:
    """Deviation of the seeds of all arms, and the curve of `baseline` (None: the first arm), of the table `called` so.

    InputError where no arm has two seeds at a size, or where they differ in something else than `varied`, what the
    planned seeds vary (`records.Varied`; None: not known).
    """
    seen = observations(table)
    _refuse_other_noise(table, called, varied)
    noise = seeds_of(seen)
    if noise is None:
        raise InputError(
            f"{called}: no arm has two finished seeds at one size, which the deviation between seeds needs; add seeds "
            "to the pilot, or state a deviation in loss (--seed-deviation)"
        )
    if noise.pooled_sd < ROUNDING:
        raise InputError(f"{called}: all seeds of an arm and size have one loss; its seeds are copies of one run")
    finished = [arm for arm, points in seen.points.items() if points]
    first = baseline if baseline is not None and baseline in finished else finished[0]
    analysis = analyse(table, first, None, np.random.default_rng(SEED), FEW_DRAWS)
    only = "" if varied in (None, Varied.BOTH) else f", which vary {varied} alone,"
    spread = f"the deviation between seeds{only} in {called} ({noise.degrees_of_freedom} degrees of freedom)"
    fitted = None if analysis.form is None else analysis.arm(first).fits[analysis.form]
    if fitted is None or fitted.at_bounds:
        form, values = POWER.name, {"A": LOSS * largest**EXPONENT, "a": EXPONENT}
        curve = f"exponent {EXPONENT:g} (Attention Residuals), as {called} has no curve that falls"
    else:
        form, values = fitted.form, dict(fitted.values)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        curve = f"the curve of {first} there ({form}: {shown})"
    truth = Truth(form, values, noise.pooled_sd, noise.shared_share)
    return _basis(truth, largest, f"{spread}; {curve}", noise.degrees_of_freedom)


def _refuse_other_noise(table: pandas.DataFrame, called: str, varied: str | None) -> None:
    found = sorted(map(str, table["varied"].dropna().unique())) if "varied" in table else []
    if varied is not None and found and found != [varied]:
        raise InputError(
            f"{called}: its seeds vary {' or '.join(found)} and those of the plan {varied}, which is other noise; "
            f"name a pilot that was run with `vary: {varied}`, or state a deviation in loss (--seed-deviation)"
        )


def _basis(truth: Truth, largest: float, source: str, degrees: int | None) -> Basis:
    form = curve_named(truth.form)
    values = {name: np.array([value]) for name, value in truth.values.items()}
    loss = form.predict(truth.values, largest) * np.exp(truth.seed_sd)
    (log_compute,) = form.log_compute_at(values, loss)
    interval = None
    if degrees is not None:
        low, high = (
            truth.seed_sd * float(np.sqrt(degrees / stats.chi2.isf(tail, degrees))) for tail in (TAIL, 1 - TAIL)
        )
        interval = Interval(low, high)
    with np.errstate(over="ignore"):
        return Basis(truth, source, degrees, interval, float(np.exp(np.log(largest) - log_compute)))

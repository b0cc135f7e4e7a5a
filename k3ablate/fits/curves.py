"""What curve does every arm of a table follow, and how would all of them have come out with other seeds?

`own_curves` fits one form to each arm by itself, `shared_curves` a form that arms share to all of them at once. Either
way all points of the table are drawn again together, so that any two arms keep the noise they have in common. Which
form is used for what is decided in `analysis`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.observations import Observations
from k3ablate.fits.paired import Point
from k3ablate.fits.shared import SharedFit, fit_shared
from k3ablate.fits.solve import Fit, fit
from k3ablate.fits.uncertainty import (
    Draws,
    Noise,
    lack_of_fit,
    linear_noise,
    misfit,
    refit,
    residual_noise,
    seed_noise,
)

NOTHING_OF_ARM = "no run of this arm finished"


@dataclass(frozen=True)
class Drawing:
    """How curves are fitted and drawn again."""

    delta: float
    num_draws: int
    generator: np.random.Generator


@dataclass(frozen=True)
class Curves:
    """Fits of one form to all arms that allow it, with their bootstrap draws."""

    fits: Mapping[str, Fit]
    refused: Mapping[str, str]
    draws: Mapping[str, Draws]
    noise: Noise | None

    def warned(self, warning: str) -> "Curves":
        """The same with a warning on every curve."""
        return replace(
            self, fits={arm: replace(one, warnings=(*one.warnings, warning)) for arm, one in self.fits.items()}
        )


def seeds_of(seen: Observations) -> Noise | None:
    """Noise from the seeds of all arms, fitted or not; None where no arm has two seeds at a size."""
    everything = [(arm, point) for arm, points in seen.points.items() for point in points]
    cells = [(arm, point.size) for arm, point in everything]
    keys = [(point.size, point.seed) for _, point in everything]
    return seed_noise(cells, keys, np.log([point.loss for _, point in everything])) if everything else None


def own_curves(seen: Observations, form: str, drawing: Drawing) -> Curves:
    """Every arm's own curve of `form`; arms whose points do not determine it are in `refused`."""
    fits: dict[str, Fit] = {}
    refused: dict[str, str] = {}
    for arm, points in seen.points.items():
        try:
            fits[arm] = _fit(points, form, drawing.delta, _dropped(seen, arm))
        except InputError as error:
            refused[arm] = str(error)
    if not fits:
        return Curves(fits, refused, {}, None)
    arrays = {arm: arrays_of(seen.points[arm]) for arm in fits}
    compute, loss = ({arm: pair[side] for arm, pair in arrays.items()} for side in (0, 1))
    keys = {arm: keys_of(seen.points[arm]) for arm in fits}
    noise = seeds_of(seen) or residual_noise(fits, compute, loss, _flat(keys))
    draws = {arm: refit(fits[arm], compute[arm], noise_DN) for arm, noise_DN in _drawn(noise, keys, drawing).items()}
    warnings = {arm: lack_of_fit(fits[arm], compute[arm], loss[arm], noise) for arm in fits}
    return Curves({arm: _completed(fits[arm], draws[arm], noise, warnings[arm]) for arm in fits}, refused, draws, noise)


def shared_curves(seen: Observations, form: str, baseline: str, floor: float | None, drawing: Drawing) -> Curves:
    """Curves of a form that all arms share; one reason refuses all of them."""
    arms = {arm: arrays_of(points) for arm, points in seen.points.items() if points}
    refused = {arm: NOTHING_OF_ARM for arm in seen.points if arm not in arms}
    compute, loss = ({arm: pair[side] for arm, pair in arms.items()} for side in (0, 1))
    try:
        shared = fit_shared(compute, loss, form, baseline, drawing.delta, floor)
    except InputError as error:
        return Curves({}, refused | {arm: str(error) for arm in arms}, {}, None)
    keys = {arm: keys_of(seen.points[arm]) for arm in arms}
    noise = seeds_of(seen) or linear_noise(shared.joint.residuals, shared.joint.jacobian, _flat(keys))
    draws = shared.refit(np.concatenate(list(_drawn(noise, keys, drawing).values()), axis=1))
    warning = _shared_misfit(shared, compute, noise)
    fits = {
        arm: replace(_completed(fitted, draws[arm], noise, warning), dropped=_dropped(seen, arm))
        for arm, fitted in shared.fits.items()
    }
    return Curves(fits, refused, draws, noise)


def arrays_of(points: Sequence[Point]) -> tuple[Array, Array]:
    """Compute [N] and loss [N]."""
    return np.array([point.compute for point in points]), np.array([point.loss for point in points])


def keys_of(points: Sequence[Point]) -> list[tuple[str, int]]:
    """What pairs runs of different arms: size and seed."""
    return [(point.size, point.seed) for point in points]


def _fit(points: Sequence[Point], form: str, delta: float, dropped: tuple[str, ...]) -> Fit:
    if not points:
        raise InputError(NOTHING_OF_ARM)
    return fit(*arrays_of(points), form, delta, dropped)


def _dropped(seen: Observations, arm: str) -> tuple[str, ...]:
    runs = [run for run in seen.excluded if run.arm == arm]
    return tuple(f"{run.size} seed {run.seed}: {run.status} ({run.reason})" for run in runs)


def _drawn(noise: Noise, keys: Mapping[str, list[tuple[str, int]]], drawing: Drawing) -> dict[str, Array]:
    """Noise [D, N] of each arm's points, drawn for all arms at once."""
    noise_DN = noise.draw(_flat(keys), drawing.num_draws, drawing.generator)
    splits = np.cumsum([len(part) for part in keys.values()])[:-1]
    return dict(zip(keys, np.split(noise_DN, splits, axis=1), strict=True))


def _flat(keys: Mapping[str, list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return [key for part in keys.values() for key in part]


def _completed(fitted: Fit, draws: Draws, noise: Noise, warning: str | None) -> Fit:
    """The fit with its intervals and what the noise says about it."""
    warnings = (*fitted.warnings, warning) if warning else fitted.warnings
    return replace(fitted, intervals=draws.intervals(), interval_method=noise.method, warnings=warnings)


def _shared_misfit(shared: SharedFit, compute: Mapping[str, Array], noise: Noise) -> str | None:
    cells = [(arm, float(value)) for arm, compute_N in compute.items() for value in compute_N]
    ratio = misfit(shared.joint.residuals, cells, shared.joint.form.num_free, noise)
    return f"sizes lie {ratio:.1f} times further from the {shared.form} curves than seeds explain" if ratio else None

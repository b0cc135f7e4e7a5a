"""What curve does every arm of a table follow, in any form, and what does it forecast?

`fit_arms` fits one form to each arm by itself, or to all together where the form is one that arms share, and draws its
intervals: from the seeds of all arms where runs are replicated, by resampling the points of a large table where they
are not, else from residuals. A shared form carries a warning where the test of `hypotheses` rejects it, and then
states no single multiplier per arm. No multiplier is read here with all that belongs to it: see `analysis`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.curves import Drawing, shared_curves
from k3ablate.fits.forecasts import Prediction, check_point, forecast
from k3ablate.fits.forms import POWER, POWER_FLOOR, SHARED, SHARED_FLOOR, Array, curve_named
from k3ablate.fits.hypotheses import parallel_test
from k3ablate.fits.minimise import Residuals
from k3ablate.fits.observations import Excluded, Observations, Usable, check_arm, of_compute
from k3ablate.fits.resampling import METHOD, MIN_POINTS, resample
from k3ablate.fits.solve import DEFAULT_DELTA, Fit, fit
from k3ablate.fits.uncertainty import (
    NUM_DRAWS,
    Draws,
    Noise,
    lack_of_fit,
    refit,
    residual_noise,
    seed_noise,
)

# Variable of a form -> our column of it.
COLUMN_OF = {"compute": "flops", "params": "active_params", "tokens": "tokens"}
Intervals = Literal["noise", "resampling"]
FEW_SEEDS = 0.1  # degrees of freedom of the seeds' noise per point
ONE_MORE_RUN = ("one more run", 0)
MULTIPLIER = "m"  # the parameter of `shared_floor` that is a hypothesis
MAX_NAMED = 3  # of the runs that are in no fit, where none is


@dataclass(frozen=True)
class ArmFit:
    """The curve of one arm; without one, `refused` says why. `noise_sd`: deviation of ln L about it, or of seeds."""

    arm: str
    fit: Fit | None
    num_points: int
    dropped: tuple[str, ...]  # rows that were not used, with the reason
    refused: str = ""
    noise_sd: float = float("nan")
    predictions: tuple[Prediction, ...] = ()


@dataclass(frozen=True)
class ArmFits:
    """Curves of one form, and the sentence that says why this form."""

    form: str
    form_reason: str
    arms: tuple[ArmFit, ...]


@dataclass(frozen=True)
class Options:
    """How curves are fitted and intervals made. `intervals` None: the rule of the module."""

    delta: float = DEFAULT_DELTA
    residuals: Residuals = "log"
    intervals: Intervals | None = None
    num_draws: int = NUM_DRAWS
    predict: tuple[tuple[float, ...], ...] = ()  # points, one number per variable
    baseline: str | None = None  # the arm whose multiplier is 1 in `shared_floor`; None: the first of the table


@dataclass(frozen=True)
class _Points:
    """Runs of one arm: inputs [N] or [N, V], losses, and the labels that seeds are paired by."""

    inputs: Array
    loss_N: Array
    keys: tuple[tuple[str, int], ...]
    dropped: tuple[str, ...]


def fit_arms(
    table: Usable, form: str | None, options: Options, generator: np.random.Generator, left_out: Sequence[str] = ()
) -> ArmFits:
    """Fit `form` to every arm; None is `power_floor` where every arm allows it without a bound, else `power`.

    `left_out`: sentences about rows that were not asked for. InputError where no arm can be fitted.
    """
    if form is not None:
        return _fitted(table, form, f"{form}, as asked for", options, generator, left_out)
    for arm, points in sorted(_points(table, POWER_FLOOR.name, left_out).items()):
        found = _attempt(points, POWER_FLOOR.name, options)
        if isinstance(found, str) or found.at_bounds:
            why = found if isinstance(found, str) else f"{', '.join(found.at_bounds)} at a bound of power_floor"
            return _fitted(table, POWER.name, f"power, because of {arm}: {why}", options, generator, left_out)
    reason = "power_floor: every arm determines its floor"
    return _fitted(table, POWER_FLOOR.name, reason, options, generator, left_out)


def _fitted(
    table: Usable, form: str, reason: str, options: Options, generator: np.random.Generator, left_out: Sequence[str]
) -> ArmFits:
    for point in options.predict:
        check_point(form, point)
    points = _points(table, form, left_out)
    if form in SHARED:
        found, refused = _together(table, points, form, options, generator)
    else:
        found, refused = _one_by_one(points, form, options, generator)
    if not found:
        raise InputError("; ".join(dict.fromkeys(refused.values())) if form in SHARED else _listed(refused))
    arms = tuple(
        found[arm] if arm in found else ArmFit(arm, None, len(runs.loss_N), runs.dropped, refused[arm])
        for arm, runs in points.items()
    )
    return ArmFits(form, reason, arms)


def _listed(refused: Mapping[str, str]) -> str:
    return "; ".join(f"{arm}: {why}" for arm, why in refused.items())


def _one_by_one(
    points: Mapping[str, _Points], form: str, options: Options, generator: np.random.Generator
) -> tuple[dict[str, ArmFit], dict[str, str]]:
    """Arms with a curve of their own, and why the others have none."""
    points = dict(sorted(points.items()))  # draws do not depend on the order of the table
    attempts = {arm: _attempt(runs, form, options) for arm, runs in points.items()}
    fits = {arm: found for arm, found in attempts.items() if isinstance(found, Fit)}
    seeds = _seed_noise(points) if fits else None
    resampled = [arm for arm in fits if _is_resampled(len(points[arm].loss_N), options.intervals, seeds)]
    found = {arm: _by_resampling(arm, fits[arm], points[arm], options, generator) for arm in resampled}
    modelled = {arm: fitted for arm, fitted in fits.items() if arm not in resampled}
    if modelled:
        noise = seeds or residual_noise(
            modelled,
            {arm: points[arm].inputs for arm in modelled},
            {arm: points[arm].loss_N for arm in modelled},
            [key for arm in modelled for key in points[arm].keys],
        )
        found |= _by_noise(modelled, points, noise, options, generator)
    return found, {arm: why for arm, why in attempts.items() if isinstance(why, str)}


def _together(
    table: Usable, points: Mapping[str, _Points], form: str, options: Options, generator: np.random.Generator
) -> tuple[dict[str, ArmFit], dict[str, str]]:
    """Arms of a form that they share, and why the others are not among them."""
    if options.residuals != "log" or options.intervals == "resampling":
        raise InputError(f"{form}: arms that share a form are fitted in ln L, with intervals of the noise model")
    baseline = options.baseline or _default_baseline(points, form)
    check_arm(baseline, points)
    seen = of_compute(table).by_name()
    shared = shared_curves(seen, form, baseline, None, Drawing(options.delta, options.num_draws, generator))
    if shared.noise is None:
        return {}, dict(shared.refused)
    rejected, against = _against(seen, form, options, shared.noise if shared.noise.source == "seeds" else None)
    noise_D = shared.noise.draw([ONE_MORE_RUN], options.num_draws, generator)[:, 0]
    found = {}
    for arm, fitted in (shared.warned(against) if against else shared).fits.items():
        complete = replace(fitted, dropped=points[arm].dropped)
        drawn = _with_draws(arm, complete, shared.draws[arm], noise_D, shared.noise.pooled_sd, options)
        found[arm] = _without_multiplier(drawn) if rejected else drawn
    return found, {arm: _nothing_finished(points[arm]) for arm in shared.refused}


def _default_baseline(points: Mapping[str, _Points], form: str) -> str:
    """The first arm of the table; another one would give every multiplier another meaning without a word."""
    finished = [arm for arm, runs in points.items() if len(runs.loss_N)]
    first = next(iter(points), "")
    if form != SHARED_FLOOR.name:  # no parameter is against a baseline
        return finished[0] if finished else first
    if finished and first != finished[0]:
        raise InputError(
            f"{form}: no run of {first} finished, the first arm, which is the baseline where none is named; "
            f"write --baseline with one of {', '.join(finished)}"
        )
    return first


def _against(seen: Observations, form: str, options: Options, seeds: Noise | None) -> tuple[bool, str | None]:
    """Whether the test of one exponent for all arms rejects a shared form, and what it or its absence says."""
    try:
        test = parallel_test(seen.points, None, options.delta, seeds)
    except InputError as error:
        return False, f"{form} is a hypothesis, which these points do not test: {error}"
    if not test.rejected:
        return False, None
    stands = "m(C) stands" if options.baseline else f"`k3ablate fit TABLE --form {form} --baseline ARM` gives m(C)"
    withheld = f"; {MULTIPLIER} is withheld: {stands} instead of a single number" if form == SHARED_FLOOR.name else ""
    return True, f"{form} is rejected: {test.decision}{withheld}"


def _without_multiplier(found: ArmFit) -> ArmFit:
    """A rejected form still draws its curves, but its single m is no number that could be quoted."""
    assert found.fit is not None, "arms that share a form have a curve"
    values = {name: value for name, value in found.fit.values.items() if name != MULTIPLIER}
    intervals = {name: interval for name, interval in found.fit.intervals.items() if name != MULTIPLIER}
    return replace(found, fit=replace(found.fit, values=values, intervals=intervals))


def _points(table: Usable, form: str, left_out: Sequence[str]) -> dict[str, _Points]:
    variables = [COLUMN_OF[name] for name in curve_named(form).variables]
    found = {}
    for arm in table.arms:
        rows = table.finished[table.finished["arm"] == arm]
        inputs_NV = rows[variables].to_numpy(dtype=np.float64)
        keys = tuple(zip(rows["size"], rows["seed"], strict=True))
        dropped = [*left_out, *(_dropped(run) for run in table.excluded if run.arm == arm)]
        inputs = inputs_NV if len(variables) > 1 else inputs_NV[:, 0]
        found[arm] = _Points(inputs, rows["loss"].to_numpy(dtype=np.float64), keys, tuple(dropped))
    return found


def _dropped(run: Excluded) -> str:
    return f"{run.size} seed {run.seed}: {run.status} ({run.reason})"


def _attempt(points: _Points, form: str, options: Options) -> Fit | str:
    """The fit of one arm, or why there is none."""
    if not len(points.loss_N):
        return _nothing_finished(points)
    try:
        return fit(points.inputs, points.loss_N, form, options.delta, points.dropped, options.residuals)
    except InputError as error:
        return str(error)


def _nothing_finished(points: _Points) -> str:
    named = "; ".join(points.dropped[:MAX_NAMED]) + ("; ..." if len(points.dropped) > MAX_NAMED else "")
    return f"no run finished, so there is nothing to fit: {named}"


def _is_resampled(num_points: int, asked: Intervals | None, seeds: Noise | None) -> bool:
    """As asked for; by itself where points are many and seeds say little."""
    few_seeds = seeds is None or seeds.degrees_of_freedom < FEW_SEEDS * num_points
    return asked == "resampling" or (asked is None and few_seeds and num_points >= MIN_POINTS)


def _seed_noise(points: Mapping[str, _Points]) -> Noise | None:
    cells = [(arm, size) for arm, runs in points.items() for size, _ in runs.keys]
    keys = [key for runs in points.values() for key in runs.keys]
    return seed_noise(cells, keys, np.log(np.concatenate([runs.loss_N for runs in points.values()])))


def _by_resampling(arm: str, fitted: Fit, points: _Points, options: Options, generator: np.random.Generator) -> ArmFit:
    draws = resample(fitted, points.inputs, points.loss_N, generator, options.num_draws)
    residual_N = np.log(points.loss_N) - np.log(fitted.predict(points.inputs))
    noise_D = generator.choice(residual_N, options.num_draws)
    noise_sd = float(np.sqrt((residual_N**2).sum() / (len(residual_N) - len(fitted.values))))
    complete = replace(fitted, intervals=draws.intervals(), interval_method=METHOD)
    return _with_draws(arm, complete, draws, noise_D, noise_sd, options)


def _by_noise(
    fits: Mapping[str, Fit], points: Mapping[str, _Points], noise: Noise, options: Options,
    generator: np.random.Generator,
) -> dict[str, ArmFit]:  # fmt: skip
    """Arms whose intervals come from one noise model, all points drawn at once, with one more run."""
    keys = [key for arm in fits for key in points[arm].keys]
    noise_DN = noise.draw([*keys, ONE_MORE_RUN], options.num_draws, generator)
    ends = np.cumsum([len(points[arm].loss_N) for arm in fits])
    parts = np.split(noise_DN, ends, axis=1)[:-1]  # what is left is the one more run
    found = {}
    for (arm, fitted), part_DN in zip(fits.items(), parts, strict=True):
        draws = refit(fitted, points[arm].inputs, part_DN)
        misfit = lack_of_fit(fitted, points[arm].inputs, points[arm].loss_N, noise)
        complete = replace(
            fitted,
            intervals=draws.intervals(),
            interval_method=noise.method,
            warnings=fitted.warnings + ((misfit,) if misfit else ()),
        )
        found[arm] = _with_draws(arm, complete, draws, noise_DN[:, -1], noise.pooled_sd, options)
    return found


def _with_draws(arm: str, fitted: Fit, draws: Draws, noise_D: Array, noise_sd: float, options: Options) -> ArmFit:
    predictions = tuple(forecast(fitted, draws, point, noise_D) for point in options.predict)
    method = f"{fitted.interval_method}, {options.num_draws} refits"
    complete = replace(fitted, interval_method=method)
    return ArmFit(arm, complete, complete.num_points, complete.dropped, noise_sd=noise_sd, predictions=predictions)

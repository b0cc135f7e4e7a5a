"""What did the studies of an arm tell? Trials become optima, laws, and the files under `recipes/tuned/<experiment>/`.

Where a path has choices, the curve of the others goes through the trials that share the best trial's choices.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas

from k3ablate.config import Tree, write_yaml
from k3ablate.plan import PlanRow
from k3ablate.search import Range, Scalar, Tuning
from k3ablate.storage import write_atomic
from k3ablate.tuned import LAWS, Law, TunedArm, TunedPath, TunedSize, file_of
from k3ablate.tuning.optimum import Optimum, optima
from k3ablate.tuning.space import axis_of
from k3ablate.tuning.store import Ended, Trial


def is_complete(trials: Sequence[Trial], tuning: Tuning) -> bool:
    """Whether a study has all of its trials, and all have ended."""
    return len(trials) >= tuning.trials and all(trial.ended is not Ended.OPEN for trial in trials)


def has_loss(trials: Sequence[Trial]) -> bool:
    """Whether there is a trial with a loss: without one a study has no optimum."""
    return any(trial.loss is not None for trial in trials)


def diverged(trials: Sequence[Trial], space: Mapping[str, Range]) -> str:
    """What to write where no trial has a loss: a range below the one that was tried, or other values."""
    below = [
        f"e.g. {path}: {{low: {low * low / high:.3g}, high: {low:.3g}}}"
        for path, (low, high) in ((path, one.ends) for path, one in space.items() if one.choices is None)
        if space[path].scale == "log" and not space[path].whole
    ]
    remedy = f"smaller ones, {below[0]}" if below else "other ones"
    return f"all {len(trials)} trials diverged, no optimum is known; write other values in tuning.space: {remedy}"


def tuned_size(
    trials: Sequence[Trial], space: Mapping[str, Range], reach: float | None, baseline_flops: float
) -> TunedSize:
    """The optima that the trials of one study tell, of which one or more `has_loss`."""
    finished = [trial for trial in trials if trial.loss is not None]
    best = min(finished, key=_loss)
    paths = {path: _chosen(one, best.values[path]) for path, one in space.items() if one.choices is not None}
    curves = _curves(finished, best, space, reach)
    paths |= {path: _told(space[path], optimum) for path, optimum in curves.items()}
    told = [optimum.loss for optimum in curves.values() if optimum.is_from_curve]
    return TunedSize(
        baseline_flops=baseline_flops,
        trials={str(ended): count for ended, count in Counter(trial.ended for trial in trials).items()},
        best_loss=_loss(best),
        curve_loss=told[0] if told else None,
        space=dict(space),
        paths={path: paths[path] for path in space},
    )


def edges(size: TunedSize) -> dict[str, bool]:
    """The ranges whose optimum lies at an edge, and whether at the upper one; choices cannot be widened."""
    return {
        path: float(axis_of(size.space[path]).positions(_number(one.value))) > 0.5
        for path, one in size.paths.items()
        if one.is_at_edge and size.space[path].choices is None
    }


def table(rows: Sequence[tuple[str, Trial, PlanRow]]) -> pandas.DataFrame:
    """The trials of an arm, (size, trial, its run) each, with every digit."""
    return pandas.DataFrame([
        {
            "size": size,
            "trial": trial.number,
            "status": str(trial.ended),
            "loss": trial.loss,
            "digest": row.label.digest,
            "seed": row.label.seed,
            "tokens": row.tokens,
            "flops": row.flops,
            "active_params": row.counts.active_params,
            "tokens_per_parameter": row.tokens / row.counts.active_params,
            **trial.values,
        }
        for size, trial, row in rows
    ])  # fmt: skip


def write_arm(found: TunedArm, trials: pandas.DataFrame, folder: Path) -> list[Path]:
    """The recipe of one arm, and the table of its trials beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / file_of(found.arm)
    write_yaml(found.tree(), recipe)
    write_atomic(recipe.with_suffix(".csv"), trials.to_csv(index=False))
    return [recipe, recipe.with_suffix(".csv")]


def write_laws(found: Mapping[str, Mapping[str, Law]], folder: Path) -> Path:
    """The laws of every arm; an empty file where no optimum is known at two sizes."""
    path = folder / f"{LAWS}.yaml"
    tree: Tree = {arm: {name: law.tree() for name, law in by_path.items()} for arm, by_path in found.items()}
    write_yaml(tree, path)
    return path


def _curves(
    finished: Sequence[Trial], best: Trial, space: Mapping[str, Range], reach: float | None
) -> dict[str, Optimum]:
    """The optimum along each range."""
    ranges = [path for path, one in space.items() if one.choices is None]
    if not ranges:
        return {}
    alike = [trial for trial in finished if all(trial.values[path] == best.values[path]
                                               for path in space if path not in ranges)]  # fmt: skip
    values_NA = np.array([[_number(trial.values[path]) for path in ranges] for trial in alike])
    axes = [axis_of(space[path]) for path in ranges]
    return dict(zip(ranges, optima(axes, values_NA, [_loss(trial) for trial in alike], reach), strict=True))


def _told(one: Range, optimum: Optimum) -> TunedPath:
    return TunedPath(
        value=one.written(optimum.value),
        low=optimum.low,
        high=optimum.high,
        is_from_curve=optimum.is_from_curve,
        is_at_edge=optimum.is_at_edge,
        note=optimum.note,
    )


def _chosen(one: Range, value: Scalar) -> TunedPath:
    """The best trial's choice; the smallest or largest number offered is at an edge that no command can move."""
    choices = one.choices or ()
    numbers = [choice for choice in choices if isinstance(choice, int | float) and not isinstance(choice, bool)]
    if len(numbers) < len(choices) or value not in (min(numbers), max(numbers)):
        return TunedPath(value=value, note="a choice: that of the best trial")
    which, further = ("largest", "above") if value == max(numbers) else ("smallest", "below")
    note = f"the {which} of the choices: write a further one {further} {value:g}, if the path allows it"
    return TunedPath(value=value, is_at_edge=True, note=note)


def _loss(trial: Trial) -> float:
    assert trial.loss is not None, "only finished trials are compared"
    return trial.loss


def _number(value: Scalar) -> float:
    assert not isinstance(value, str), "a range holds numbers"
    return float(value)

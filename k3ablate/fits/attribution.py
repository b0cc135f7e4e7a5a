"""What may be said about the components with the arms that there are?

The full factorial gives Shapley values. Fewer arms give the pairwise model where they determine every part of it, else
first-in or last-in values with all interactions as one remainder, else what single arms say. Parts always add up to
the whole they are parts of: ln m of the target arm, or a claimed one, in which case the rest is `UNATTRIBUTED`. Nothing
is spread, and a Shapley value comes only from all of its coalitions. The sums are in `split` and `pairwise`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.coalitions import Design
from k3ablate.fits.forms import Array
from k3ablate.fits.pairwise import PairwiseModel, fit_pairwise
from k3ablate.fits.split import (
    Coalition,
    Effect,
    Values,
    beyond_pairs,
    difference,
    effect,
    first_in,
    interactions,
    last_in,
    pairs,
    shapley,
    total,
)

UNATTRIBUTED = "unattributed"
TOGETHER = "all interactions together"
BEYOND_PAIRS = "beyond the pairwise model"
NO_ARM = "no such arm in the table"
MISFIT_LEVEL = 0.05

Method = Literal["shapley", "pairwise", "first in", "last in", "none"]
Source = Literal["target arm", "claimed", "pairwise model", "unknown"]


@dataclass(frozen=True)
class Part:
    """One term of a sum that makes up ln m. `share`: of the whole; None where the whole is not told from 1."""

    name: str
    effect: Effect
    share: float | None


@dataclass(frozen=True)
class ComponentEffects:
    """What is known of one component at the target's level; None where the arms do not tell."""

    name: str  # as in the parts: the component, and its level where the table has further ones
    component: str
    level: str
    first_in: Effect | None
    last_in: Effect | None
    gap: Effect | None  # last in minus first in: what the other components do to it
    part: Effect | None  # by the split's method


@dataclass(frozen=True)
class Pair:
    """Interaction of two components; None where the arms do not tell."""

    first: str
    second: str
    effect: Effect | None


@dataclass(frozen=True)
class Missing:
    """A coalition without a value, and what cannot be said for that."""

    arm: str
    reason: str
    lost: tuple[str, ...]

    @property
    def absent(self) -> bool:
        """Whether the table has no such arm, rather than one that could not be read."""
        return self.reason == NO_ARM


@dataclass(frozen=True)
class ModelCheck:
    """How far the arms determine the pairwise model."""

    num_arms: int
    num_terms: int  # intercept included
    rank: int
    not_told: tuple[tuple[str, ...], ...]  # terms without an estimate, each group told only together
    misfit: float | None  # p-value against the model; None where no arm is left to test it


@dataclass(frozen=True)
class Split:
    """The way from the baseline to the target, part by part."""

    target: str | None
    method: Method
    components: tuple[ComponentEffects, ...]
    pairs: tuple[Pair, ...]
    beyond_pairs: Effect | None  # of the full factorial, interactions of three and more (contained in pairs and parts)
    parts: tuple[Part, ...]  # add up to the whole, where there is one
    whole: Effect | None
    whole_from: Source
    total: Effect | None  # ln m of the target arm
    missing: tuple[Missing, ...]
    model: ModelCheck | None  # None for a full factorial
    warnings: tuple[str, ...]

    @property
    def product(self) -> float:
        """What the parts multiply to; the whole, where there is one."""
        return math.prod(part.effect.factor for part in self.parts)


def attribute(terms: Mapping[str, Array], whole_E: Array, remainder: str | None = None) -> tuple[Part, ...]:
    """The terms of the whole and, under the name `remainder`, what they leave over of it; nothing is spread.

    Without that name the terms make up the whole by themselves. Parts add up to it, in the estimate and every draw.
    """
    shown = dict(terms)
    if remainder is not None:
        shown[remainder] = _left(whole_E, terms)
    whole = effect(whole_E)
    effects = {name: effect(value_E) for name, value_E in shown.items()}
    return tuple(Part(name, found, _share(found, whole)) for name, found in effects.items())


def attribute_claims(factors: Mapping[str, float], claimed: float) -> tuple[Part, ...]:
    """Factors that were published one by one, the total that was claimed, and what they leave unattributed."""
    logs = {name: _claimed(f"factor of {name}", factor) for name, factor in factors.items()}
    return attribute(logs, _claimed("total", claimed), UNATTRIBUTED)


def split(design: Design, values: Values, refused: Mapping[str, str], claimed: float | None = None) -> Split:
    """The split of `design` with ln m of the coalitions that could be read.

    `values` may hold further levels, which only enter the pairwise model; `refused`: arm -> why it could not be read.
    `claimed` is a total multiplier from elsewhere. InputError where it is no positive number.
    """
    missing = design.missing(values)
    model = fit_pairwise(values, design.component_of) if missing else None
    method, terms, remainder = method_and_terms(design, values, model)
    total_E = values.get(design.everything)
    whole_E, source = _whole(terms, total_E, method, claimed)
    if whole_E is None:
        parts = tuple(Part(name, effect(value_E), None) for name, value_E in terms.items())
    else:
        shown = dict(terms)
        if total_E is not None and remainder is not None:
            shown[remainder] = _left(total_E, terms)
        parts = attribute(shown, whole_E, UNATTRIBUTED if claimed is not None else None)
    return Split(
        target=design.target,
        method=method,
        components=tuple(_component(design, values, terms, method, name) for name in design.names),
        pairs=_pairs(design, values, model),
        beyond_pairs=effect(beyond_pairs(values, design.names)) if model is None and len(design.names) > 2 else None,
        parts=parts,
        whole=None if whole_E is None else effect(whole_E if claimed is None else whole_E[:1]),
        whole_from=source,
        total=None if total_E is None else effect(total_E),
        missing=tuple(_missing(design, coalition, refused) for coalition in missing),
        model=None if model is None else _model_check(design, model),
        warnings=_warnings(model),
    )


def method_and_terms(
    design: Design, values: Values, model: PairwiseModel | None
) -> tuple[Method, dict[str, Array], str | None]:
    """The best method that the arms allow, its terms by display name, and the name of what they may leave over."""
    names, everything = design.names, design.everything
    if model is None:
        return "shapley", _labelled(design, shapley(values, names)), None
    by_model = {name: model.part(name, everything) for name in names}
    if all(value_E is not None for value_E in by_model.values()):
        return "pairwise", _labelled(design, by_model), BEYOND_PAIRS
    by_first = {name: first_in(values, name) for name in names}
    by_last = {name: last_in(values, name, everything) for name in names}
    complete_last = all(value_E is not None for value_E in by_last.values())
    if complete_last and any(value_E is None for value_E in by_first.values()):
        return "last in", _labelled(design, by_last), TOGETHER
    terms = _labelled(design, by_first)
    unknown = [design.label(name) for name in names if design.label(name) not in terms]
    left_over = f"not split: {', '.join(unknown)} and all interactions" if unknown else TOGETHER
    return ("first in" if terms else "none"), terms, left_over


def _labelled(design: Design, found: Mapping[str, Array | None]) -> dict[str, Array]:
    return {design.label(name): value_E for name, value_E in found.items() if value_E is not None}


def _whole(
    terms: Mapping[str, Array], total_E: Array | None, method: Method, claimed: float | None
) -> tuple[Array | None, Source]:
    """What the parts are parts of."""
    if claimed is not None:
        num_values = len(next(iter(terms.values()), np.zeros(1) if total_E is None else total_E))
        return np.repeat(_claimed("total", claimed), num_values), "claimed"
    if total_E is not None:
        return total_E, "target arm"
    if method == "pairwise":
        return total(list(terms.values())), "pairwise model"
    return None, "unknown"


def _component(
    design: Design, values: Values, terms: Mapping[str, Array], method: Method, name: str
) -> ComponentEffects:
    first_E, last_E = first_in(values, name), last_in(values, name, design.everything)
    change = next(change for change in design.changes if change.name == name)
    has_part = method in ("shapley", "pairwise")
    gap_E = None if first_E is None or last_E is None else difference(last_E, first_E)
    return ComponentEffects(
        name=design.label(name),
        component=change.component,
        level=change.level,
        first_in=None if first_E is None else effect(first_E),
        last_in=None if last_E is None else effect(last_E),
        gap=None if gap_E is None else effect(gap_E),
        part=effect(terms[design.label(name)]) if has_part else None,
    )


def _pairs(design: Design, values: Values, model: PairwiseModel | None) -> tuple[Pair, ...]:
    found: Mapping[Coalition, Array | None]
    if model is None:
        found = interactions(values, design.names)
    else:
        found = {pair: model.estimate({pair: 1.0}) for pair in pairs(design.names)}
    shown = []
    for pair, value_E in found.items():
        first, second = (design.label(name) for name in design.names if name in pair)
        shown.append(Pair(first, second, None if value_E is None else effect(value_E)))
    return tuple(shown)


def _missing(design: Design, coalition: Coalition, refused: Mapping[str, str]) -> Missing:
    arm, everything = design.arm_name(coalition), design.everything
    lost = [f"first in of {design.label(name)}" for name in design.names if coalition == frozenset({name})]
    lost += [f"last in of {design.label(name)}" for name in design.names if coalition == everything - {name}]
    if coalition == everything:
        lost += ["the total", "every last in"]
    return Missing(arm, refused.get(arm, NO_ARM), (*lost, "the Shapley values"))


def _model_check(design: Design, model: PairwiseModel) -> ModelCheck:
    groups = tuple(tuple(design.term_label(term) for term in group) for group in model.groups)
    return ModelCheck(model.num_arms, len(model.terms) + 1, model.rank, groups, model.misfit)


def _warnings(model: PairwiseModel | None) -> tuple[str, ...]:
    if model is None or model.misfit is None or model.misfit >= MISFIT_LEVEL:
        return ()
    return (
        f"the arms contradict the pairwise model (p = {model.misfit:.2g}): three or more components interact, or the "
        "curves have the wrong shape; parts and interactions read from it do not hold",
    )


def _left(whole_E: Array, terms: Mapping[str, Array]) -> Array:
    return difference(whole_E, total(list(terms.values()))) if terms else whole_E


def _share(part: Effect, whole: Effect) -> float | None:
    """Part of the whole's logarithm; None where the whole may be nothing."""
    known = whole.told_from_one or (whole.log_interval is None and whole.log != 0.0)
    return part.log / whole.log if known and math.isfinite(part.log) and math.isfinite(whole.log) else None


def _claimed(what: str, factor: float) -> Array:
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"{what}: found {factor}; a multiplier is a positive number, above 1 for a gain")
    return np.array([math.log(factor)])

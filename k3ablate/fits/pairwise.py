"""What do the arms of a partial design say about single changes and pairs, and what can they not say?

The model: ln m of an arm is the sum of one term per change and one per pair of changes that are switched on; terms of
three and more are taken as zero, which `misfit` tests where there are more arms than terms. It is fitted by ordinary
least squares with an intercept, the baseline being one arm among the others, which is the best linear estimate for arms
of equal and independent noise, and needs no covariance estimated from the draws. A term, or a sum of terms, has an
estimate only where the arms determine it; the others are named in groups that are told only together.
A change is a component at one level ("residual=full"), so that a component with several levels is several changes, no
two of which meet. The full factorial needs none of this: see `split`.

Array legend: A arms, T terms (the intercept first), E the estimate and then the draws.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from k3ablate.fits.forms import Array
from k3ablate.fits.split import Coalition, Values, weighted_sum

ROUNDING = 1e-9  # of projections of vectors of zeros and ones


@dataclass(frozen=True)
class PairwiseModel:
    """The fitted model. `groups`: terms without an estimate, each group told only together."""

    terms: tuple[Coalition, ...]
    num_arms: int
    rank: int  # of the design matrix with its intercept
    groups: tuple[tuple[Coalition, ...], ...]
    misfit: float | None  # p-value of the residuals; None where arms and terms are equally many
    operator_TA: Array
    values_AE: Array
    free_TT: Array  # projector on what the arms do not see

    def estimate(self, weights: Mapping[Coalition, float]) -> Array | None:
        """The weighted sum [E] of terms; None where the arms do not determine it."""
        index = {term: position for position, term in enumerate(self.terms, start=1)}
        if any(term not in index for term in weights):
            return None
        weights_T = np.zeros(len(self.terms) + 1)
        for term, weight in weights.items():
            weights_T[index[term]] = weight
        if np.abs(self.free_TT @ weights_T).max() > ROUNDING:
            return None
        operator_A = weights_T @ self.operator_TA
        operator_A[np.abs(operator_A) < ROUNDING] = 0.0  # an arm that does not matter must not bring its infinities
        return weighted_sum(operator_A, self.values_AE)

    def part(self, change: str, everything: Coalition) -> Array | None:
        """The term of `change` and half of its pairs: its Shapley value if no three changes interact."""
        weights = {frozenset({change}): 1.0} | {frozenset({change, other}): 0.5 for other in everything - {change}}
        return self.estimate(weights)


def fit_pairwise(values: Values, component_of: Mapping[str, str]) -> PairwiseModel:
    """The model through ln m of all arms; `component_of` tells which changes exclude each other."""
    terms, arms = _terms(component_of), list(values)
    design_AT = np.array([[1.0, *(float(term <= arm) for term in terms)] for arm in arms])
    operator_TA = np.linalg.pinv(design_AT)
    free_TT = np.eye(len(terms) + 1) - operator_TA @ design_AT
    values_AE = np.stack([values[arm] for arm in arms])
    rank = int(np.linalg.matrix_rank(design_AT))
    residual_AA = np.eye(len(arms)) - design_AT @ operator_TA
    return PairwiseModel(
        terms=terms,
        num_arms=len(arms),
        rank=rank,
        groups=_groups(terms, np.abs(free_TT[1:, 1:]) > ROUNDING),
        misfit=_misfit(residual_AA, values_AE) if len(arms) > rank else None,
        operator_TA=operator_TA,
        values_AE=values_AE,
        free_TT=free_TT,
    )


def _terms(component_of: Mapping[str, str]) -> tuple[Coalition, ...]:
    meeting = [
        frozenset(pair) for pair in itertools.combinations(component_of, 2) if len({component_of[c] for c in pair}) == 2
    ]
    return (*(frozenset({change}) for change in component_of), *meeting)


def _groups(terms: Sequence[Coalition], tied_TT: Array) -> tuple[tuple[Coalition, ...], ...]:
    """Terms that the arms leave open, joined where a change of one can be undone by another."""
    left = [index for index in range(len(terms)) if tied_TT[index, index]]
    groups = []
    while left:
        group, frontier = set[int](), {left[0]}
        while frontier:
            group |= frontier
            frontier = {other for one in frontier for other in left if tied_TT[one, other]} - group
        groups.append(tuple(terms[index] for index in sorted(group)))
        left = [index for index in left if index not in group]
    return tuple(groups)


def _misfit(residual_AA: Array, values_AE: Array) -> float | None:
    """Share of draws whose noise leaves residuals as large as those of the estimate; None where no draw is finite."""
    noise_AE = values_AE[:, 1:] - values_AE[:, :1]
    noise_AE = noise_AE[:, np.isfinite(noise_AE).all(axis=0)]
    if not noise_AE.shape[1] or not np.isfinite(values_AE[:, 0]).all():
        return None
    found = np.sum((residual_AA @ values_AE[:, 0]) ** 2)
    return float(np.mean(np.sum((residual_AA @ noise_AE) ** 2, axis=0) >= found))

"""How is a Newton step of many arms found without a matrix over all their parameters?

A point's loss depends on the parameters of its own arm and on the few that arms share, so that the matrix of the normal
equations is an arrow: a small block per arm, a small block of what is shared, and what couples the two. The arms' own
parameters are eliminated first (the Schur complement), which costs time and memory in proportion to points plus arms
instead of points times arms squared. The blocks are sums over each arm's points, of which those at one compute (seeds
of one size) have one derivative. `Dense` gives the same step and is the plain twin; the curves are those of `joint`.

Array legend: S starts or draws, N points arm by arm, M cells (points of one arm at one compute), K arms, C the kinds of
derivative (by E, by ln A and by the exponent of the point's own curve), Q pairs of these, H shared parameters, O those
of an arm's own, P all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from k3ablate.fits.forms import Array
from k3ablate.fits.normal_equations import LEAST_RIDGE, RIDGE, Mask

Indices = NDArray[np.intp]
PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
PAIR_CC = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])  # position in PAIRS of the product of two kinds
FLOOR, COEFFICIENT, EXPONENT = range(3)  # kinds


@dataclass(frozen=True)
class Arrow:
    """Curves of arms that share E, and the exponent where `common_exponent`; parameters E, ln A of each, exponents."""

    columns: Callable[[Array, Array], tuple[Array, Array]]  # theta, x -> ln L [S, M], its derivative by kind [S, C, M]
    limits: tuple[Array, Array]  # of the parameters, each [P]
    counts: tuple[int, ...]  # cells of each arm
    sizes: tuple[int, ...]  # points of each cell, which lie together
    common_exponent: bool

    @cached_property
    def _kinds(self) -> tuple[list[int], list[int]]:
        """Kinds that are shared [H], and kinds of an arm's own [O]."""
        if self.common_exponent:
            return [FLOOR, EXPONENT], [COEFFICIENT]
        return [FLOOR], [COEFFICIENT, EXPONENT]

    @cached_property
    def _positions(self) -> tuple[Indices, Indices]:
        """Where these parameters stand: shared [H], own [K, O]."""
        num_arms = len(self.counts)
        own_K = 1 + np.arange(num_arms)
        if self.common_exponent:
            return np.array([0, 1 + num_arms]), own_K[:, None]
        return np.array([0]), np.stack([own_K, own_K + num_arms], axis=1)

    @cached_property
    def _first_cells(self) -> Indices:
        """Index of each arm's first cell."""
        return _firsts(self.counts)

    @cached_property
    def _first_points(self) -> Indices:
        """Index of each cell's first point."""
        return _firsts(self.sizes)

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of the parameters, each [P]."""
        return self.limits

    def log_prediction(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """ln L [S, N] and its derivative by kind, once per cell [S, C, M]."""
        log_loss_SM, derivative = self.columns(theta_SP, x_NV[self._first_points])
        return np.repeat(log_loss_SM, self.sizes, axis=1), derivative

    def gradient(self, derivative: Array, factor_SN: Array) -> Array:
        """[S, P]."""
        sums_SCK = self._sums(derivative * self._of_cells(factor_SN)[:, None])
        (shared, own), (shared_H, own_KO) = self._kinds, self._positions
        gradient_SP = np.empty((len(derivative), self.limits[0].size))
        gradient_SP[:, shared_H] = sums_SCK[:, shared].sum(axis=-1)
        gradient_SP[:, own_KO] = sums_SCK[:, own].swapaxes(1, 2)
        return gradient_SP

    def matrix(self, derivative: Array, weight_SN: Array) -> Array:
        """Sums over each arm's points, by pairs of kinds [S, Q, K]."""
        weighted_SCM = derivative * self._of_cells(weight_SN)[:, None]
        matrix_SQK = np.empty((len(weight_SN), len(PAIRS), len(self.counts)))
        for pair, (one, other) in enumerate(PAIRS):
            matrix_SQK[:, pair] = self._sums(weighted_SCM[:, one] * derivative[:, other])
        return matrix_SQK

    def solve(self, matrix: Array, gradient_SP: Array, held_SP: Mask) -> Array:
        """[S, P]: the shared parameters from the Schur complement, then every arm's own."""
        (shared, own), (shared_H, own_KO) = self._kinds, self._positions
        own_SKOO = np.moveaxis(matrix[:, PAIR_CC[np.ix_(own, own)]], -1, 1)
        coupling_SKHO = np.moveaxis(matrix[:, PAIR_CC[np.ix_(shared, own)]], -1, 1)
        shared_SHH = matrix[:, PAIR_CC[np.ix_(shared, shared)]].sum(axis=-1)
        trace_S = np.einsum("shh->s", shared_SHH) + np.einsum("skoo->s", own_SKOO)
        ridge_S = RIDGE * trace_S + LEAST_RIDGE
        free_SP = ~held_SP
        free_SH, free_SKO = free_SP[:, shared_H], free_SP[:, own_KO]
        inverse_SKOO = _inverse(_solvable(own_SKOO, free_SKO, ridge_S))
        coupling_SKHO = coupling_SKHO * free_SH[:, None, :, None] * free_SKO[:, :, None]
        own_gradient_SKO1 = (gradient_SP[:, own_KO] * free_SKO)[..., None]
        eliminated_SKHO = coupling_SKHO @ inverse_SKOO
        schur_SHH = _solvable(shared_SHH, free_SH, ridge_S) - (eliminated_SKHO @ coupling_SKHO.swapaxes(2, 3)).sum(1)
        right_SH1 = (gradient_SP[:, shared_H] * free_SH)[..., None] - (eliminated_SKHO @ own_gradient_SKO1).sum(1)
        found_SH1 = np.linalg.solve(schur_SHH, right_SH1)
        found_SP = np.empty_like(gradient_SP)
        found_SP[:, shared_H] = found_SH1[..., 0]
        rest_SKO1 = own_gradient_SKO1 - coupling_SKHO.swapaxes(2, 3) @ found_SH1[:, None]
        found_SP[:, own_KO] = (inverse_SKOO @ rest_SKO1)[..., 0]
        return found_SP

    def _of_cells(self, values_SN: Array) -> Array:
        """Over the points of each cell [S, M]."""
        return np.asarray(np.add.reduceat(values_SN, self._first_points, axis=1))

    def _sums(self, values: Array) -> Array:
        """Over the cells of each arm [..., K]."""
        return np.asarray(np.add.reduceat(values, self._first_cells, axis=-1))


def _firsts(counts: tuple[int, ...]) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)[:-1]])


def _solvable(blocks: Array, free: Mask, ridge_S: Array) -> Array:
    """Blocks [S, ..., B, B] with rows and columns of held parameters replaced by those of the identity, and a ridge."""
    both = free[..., :, None] & free[..., None, :]
    ridge = ridge_S.reshape(-1, *[1] * (free.ndim - 1))
    diagonal = (~free + ridge)[..., None] * np.eye(free.shape[-1])
    return np.asarray(blocks * both + diagonal)


def _inverse(blocks_SKOO: Array) -> Array:
    return np.asarray(1 / blocks_SKOO if blocks_SKOO.shape[-1] == 1 else np.linalg.inv(blocks_SKOO))

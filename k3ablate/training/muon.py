"""How are matrices updated by their direction alone? `MuonWithAdamW`: Muon for matrices, AdamW for all the rest.

Ours, where torch.optim.Muon serves plain matrices: that one takes parameters of two dimensions only, so neither stacks
of experts nor a head's block of a matrix; it orthogonalises them one call each, where all of one shape go through in
one batch here; and it casts to bfloat16, whose products a CPU emulates. A step of the 1,059 matrices of a K3 of a
million parameters took 5 percent of its time on one core. On whole matrices both make the same step (torch's momentum
is an average of gradients and this one their sum, which has its direction). Which matrix is cut how is `groups.py`.

Shapes: N matrices or blocks, R rows, C columns.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic of K. Jordan's Muon (specification 4.7)
NEWTON_SCHULZ_STEPS = 5
UPDATE_RMS = 0.2  # what an orthogonal update is scaled to, as AdamW's updates have (specification 4.7)
SMALLEST_NORM = 1e-7  # an expert that saw no token has a zero momentum


@dataclass(frozen=True)
class Blocks:
    """What Muon takes alone: `number` blocks of one shape, and what their orthogonal updates are multiplied by."""

    number: int
    rows: int
    columns: int
    scale: float

    @classmethod
    def of(cls, number: int, rows: int, columns: int) -> "Blocks":
        """0.2 sqrt(max(rows, columns)) by the block's own shape, which gives its update an RMS of about 0.2."""
        return cls(number, rows, columns, UPDATE_RMS * math.sqrt(max(rows, columns)))


Cut = tuple[Blocks, ...]  # of a parameter: equally many of each, which take turns from its first row to its last


def pieces(tensor: Tensor, cut: Cut) -> tuple[Tensor, ...]:
    """The blocks of a parameter, or of what is shaped like it: for each of `cut` a view [N, R, C]."""
    rows = [blocks.rows for blocks in cut]
    return torch.split(tensor.view(cut[0].number, sum(rows), cut[0].columns), rows, dim=1)


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024, scaled as in Liu et al. 2025) for matrices and AdamW for all the rest.

    W <- W - lr (0.2 sqrt(max(rows, columns)) NewtonSchulz(M) + decay W), M <- momentum M + G (specification 4.7), for
    each block of `cuts` by itself.
    """

    def __init__(
        self,
        cuts: Mapping[nn.Parameter, Cut],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
        rest: torch.optim.AdamW,
    ) -> None:
        matrices: dict[str, Any] = {
            "params": list(cuts),
            "lr": learning_rate,
            "momentum": momentum,
            "weight_decay": weight_decay,
        }
        super().__init__([matrices, *rest.param_groups], {})
        self.cuts = cuts
        self.rest = rest

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        matrices, *rest_groups = self.param_groups
        for blocks, pairs in self._by_shape(matrices).items():
            _update(blocks.scale * matrices["lr"], pairs)
        # AdamW works on these very groups and this state, so that there is one state_dict to save and restore.
        self.rest.param_groups, self.rest.state = rest_groups, self.state
        self.rest.step()
        return loss

    def _by_shape(self, group: dict[str, Any]) -> dict[Blocks, list[tuple[Tensor, Tensor]]]:
        """Weights, decayed, and momenta of all blocks, with those of their shape, of which the key is one."""
        pairs = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
            cut = self.cuts[parameter]
            momentum = self._momentum(parameter, group["momentum"])
            for blocks, *pair in zip(cut, pieces(parameter, cut), pieces(momentum, cut), strict=True):
                pairs[replace(blocks, number=1)].append((pair[0], pair[1]))
        return pairs

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        buffer: Tensor = state["momentum"]
        assert parameter.grad is not None
        return buffer.mul_(momentum).add_(parameter.grad)


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Each of N matrices with its singular values pushed towards 1 by five quintic Newton-Schulz steps; zero stays 0.

    X <- aX + b(XX^T)X + c(XX^T)^2 X from X / ||X||_F (specification 4.7). Values end between about 0.7 and 1.2, but the
    smallest ones of a square matrix, which five steps do not lift that far.
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x_NRC = matrices_NRC.mT if is_tall else matrices_NRC  # the smaller Gram matrix
    x_NRC = x_NRC / x_NRC.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram_NRR = x_NRC @ x_NRC.mT
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        x_NRC = torch.baddbmm(x_NRC, polynomial_NRR, x_NRC, beta=a)
    return x_NRC.mT if is_tall else x_NRC


def _update(step_size: float, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Move weights of one shape against their orthogonalised momenta, all in one batch, in place."""
    updates_NRC = orthogonalise(torch.cat([momentum_NRC for _, momentum_NRC in pairs]))
    start = 0
    for weight_NRC, _ in pairs:
        weight_NRC.sub_(updates_NRC[start : start + len(weight_NRC)], alpha=step_size)
        start += len(weight_NRC)

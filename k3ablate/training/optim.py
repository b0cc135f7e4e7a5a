"""How are the weights updated, and how large is each step?

`build_optimizer` sorts every parameter of a decoder into exactly one role by the module that owns it, and gives each
role its rule. `factor` is the schedule as a pure function of the step. Gradient clipping belongs to `module.py`.
"""

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from k3ablate.model.decoder import Decoder
from k3ablate.model.moe import Experts
from k3ablate.training.spec import (
    AdamW,
    Constant,
    Cosine,
    Linear,
    Muon,
    OptimizerConfig,
    ScheduleConfig,
    WarmupStableDecay,
)

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic of K. Jordan's Muon (specification 4.7)
NEWTON_SCHULZ_STEPS = 5
UPDATE_RMS = 0.2  # what an orthogonal update is scaled to, as AdamW's updates have (specification 4.7)
SMALLEST_NORM = 1e-7  # an expert that saw no token has a zero momentum


class Role(StrEnum):
    """What a parameter is to an optimizer."""

    MATRIX = "matrix"  # multiplies activations, stacks of experts included
    HEAD = "head"  # maps to the vocabulary
    EMBEDDING = "embedding"
    VECTOR = "vector"  # norms, A_log, dt_bias, convolutions, pseudo-queries: never decayed


def roles(decoder: Decoder) -> dict[Role, list[nn.Parameter]]:
    """Every parameter of `decoder` once, in the order of its modules; told apart by the owner, not by names."""
    sorted_parameters: dict[Role, list[nn.Parameter]] = {role: [] for role in Role}
    for module in decoder.modules():
        role = Role.HEAD if module is decoder.head else _role(module)
        sorted_parameters[role] += module.parameters(recurse=False)
    num_sorted = sum(len(parameters) for parameters in sorted_parameters.values())
    assert num_sorted == len(list(decoder.parameters())), "a parameter shared by two modules would be updated twice"
    return sorted_parameters


def build_optimizer(decoder: Decoder, config: OptimizerConfig) -> Optimizer:
    """One optimizer over all parameters; each group keeps its peak learning rate as `initial_lr`."""
    parameters = roles(decoder)
    optimizer = _adamw(parameters, config) if isinstance(config, AdamW) else _muon(parameters, config)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_learning_rate(optimizer: Optimizer, fraction: float) -> None:
    """Set every group's learning rate to `fraction` of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * fraction


class MuonWithAdamW(Optimizer):
    """Muon (Jordan et al. 2024, scaled as in Liu et al. 2025) for matrices and AdamW for all the rest.

    W <- W - lr (0.2 sqrt(max(rows, columns)) NewtonSchulz(M) + decay W), M <- momentum M + G (specification 4.7).
    A stack of matrices is orthogonalised matrix by matrix.
    """

    def __init__(self, matrices: list[nn.Parameter], config: Muon, rest: torch.optim.AdamW) -> None:
        group: dict[str, Any] = {
            "params": matrices,
            "lr": config.learning_rate,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
        }
        super().__init__([group, *rest.param_groups], {})
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
        for parameters in _by_shape(matrices["params"]):
            self._update_matrices(parameters, matrices)
        # AdamW works on these very groups and this state, so that there is one state_dict to save and restore.
        self.rest.param_groups, self.rest.state = rest_groups, self.state
        self.rest.step()
        return loss

    def _update_matrices(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """Update parameters whose last two sizes agree, all of their matrices in one batch."""
        rows, columns = parameters[0].shape[-2:]
        momenta = [self._momentum(parameter, group["momentum"]).view(-1, rows, columns) for parameter in parameters]
        updates = torch.split(orthogonalise(torch.cat(momenta)), [len(momentum) for momentum in momenta])
        learning_rate = group["lr"]
        scale = UPDATE_RMS * math.sqrt(max(rows, columns))
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1.0 - learning_rate * group["weight_decay"])
            parameter.add_(update.view_as(parameter), alpha=-learning_rate * scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        buffer: Tensor = state["momentum"]
        assert parameter.grad is not None
        return buffer.mul_(momentum).add_(parameter.grad)


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Each of N matrices with its singular values pushed towards 1 by five quintic Newton-Schulz steps; zero stays 0.

    X <- aX + b(XX^T)X + c(XX^T)^2 X from X / ||X||_F (specification 4.7). Values end between about 0.7 and 1.2.
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


def factor(schedule: ScheduleConfig, step: int, num_steps: int) -> float:
    """Learning rate over its peak at 0-based `step` of `num_steps`, in [0, 1].

    Warm-up takes at least one step and rises to 1 at its last; `final_fraction` is reached as the run ends.
    """
    num_warmup = max(1, round(schedule.warmup_fraction * num_steps))
    if step < num_warmup:
        return (step + 1) / num_warmup
    match schedule:
        case Constant():
            return 1.0
        case Linear():
            return 1.0 + (schedule.final_fraction - 1.0) * _progress(num_warmup, step, num_steps)
        case Cosine():
            return _half_cosine(_progress(num_warmup, step, num_steps), schedule.final_fraction)
        case WarmupStableDecay():
            decay_start = num_steps - max(1, round(schedule.decay_fraction * num_steps))
            return _half_cosine(_progress(max(decay_start, num_warmup), step, num_steps), schedule.final_fraction)


def _progress(start: int, step: int, num_steps: int) -> float:
    """0 until step `start`, then linear to 1 at `num_steps`, one past the last step."""
    return max(0, step - start) / max(1, num_steps - start)


def _half_cosine(progress: float, final: float) -> float:
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def _role(module: nn.Module) -> Role:
    """The role of the parameters that `module` owns itself."""
    if isinstance(module, nn.Embedding):
        return Role.EMBEDDING
    if isinstance(module, nn.Linear | Experts):
        return Role.MATRIX
    return Role.VECTOR


def _adamw(parameters: dict[Role, list[nn.Parameter]], config: AdamW) -> torch.optim.AdamW:
    """AdamW over all `parameters`. Fused: a third of the time of the others on a small model on a CPU."""
    decayed = parameters[Role.MATRIX] + parameters[Role.HEAD]
    kept = parameters[Role.EMBEDDING] + parameters[Role.VECTOR]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)


def _muon(parameters: dict[Role, list[nn.Parameter]], config: Muon) -> MuonWithAdamW:
    rest = parameters | {Role.MATRIX: []}
    return MuonWithAdamW(parameters[Role.MATRIX], config, _adamw(rest, config.rest))


def _by_shape(parameters: Iterable[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Parameters that have a gradient, together where their last two sizes agree."""
    groups: dict[tuple[int, int], list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            groups.setdefault((parameter.shape[-2], parameter.shape[-1]), []).append(parameter)
    return groups.values()

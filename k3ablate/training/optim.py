"""How are the weights updated? `build_optimizer` turns the rules of `groups.py` into one optimizer.

The rules are by role, Muon itself is `muon.py`, the size of a step `schedules.py`. Gradient clipping belongs to
`module.py`, that of logits to `clipping.py`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from k3ablate.model.decoder import Decoder
from k3ablate.training.groups import Rule, rules
from k3ablate.training.muon import MuonWithAdamW
from k3ablate.training.optimizers import AdamW, AdamWRule, OptimizerConfig


def build_optimizer(decoder: Decoder, config: OptimizerConfig) -> Optimizer:
    """One optimizer over all parameters; each group keeps its peak learning rate as `initial_lr`."""
    parameters = dict(decoder.named_parameters())
    found = rules(decoder, config)
    rest = [rule for rule in found if rule.update == "adamw"]
    if isinstance(config, AdamW):
        optimizer: Optimizer = _adamw(parameters, rest, config)
    else:
        matrices = [rule for rule in found if rule.update == "muon"]
        cuts = {parameters[rule.name]: rule.cut for rule in matrices}
        decay = matrices[0].weight_decay  # they share a role
        adamw = _adamw(parameters, rest, config.rest)
        optimizer = MuonWithAdamW(cuts, config.learning_rate, config.momentum, decay, adamw)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_learning_rate(optimizer: Optimizer, fraction: float) -> None:
    """Set every group's learning rate to `fraction` of its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * fraction


def _adamw(parameters: dict[str, nn.Parameter], adamw_rules: Sequence[Rule], config: AdamWRule) -> torch.optim.AdamW:
    """One group for each decay. Fused: a third of the time of the others on a small model on a CPU."""
    groups: dict[float, dict[str, Any]] = {}
    for rule in adamw_rules:
        group = groups.setdefault(rule.weight_decay, {"params": [], "weight_decay": rule.weight_decay})
        group["params"].append(parameters[rule.name])
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups.values(), lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)

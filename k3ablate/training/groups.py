"""Which rule does each tensor of a decoder fall under? By the module that owns it and never by its name.

`rules` gives every parameter exactly one: its role, its update, how Muon cuts it, and its decay. Optimizers are built
from it (`optim.py`) and `k3ablate count --optimizer` shows it, so that what is shown is what is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from k3ablate.model.decoder import Decoder
from k3ablate.model.kda import ShortConvolution
from k3ablate.model.moe import Experts
from k3ablate.model.slots import HeadCut, Mixer
from k3ablate.training.muon import Blocks, Cut
from k3ablate.training.optimizers import AdamW, AdamWRule, Muon, OptimizerConfig, Role


@dataclass(frozen=True)
class Rule:
    """How one tensor is updated."""

    name: str
    shape: tuple[int, ...]
    role: Role
    update: str  # adamw or muon
    cut: Cut  # what Muon orthogonalises alone; empty for AdamW, which takes each number alone
    learning_rate: float  # at the peak
    weight_decay: float


def rules(decoder: Decoder, config: OptimizerConfig) -> list[Rule]:
    """One rule for every parameter, in the order of its modules; AssertionError where a matrix has no known owner."""
    per_head = _head_cuts(decoder) if isinstance(config, Muon) and config.cut == "per_head" else {}
    found = [
        _rule(name, parameter, _role(decoder, module, parameter), per_head.get(module), config)
        for path, module in decoder.named_modules()
        for name, parameter in module.named_parameters(path, recurse=False)
    ]
    assert len(found) == len(list(decoder.parameters())), "a parameter of two modules would be updated twice"
    return found


def _rule(name: str, parameter: nn.Parameter, role: Role, head_cut: HeadCut | None, config: OptimizerConfig) -> Rule:
    update: AdamWRule | Muon = _update(role, config)
    is_muon = isinstance(update, Muon)
    return Rule(
        name=name,
        shape=tuple(parameter.shape),
        role=role,
        update="muon" if is_muon else "adamw",
        cut=_cut(parameter, head_cut) if is_muon else (),
        learning_rate=update.learning_rate,
        weight_decay=update.weight_decay if role in config.decayed else 0.0,
    )


def _update(role: Role, config: OptimizerConfig) -> AdamWRule | Muon:
    if isinstance(config, AdamW) or role is Role.MATRIX:
        return config
    return config.rest


def _role(decoder: Decoder, module: nn.Module, parameter: nn.Parameter) -> Role:
    """The role of a parameter that `module` owns itself."""
    if module is decoder.head:
        return Role.HEAD
    if isinstance(module, nn.Embedding):
        return Role.EMBEDDING
    if isinstance(module, nn.Linear | Experts):
        return Role.MATRIX
    is_vector = parameter.ndim == 1 or isinstance(module, ShortConvolution)  # a filter of its own for every channel
    assert is_vector, f"{type(module).__name__} owns {list(parameter.shape)}, of no known role; name it in groups.py"
    return Role.VECTOR


def _head_cuts(decoder: Decoder) -> Mapping[nn.Module, HeadCut]:
    """By projection, of all mixers."""
    mixers = (module for module in decoder.modules() if isinstance(module, Mixer))
    return {projection: cut for mixer in mixers for projection, cut in mixer.head_cuts().items()}


def _cut(parameter: nn.Parameter, head_cut: HeadCut | None) -> Cut:
    """Head by head, or matrix by matrix of a stack."""
    *stacked, rows, columns = parameter.shape
    if head_cut is None:
        return (Blocks.of(stacked[0] if stacked else 1, rows, columns),)
    assert head_cut.num_heads * sum(head_cut.rows) == rows, f"{head_cut} is not all of {list(parameter.shape)}"
    return tuple(Blocks.of(head_cut.num_heads, block_rows, columns) for block_rows in head_cut.rows)

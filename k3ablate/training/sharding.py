"""How is one model cut over ranks? FSDP2: each rank keeps its rows of every parameter, its gradient and its state.

Mixers and feed-forwards are gathered one at a time, for their forward and again for their backward pass; embedding,
norms, residual reads and head, which every layer may want, from the first use to the end of the backward pass. A
checkpoint is whole and has the form that one process writes, so that any number of ranks, cut or not, go on from it.
What is not cut is trained by Lightning's DDP (`parallel.py`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from k3ablate.model import ranks
from k3ablate.model.decoder import Decoder, Layer

OptimizerState = dict[str, Any]  # what `Optimizer.state_dict` returns


def shard(decoder: Decoder, mesh: DeviceMesh) -> None:
    """Cut every parameter of `decoder`, in place."""
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        fully_shard(layer.mixer, mesh=mesh)
        fully_shard(layer.feed_forward, mesh=mesh)
    fully_shard(decoder, mesh=mesh)


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for FSDP2 over all ranks, with checkpoints like those of one process."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__(data_parallel_size=num_ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """By `load_optimizer_state_dict`."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole tensors."""
        assert self.lightning_module is not None
        return {name: _whole(tensor) for name, tensor in self.lightning_module.state_dict().items()}

    def optimizer_state(self, optimizer: Optimizer) -> OptimizerState:
        """Whole tensors."""
        state: OptimizerState = pytree.tree_map(_whole, super(ModelParallelStrategy, self).optimizer_state(optimizer))
        return state

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """The file's content; what belongs to this rank is taken from it after."""
        loaded: dict[str, Any] = self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)
        return loaded

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """This rank's part of each tensor."""
        assert self.lightning_module is not None
        current = self.lightning_module.state_dict()
        parts = {name: _part(tensor, current[name]) for name, tensor in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(parts, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """This rank's part of each tensor that is shaped like a parameter."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            parts = {
                index: {name: _part(value, parameters[index]) for name, value in values.items()}
                for index, values in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": parts})


def _whole(value: Any) -> Any:
    """A tensor that is cut, put together; all ranks take part and the first keeps it. Anything else as it is."""
    if not isinstance(value, DTensor):
        return value
    whole = value.full_tensor()
    return whole.cpu() if ranks.rank() == 0 else torch.empty(0)


def _part(value: Any, like: Tensor) -> Any:
    """What this rank has of a whole tensor, if `like` is cut and shaped like it; no rank has to be asked."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

"""What do the processes of one run know together? Sums, means and maxima over ranks; with one process, what it holds.

Every function is a meeting: all ranks call it in the same order, or none. How the processes find each other is
`training/parallel.py`.
"""

from typing import TypeVar

import torch
from torch import Tensor, distributed

Value = TypeVar("Value")


def num_ranks() -> int:
    """How many processes work on this run."""
    return distributed.get_world_size() if _have_met() else 1


def rank() -> int:
    """Which of them this is, from 0; rank 0 writes what the run leaves behind."""
    return distributed.get_rank() if _have_met() else 0


def summed(tensor: Tensor) -> Tensor:
    """Of all ranks together; the tensor that was given may be overwritten."""
    return _reduced(tensor, distributed.ReduceOp.SUM)


def mean(tensor: Tensor) -> Tensor:
    """Over ranks that hold equal shares; the tensor that was given may be overwritten."""
    return summed(tensor) / num_ranks() if num_ranks() > 1 else tensor


def largest(tensor: Tensor) -> Tensor:
    """Element by element, NaN if it is NaN on any rank; the tensor that was given may be overwritten."""
    if num_ranks() == 1:
        return tensor
    is_nan = summed(tensor.isnan().to(tensor.dtype)) > 0  # a maximum may lose a NaN on its way, a sum does not
    return _reduced(tensor, distributed.ReduceOp.MAX).masked_fill(is_nan, torch.nan)


def any_of(*wishes: bool) -> tuple[bool, ...]:
    """Of each wish, whether some rank has it."""
    if num_ranks() == 1:
        return wishes
    return tuple((summed(torch.tensor(wishes, dtype=torch.int32)) > 0).tolist())


def of_first(value: Value) -> Value:
    """What rank 0 holds, on every rank."""
    if num_ranks() == 1:
        return value
    values = [value]
    distributed.broadcast_object_list(values)
    return values[0]


def _have_met() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def _reduced(tensor: Tensor, operation: "distributed.ReduceOp.RedOpType") -> Tensor:
    if num_ranks() == 1:
        return tensor
    moved = tensor.to("cuda") if distributed.get_backend() == "nccl" else tensor  # NCCL takes nothing else
    distributed.all_reduce(moved, operation)
    return moved.to(tensor.device)

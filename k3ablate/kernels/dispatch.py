"""Which implementation of an operation runs on this machine, and which one did?

An `Operation` lists its implementations in order of preference, the plain torch form last. `choose` takes the first
that suits the tensors at hand and whose library loads; `used` says what was taken since `forget_used`, for the record
of a run. The environment variable K3ABLATE_KERNELS forces a choice: `torch` for every operation, or
`kda=torch,attnres=numba` one by one. The arithmetic itself is in the other files of this folder.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from k3ablate.config import InputError

VARIABLE = "K3ABLATE_KERNELS"
AUTO = "auto"
EVERY_OPERATION = "*"

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Implementation(Generic[Function]):
    """One way to compute an operation."""

    name: str  # torch, numba, triton, or the name of a library
    suits: Callable[[Tensor], bool]  # whether it takes tensors like this one
    load: Callable[[], Function]  # imports its library; ImportError or RuntimeError where the machine lacks it


@dataclass(frozen=True)
class Operation(Generic[Function]):
    """An operation and its implementations, most preferred first; the last one suits everything."""

    name: str
    implementations: tuple[Implementation[Function], ...]


_used: dict[str, str] = {}
_reported: set[tuple[str, str]] = set()


def anywhere(tensor: Tensor) -> bool:  # noqa: ARG001 - one predicate among others
    """Suits every device and every dtype."""
    return True


def on_cpu_in_float32(tensor: Tensor) -> bool:
    """Suits what the numba kernels are written for."""
    return tensor.device.type == "cpu" and tensor.dtype is torch.float32


def on_cuda(tensor: Tensor) -> bool:
    """Suits Triton kernels and GPU libraries."""
    return tensor.device.type == "cuda"


def numba_or_torch(name: str, load_numba: Callable[[], Function], plain: Function) -> Operation[Function]:
    """The usual pair: numba for float32 on a CPU, the plain form in torch for everything else."""
    numba = Implementation("numba", on_cpu_in_float32, load_numba)
    return Operation(name, (numba, Implementation("torch", anywhere, lambda: plain)))


def choose(operation: Operation[Function], example: Tensor) -> Function:
    """The function to call for tensors like `example`; InputError where the forced one cannot run."""
    forced = _forced(operation.name)
    if forced != AUTO:
        return _choose_forced(operation, forced, example)
    for implementation in operation.implementations:
        if not implementation.suits(example):
            continue
        try:
            function = implementation.load()
        except (ImportError, RuntimeError) as error:
            _report_once(operation.name, f"{implementation.name} does not load here ({error})")
            continue
        return _taken(operation, implementation, function, example)
    raise AssertionError(f"the last implementation of {operation.name} has to suit everything")


def check_forced(operations: Iterable[Operation[Any]]) -> None:
    """InputError where the variable names an operation that is none of `operations`, or a kernel that one lacks."""
    known = {operation.name: operation for operation in operations}
    for name in _forced_by_name():
        if name != EVERY_OPERATION and name not in known:
            raise InputError(f"{VARIABLE}: {name}: no such operation; write one of {', '.join(known)}")
    for operation in known.values():
        forced = _forced(operation.name)
        if forced != AUTO:
            _implementation(operation, forced)


def used() -> dict[str, str]:
    """Operation -> implementation that was chosen last, since the process started or `forget_used`."""
    return dict(_used)


def forget_used() -> None:
    """Start afresh, for the next run in the same process."""
    _used.clear()


def _choose_forced(operation: Operation[Function], name: str, example: Tensor) -> Function:
    implementation = _implementation(operation, name)
    if not implementation.suits(example):
        kind = f"{example.dtype} on {example.device.type}".removeprefix("torch.")
        raise InputError(f"{VARIABLE}: {operation.name}={name}: does not take {kind}; write {operation.name}={AUTO}")
    try:
        function = implementation.load()
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"{VARIABLE}: {operation.name}={name}: does not load here ({error}); write {operation.name}={AUTO}"
        ) from error
    _used[operation.name] = name
    return function


def _implementation(operation: Operation[Function], name: str) -> Implementation[Function]:
    """The one of `operation` that is called `name`; InputError where there is none."""
    known = {implementation.name: implementation for implementation in operation.implementations}
    if name not in known:
        raise InputError(
            f"{VARIABLE}: {operation.name}={name}: no such kernel; write {AUTO} or one of {', '.join(known)}"
        )
    return known[name]


def _taken(
    operation: Operation[Function], implementation: Implementation[Function], function: Function, example: Tensor
) -> Function:
    if implementation is operation.implementations[-1] and len(operation.implementations) > 1:
        kind = f"{example.dtype} on {example.device.type}".removeprefix("torch.")
        _report_once(operation.name, f"no faster kernel for {kind}, {implementation.name} runs")
    _used[operation.name] = implementation.name
    return function


def _report_once(operation: str, message: str) -> None:
    if (operation, message) not in _reported:
        _reported.add((operation, message))
        logger.warning("%s: %s", operation, message)


def _forced(operation: str) -> str:
    forced = _forced_by_name()
    return forced.get(operation, forced.get(EVERY_OPERATION, AUTO))


def _forced_by_name() -> Mapping[str, str]:
    return _parse(os.environ.get(VARIABLE, AUTO))


@cache
def _parse(text: str) -> Mapping[str, str]:
    """'torch' -> {'*': 'torch'}; 'kda=torch,attnres=numba' -> one entry each."""
    forced: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        operation, equals, name = (word.strip() for word in part.rpartition("="))
        if equals and not (operation and name):
            raise InputError(
                f"{VARIABLE}: found {part!r} in {text!r}; write NAME or OPERATION=NAME, separated by commas"
            )
        forced[operation or EVERY_OPERATION] = name
    return MappingProxyType(forced)

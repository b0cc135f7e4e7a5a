"""What does autograd see of the reads of Attention Residuals on a CPU? One node for each write and the read after it.

A gradient tensor for every pair of source and reader, which autograd would add up, took longer than all the rest.
Here a reader's backward notes its gradient in a ledger, and each source forms its own gradient once, from what all its
readers noted, in the backward of the write that made it. That one runs after those of all its readers, because they
have its value as an argument, and autograd waits for all users of a value, also for those that return no gradient.
The loops are in `attnres_numba.py`; the definition is `attnres.Sources`. Shapes: as in `attnres.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.attnres import Readers, Sources
from k3ablate.kernels.attnres_numba import collect, write_and_read

FLOAT_BYTES = 4


class _Source(NamedTuple):
    """What is known of a source beside its value, and of the reader that came right after it."""

    number: int  # no other source of the forward pass has it
    table: Tensor  # for each source of that reader its weight, and last 1 / rms of this source; N each

    def row(self, index: int) -> int:
        """Where a row of the table is."""
        return self.table.data_ptr() + FLOAT_BYTES * index * self.table.shape[1]

    @property
    def scale(self) -> int:
        """Where 1 / rms is."""
        return self.row(self.table.shape[0] - 1)


class _Entry(NamedTuple):
    """What a reader notes in a backward pass."""

    reader: int
    sources: tuple[_Source, ...]
    gradient_BTD: Tensor  # of what it got
    products_N: Tensor  # gradient . what it got


class _Ledger:
    """What the writes and reads of one forward pass share, and tell each other in a backward pass.

    What is noted is good for one call of backward or grad: a call for some gradients only may leave it half used.
    """

    def __init__(self, keys_RD: Tensor) -> None:
        self.keys_RD = keys_RD.detach()
        self.numbers = count()
        self.entries: list[_Entry] = []
        self._call = -1

    def open(self) -> None:
        """Start afresh in a new call; torch's own checkpointing tells them apart in the same way."""
        call = torch._C._current_graph_task_id()
        if call != self._call:
            self._call, self.entries = call, []
            self.of_keys_RD = torch.zeros_like(self.keys_RD)

    def links(self, sources: tuple[_Source, ...]) -> Any:
        """What `collect` has to know of the readers of the last of the sources, R4, latest note first.

        Sources only follow each other, so that a source has the same place among those of all its readers.
        """
        place, number = len(sources) - 1, sources[-1].number
        links = [
            (entry.gradient_BTD.data_ptr(), entry.sources[-1].row(place), entry.products_N.data_ptr(), entry.reader)
            for entry in reversed(self.entries)
            if len(entry.sources) > place and entry.sources[place].number == number
        ]
        return numpy.array(links, numpy.intp).reshape(-1, 4)


class _Step(NamedTuple):
    """What a write and the read after it need beside tensors with gradients."""

    ledger: _Ledger
    reader: int
    epsilon: numpy.float32
    sources: tuple[_Source, ...]  # the written one last


class _WriteAndRead(torch.autograd.Function):
    """What the reader gets, and the value of the source that is written: output, or current + output.

    Keys are an argument of the first write, which returns the gradient of all of them. Values of the other sources are
    arguments to be waited for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: _Step,
        keys: Tensor | None,  # noqa: ARG004 - read through the step
        output_BTD: Tensor,
        current_BTD: Tensor | None,
        *before: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        keys_RD, width, last = step.ledger.keys_RD, output_BTD.shape[-1], step.sources[-1]
        value_BTD = output_BTD.view_as(output_BTD) if current_BTD is None else torch.empty_like(output_BTD)
        mixed_BTD = torch.empty_like(output_BTD)
        rows = [(value.data_ptr(), s.scale) for value, s in zip((*before, value_BTD), step.sources, strict=True)]
        write_and_read(
            numpy.array(rows, numpy.intp), 0 if current_BTD is None else current_BTD.data_ptr(), output_BTD.data_ptr(),
            keys_RD.data_ptr() + FLOAT_BYTES * step.reader * width, step.epsilon, last.table.shape[1], width,
            mixed_BTD.data_ptr(), last.row(0),
        )  # fmt: skip
        ctx.save_for_backward(value_BTD, mixed_BTD)
        ctx.step, ctx.is_sum = step, current_BTD is not None
        return mixed_BTD, value_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_mixed_BTD: Tensor | None, given_BTD: Tensor | None) -> tuple[Tensor | None, ...]:
        value_BTD, mixed_BTD = ctx.saved_tensors
        ledger, reader, _, sources = ctx.step
        num_tokens, width = sources[-1].table.shape[1], value_BTD.shape[-1]
        ledger.open()
        if of_mixed_BTD is not None:
            products_N = value_BTD.new_empty(num_tokens)
            ledger.entries.append(_Entry(reader, sources, of_mixed_BTD.contiguous(), products_N))
        given_BTD = None if given_BTD is None else given_BTD.contiguous()
        of_value_BTD = torch.empty_like(value_BTD)
        collect(
            ledger.links(sources), 0 if of_mixed_BTD is None else mixed_BTD.data_ptr(), value_BTD.data_ptr(),
            sources[-1].scale, ledger.keys_RD.data_ptr(), 0 if given_BTD is None else given_BTD.data_ptr(), num_tokens,
            width, of_value_BTD.data_ptr(), ledger.of_keys_RD.data_ptr(),
        )  # fmt: skip
        of_keys_RD = None
        if reader == 0:  # nothing runs after it: gradients need not live as long as the graph
            of_keys_RD, ledger.entries = ledger.of_keys_RD, []
        return None, of_keys_RD, of_value_BTD, of_value_BTD if ctx.is_sum else None, *(None,) * (len(sources) - 1)


@dataclass(frozen=True)
class NumbaSources(Sources):
    """`attnres.Sources` for float32 on a CPU: what the next reader gets is made by the write before it."""

    step: _Step
    mixed_BTD: Tensor  # what its reader gets

    def started(self, output_BTD: Tensor) -> "NumbaSources":
        """After the output became a source of its own."""
        ledger, reader, _, sources = self.step
        return _written(self.readers, ledger, reader + 1, sources, output_BTD, self.every)

    def added(self, output_BTD: Tensor) -> "NumbaSources":
        """After the output was added to the current source."""
        ledger, reader, _, sources = self.step
        return _written(self.readers, ledger, reader + 1, sources[:-1], output_BTD, self.finished, self.current)

    def mixed(self, reader: int) -> Tensor:
        """What `reader` gets: of another one than the next, by the definition."""
        return self.mixed_BTD if reader == self.step.reader else super().mixed(reader)


def _written(
    readers: Readers,
    ledger: _Ledger,
    reader: int,
    sources: tuple[_Source, ...],
    output_BTD: Tensor,
    before: tuple[Tensor, ...],
    current_BTD: Tensor | None = None,
    keys_RD: Tensor | None = None,
) -> NumbaSources:
    output_BTD = output_BTD.contiguous()
    table = torch.empty(len(sources) + 2, output_BTD.numel() // output_BTD.shape[-1])
    step = _Step(ledger, reader, numpy.float32(readers.epsilon), (*sources, _Source(next(ledger.numbers), table)))
    apply: Callable[..., tuple[Tensor, Tensor]] = _WriteAndRead.apply
    mixed_BTD, value_BTD = apply(step, keys_RD, output_BTD, current_BTD, *before)
    return NumbaSources(readers, before, value_BTD, step, mixed_BTD)


def start_numba(readers: Readers, embedding_BTD: Tensor) -> NumbaSources:
    """`attnres.start` for float32 on a CPU."""
    keys_RD = (torch.stack(tuple(readers.queries)) * torch.stack(tuple(readers.key_weights))).float()
    return _written(readers, _Ledger(keys_RD), 0, (), embedding_BTD, (), keys_RD=keys_RD)

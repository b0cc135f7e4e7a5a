"""What does autograd see of the reads of Attention Residuals on a CPU? One node for each write and the read after it.

A gradient tensor for every pair of source and reader, which autograd would add up, took longer than all the rest.
Here a reader's backward notes its gradient in a ledger, and each source forms its own gradient once, from what all its
readers noted, in the backward of the write that made it. That one runs after those of all its readers, because they
have its value as an argument, and autograd waits for all users of a value, also for those that return no gradient.
The loops are in `attnres_numba.py` and `attnres_backward_numba.py`; the definition is `attnres.Sources`.

Shapes: as in `attnres.py`, and K = 2R rows of what readers have learned: keys, then norm weights.
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
from k3ablate.kernels.attnres_backward_numba import add_up, collect
from k3ablate.kernels.attnres_numba import write_and_read
from k3ablate.kernels.attnres_rows import parts_of
from k3ablate.kernels.threads import share_out

FLOAT_BYTES = 4


class _Source(NamedTuple):
    """What is known of a source beside its value, and of the reader that came right after it."""

    number: int  # no other source of the forward pass has it
    table: Tensor  # what the addresses belong to
    weights: int  # address of the reader's weights, SN
    scale: int  # address of 1 / rms, N
    norm_scale: int  # address of 1 / rms of the reader's mix, N
    products: int  # address of gradient . output of the reader in the latest backward pass, N


class _Entry(NamedTuple):
    """What a reader notes in a backward pass."""

    reader: int
    sources: tuple[_Source, ...]
    gradient_BTD: Tensor  # of its mix


class _Ledger:
    """What the writes and reads of one forward pass share, and tell each other in a backward pass.

    What is noted is good for one call of backward or grad: a call for some gradients only may leave it half used.
    """

    def __init__(self, readers: Readers, learned_KD: Tensor, num_tokens: int) -> None:
        self.learned_KD = learned_KD.detach()
        self.num_readers = len(readers.queries)
        self.key_epsilon, self.norm_epsilon = numpy.float32(readers.key_epsilon), numpy.float32(readers.norm_epsilon)
        self.num_tokens, self.width = num_tokens, learned_KD.shape[1]
        self.num_parts, self.part = parts_of(num_tokens, self.width)
        self.numbers = count()
        self.entries: list[_Entry] = []
        self._call = -1

    def key(self, reader: int) -> int:
        """Its address."""
        return self.learned_KD.data_ptr() + FLOAT_BYTES * reader * self.width

    def norm_weight(self, reader: int) -> int:
        """Its address."""
        return self.key(self.num_readers + reader)

    def open(self) -> None:
        """Start afresh in a new call; torch's own checkpointing tells them apart in the same way."""
        call = torch._C._current_graph_task_id()
        if call != self._call:
            self._call, self.entries = call, []
            self.of_learned_KD = numpy.zeros(self.learned_KD.shape, numpy.float32)

    def links(self, sources: tuple[_Source, ...]) -> Any:
        """What `collect` has to know of the readers of the last of the sources, R4, latest note first.

        Sources only follow each other, so that a source has the same place among those of all its readers.
        """
        place, number = len(sources) - 1, sources[-1].number
        row = FLOAT_BYTES * place * self.num_tokens
        links = [
            (gradient_BTD.data_ptr(), of_reader[-1].weights + row, of_reader[-1].products, reader)
            for reader, of_reader, gradient_BTD in reversed(self.entries)
            if len(of_reader) > place and of_reader[place].number == number
        ]
        return numpy.array(links, numpy.intp) if links else numpy.empty((0, 4), numpy.intp)


class _Step(NamedTuple):
    """What a write and the read after it need beside tensors with gradients."""

    ledger: _Ledger
    reader: int
    sources: tuple[_Source, ...]  # the written one last


class _WriteAndRead(torch.autograd.Function):
    """What the reader gets, and the value of the source that is written: output, or current + output.

    What readers have learned is an argument of the first write, which returns the gradient of all of it. Values of the
    other sources are arguments to be waited for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: _Step,
        learned: Tensor | None,  # noqa: ARG004 - read through the step
        output_BTD: Tensor,
        current_BTD: Tensor | None,
        *before: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ledger, reader, sources = step
        value_BTD = output_BTD.view_as(output_BTD) if current_BTD is None else torch.empty_like(output_BTD)
        mixed_BTD, normalised_BTD = torch.empty_like(output_BTD), torch.empty_like(output_BTD)
        rows = [(value.data_ptr(), s.scale) for value, s in zip((*before, value_BTD), sources, strict=True)]
        share_out(
            write_and_read, ledger.num_parts, ledger.part, numpy.array(rows, numpy.intp),
            0 if current_BTD is None else current_BTD.data_ptr(), output_BTD.data_ptr(), ledger.key(reader),
            ledger.key_epsilon, ledger.norm_weight(reader), ledger.norm_epsilon, ledger.num_tokens, ledger.width,
            sources[-1].weights, mixed_BTD.data_ptr(), sources[-1].norm_scale, normalised_BTD.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(value_BTD, mixed_BTD)
        ctx.step, ctx.is_sum = step, current_BTD is not None
        return normalised_BTD, value_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_normalised_BTD: Tensor | None, given_BTD: Tensor | None) -> tuple[Tensor | None, ...]:
        value_BTD, mixed_BTD = ctx.saved_tensors
        ledger, reader, sources = ctx.step
        ledger.open()
        if of_normalised_BTD is not None:
            of_normalised_BTD = of_normalised_BTD.contiguous()
            ledger.entries.append(_Entry(reader, sources, torch.empty_like(of_normalised_BTD)))
        given_BTD = None if given_BTD is None else given_BTD.contiguous()
        links_R4, of_value_BTD = ledger.links(sources), torch.empty_like(value_BTD)
        of_own_PKD = numpy.empty((ledger.num_parts, len(links_R4) + 1, ledger.width), numpy.float32)
        share_out(
            collect, ledger.num_parts, ledger.part, links_R4,
            0 if of_normalised_BTD is None else of_normalised_BTD.data_ptr(), ledger.norm_weight(reader),
            sources[-1].norm_scale, mixed_BTD.data_ptr(), value_BTD.data_ptr(), sources[-1].scale,
            ledger.key(0), 0 if given_BTD is None else given_BTD.data_ptr(), ledger.num_tokens, ledger.width,
            of_value_BTD.data_ptr(), of_own_PKD,
        )  # fmt: skip
        add_up(of_own_PKD, links_R4, ledger.num_readers + reader, ledger.of_learned_KD)
        of_learned_KD = None
        if reader == 0:  # nothing runs after it: gradients need not live as long as the graph
            of_learned_KD, ledger.entries = torch.from_numpy(ledger.of_learned_KD), []
        return None, of_learned_KD, of_value_BTD, of_value_BTD if ctx.is_sum else None, *(None,) * (len(sources) - 1)


@dataclass(frozen=True)
class NumbaSources(Sources):
    """`attnres.Sources` for float32 on a CPU: what the next reader gets is made by the write before it."""

    step: _Step
    normalised_BTD: Tensor  # what its reader gets

    def started(self, output_BTD: Tensor) -> "NumbaSources":
        """After the output became a source of its own."""
        ledger, reader, sources = self.step
        return _written(self.readers, ledger, reader + 1, sources, output_BTD, self.every)

    def added(self, output_BTD: Tensor) -> "NumbaSources":
        """After the output was added to the current source."""
        ledger, reader, sources = self.step
        return _written(self.readers, ledger, reader + 1, sources[:-1], output_BTD, self.finished, self.current)

    def read(self, reader: int) -> Tensor:
        """What `reader` gets: of another one than the next, by the definition."""
        return self.normalised_BTD if reader == self.step.reader else super().read(reader)


def _written(
    readers: Readers,
    ledger: _Ledger,
    reader: int,
    sources: tuple[_Source, ...],
    output_BTD: Tensor,
    before: tuple[Tensor, ...],
    current_BTD: Tensor | None = None,
    learned_KD: Tensor | None = None,
) -> NumbaSources:
    row, num_rows = FLOAT_BYTES * ledger.num_tokens, len(sources) + 4
    table = torch.empty(num_rows * ledger.num_tokens)
    first, end = table.data_ptr(), table.data_ptr() + num_rows * row
    source = _Source(next(ledger.numbers), table, first, end - 3 * row, end - 2 * row, end - row)
    step = _Step(ledger, reader, (*sources, source))
    apply: Callable[..., tuple[Tensor, Tensor]] = _WriteAndRead.apply
    normalised_BTD, value_BTD = apply(step, learned_KD, output_BTD.contiguous(), current_BTD, *before)
    return NumbaSources(readers, before, value_BTD, step, normalised_BTD)


def start_numba(readers: Readers, embedding_BTD: Tensor) -> NumbaSources:
    """`attnres.start` for float32 on a CPU."""
    keys_RD = torch.stack(tuple(readers.queries)) * torch.stack(tuple(readers.key_weights))
    learned_KD = torch.cat((keys_RD, torch.stack(tuple(readers.norm_weights)))).float()
    ledger = _Ledger(readers, learned_KD, embedding_BTD.shape[:-1].numel())
    return _written(readers, ledger, 0, (), embedding_BTD, (), learned_KD=learned_KD)

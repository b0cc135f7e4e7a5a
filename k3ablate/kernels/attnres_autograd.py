"""What does autograd see of the reads of Attention Residuals on a CPU? One node for each write and the read after it.

A gradient tensor for every pair of source and reader, which autograd would add up, took longer than all the rest.
Here a reader's backward notes its gradient in a ledger, and each source forms its own gradient once, from what all its
readers noted, in the backward of the write that made it. That one runs after those of all its readers, because every
write has the value of the one before as an argument, and autograd waits for all users of a value, also for those that
return no gradient.
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
            self._call = call
            self.close()
            self.of_learned_KD = numpy.zeros(self.learned_KD.shape, numpy.float32)

    def close(self) -> None:
        """Forget what was noted, so that gradients need not live as long as the graph."""
        self.gradients: list[Tensor] = []
        self._links: dict[int, list[tuple[int, int, int, int]]] = {}

    def note(self, reader: int, sources: tuple[_Source, ...], gradient_BTD: Tensor) -> None:
        """The gradient of what `reader` mixes, for the sources that it has mixed."""
        self.gradients.append(gradient_BTD)
        gradient, weights, products = gradient_BTD.data_ptr(), sources[-1].weights, sources[-1].products
        for source in sources:
            self._links.setdefault(source.number, []).append((gradient, weights, products, reader))
            weights += FLOAT_BYTES * self.num_tokens

    def links(self, source: _Source) -> Any:
        """What `collect` has to know of the readers of a source, R4, latest note first."""
        links = self._links.pop(source.number, [])
        return numpy.array(links[::-1], numpy.intp).reshape(-1, 4)


class _Step(NamedTuple):
    """What a write and the read after it need beside tensors."""

    ledger: _Ledger
    reader: int
    sources: tuple[_Source, ...]  # the written one last
    is_sum: bool  # whether the output is added to what was written before


class _WriteAndRead(torch.autograd.Function):
    """What the reader gets, and the value of the source that is written: output, or previous + output.

    What readers have learned is an argument of the first write, which returns the gradient of all of it. The value
    written before is an argument to be waited for, also where a source starts. `before` are those of other sources.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: _Step,
        learned: Tensor | None,  # noqa: ARG004 - read through the step
        output_BTD: Tensor,
        previous_BTD: Tensor | None,
        before: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ledger, reader, sources, is_sum = step
        value_BTD = torch.empty_like(output_BTD) if is_sum else output_BTD.view_as(output_BTD)
        mixed_BTD, normalised_BTD = torch.empty_like(output_BTD), torch.empty_like(output_BTD)
        rows = [(value.data_ptr(), s.scale) for value, s in zip((*before, value_BTD), sources, strict=True)]
        share_out(
            write_and_read, ledger.num_parts, ledger.part, numpy.array(rows, numpy.intp),
            previous_BTD.data_ptr() if previous_BTD is not None and is_sum else 0, output_BTD.data_ptr(),
            ledger.key(reader), ledger.key_epsilon, ledger.norm_weight(reader), ledger.norm_epsilon, ledger.num_tokens,
            ledger.width, sources[-1].weights, mixed_BTD.data_ptr(), sources[-1].norm_scale, normalised_BTD.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(value_BTD, mixed_BTD)
        ctx.step = step
        return normalised_BTD, value_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_normalised_BTD: Tensor | None, given_BTD: Tensor | None) -> tuple[Tensor | None, ...]:
        value_BTD, mixed_BTD = ctx.saved_tensors
        ledger, reader, sources, is_sum = ctx.step
        ledger.open()
        if of_normalised_BTD is not None:
            of_normalised_BTD = of_normalised_BTD.contiguous()
            ledger.note(reader, sources, torch.empty_like(of_normalised_BTD))
        given_BTD = None if given_BTD is None else given_BTD.contiguous()
        links_R4, of_value_BTD = ledger.links(sources[-1]), torch.empty_like(value_BTD)
        of_own_PKD = numpy.empty((ledger.num_parts, len(links_R4) + 1, ledger.width), numpy.float32)
        share_out(
            collect, ledger.num_parts, ledger.part, links_R4,
            0 if of_normalised_BTD is None else of_normalised_BTD.data_ptr(), ledger.norm_weight(reader),
            sources[-1].norm_scale, mixed_BTD.data_ptr(), value_BTD.data_ptr(), sources[-1].scale, ledger.key(0),
            0 if given_BTD is None else given_BTD.data_ptr(), ledger.num_tokens, ledger.width, of_value_BTD.data_ptr(),
            of_own_PKD,
        )  # fmt: skip
        add_up(of_own_PKD, links_R4, ledger.num_readers + reader, ledger.of_learned_KD)
        of_learned_KD = None
        if reader == 0:  # nothing runs after it
            of_learned_KD = torch.from_numpy(ledger.of_learned_KD)
            ledger.close()
        return None, of_learned_KD, of_value_BTD, of_value_BTD if is_sum else None, None


@dataclass(frozen=True)
class NumbaSources(Sources):
    """`attnres.Sources` for float32 on a CPU: what the next reader gets is made by the write before it."""

    step: _Step
    normalised_BTD: Tensor  # what its reader gets

    def started(self, output_BTD: Tensor) -> "NumbaSources":
        """After the output became a source of its own."""
        ledger, reader, sources, _ = self.step
        step = _next_step(ledger, reader + 1, sources, is_sum=False)
        return _written(self.readers, step, None, output_BTD, self.current, self.every)

    def added(self, output_BTD: Tensor) -> "NumbaSources":
        """After the output was added to the current source."""
        ledger, reader, sources, _ = self.step
        step = _next_step(ledger, reader + 1, sources[:-1], is_sum=True)
        return _written(self.readers, step, None, output_BTD, self.current, self.finished)

    def read(self, reader: int) -> Tensor:
        """What `reader` gets: of another one than the next, by the definition."""
        return self.normalised_BTD if reader == self.step.reader else super().read(reader)

    def mixed(self, reader: int) -> Tensor:
        """What is normalised for `reader`: where no gradient is asked for, with the weights that it was made with."""
        if reader != self.step.reader or torch.is_grad_enabled():
            return super().mixed(reader)
        noted = self.step.sources[-1].table[: len(self.every) * self.step.ledger.num_tokens]
        weights_SBT1 = noted.view(len(self.every), *self.current.shape[:-1], 1)
        mixed_BTD = torch.zeros_like(self.current)
        for weights_BT1, value_BTD in zip(weights_SBT1, self.every, strict=True):
            mixed_BTD.addcmul_(weights_BT1, value_BTD)
        return mixed_BTD


def _next_step(ledger: _Ledger, reader: int, before: tuple[_Source, ...], is_sum: bool) -> _Step:
    """With a new source behind those before it."""
    row, num_rows = FLOAT_BYTES * ledger.num_tokens, len(before) + 4
    table = torch.empty(num_rows * ledger.num_tokens)
    first, end = table.data_ptr(), table.data_ptr() + num_rows * row
    source = _Source(next(ledger.numbers), table, first, end - 3 * row, end - 2 * row, end - row)
    return _Step(ledger, reader, (*before, source), is_sum)


def _written(
    readers: Readers,
    step: _Step,
    learned_KD: Tensor | None,
    output_BTD: Tensor,
    previous_BTD: Tensor | None,
    before: tuple[Tensor, ...],
) -> NumbaSources:
    apply: Callable[..., tuple[Tensor, Tensor]] = _WriteAndRead.apply
    normalised_BTD, value_BTD = apply(step, learned_KD, output_BTD.contiguous(), previous_BTD, before)
    return NumbaSources(readers, before, value_BTD, step, normalised_BTD)


def start_numba(readers: Readers, embedding_BTD: Tensor) -> NumbaSources:
    """`attnres.start` for float32 on a CPU."""
    keys_RD = torch.stack(tuple(readers.queries)) * torch.stack(tuple(readers.key_weights))
    learned_KD = torch.cat((keys_RD, torch.stack(tuple(readers.norm_weights)))).float()
    ledger = _Ledger(readers, learned_KD, embedding_BTD.shape[:-1].numel())
    return _written(readers, _next_step(ledger, 0, (), is_sum=False), learned_KD, embedding_BTD, None, ())

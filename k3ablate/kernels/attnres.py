"""How does one sublayer read by attention over everything written before it? The reads of Attention Residuals.

Specification 4.4 (Attention Residuals, arXiv 2603.15031, and the K3 report, section 2.2): every source is scored by a
learned query against its own RMS-normalised value, and the softmax over sources weighs the raw values. The norm in
front of the sublayer belongs to the read here, because it costs little while the mix lies in the cache. `read_plain`
and `rms_norm` are the definition, in torch, stacking the sources. `start` opens one forward pass, whose reads belong
together because the gradient of a source has a part from each of its readers: on a CPU in float32 a numba form goes
over each token once, forwards and backwards, and never stacks. When a new source starts is decided in
`model/residual.py`.

Shapes: B batch, T positions, D model width, S sources, R readers, N tokens (B x T).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.rms_norm import rms_norm


@dataclass(frozen=True)
class Readers:
    """What the readers of a forward pass have learned, one of each per reader."""

    queries: Sequence[Tensor]  # D
    key_weights: Sequence[Tensor]  # D
    norm_weights: Sequence[Tensor]  # D, of the norm of what is read
    key_epsilon: float
    norm_epsilon: float


@dataclass(frozen=True)
class Sources:
    """Everything that has been written so far, read by the definition. Nothing that was written ever changes."""

    readers: Readers
    finished: tuple[Tensor, ...]  # BTD each
    current: Tensor  # BTD

    @property
    def every(self) -> tuple[Tensor, ...]:
        """What a read mixes, in the order it was written."""
        return (*self.finished, self.current)

    def started(self, output_BTD: Tensor) -> "Sources":
        """After the output became a source of its own, the current one from here on."""
        return Sources(self.readers, self.every, output_BTD)

    def added(self, output_BTD: Tensor) -> "Sources":
        """After the output was added to the current source."""
        return Sources(self.readers, self.finished, self.current + output_BTD)

    def read(self, reader: int) -> Tensor:
        """What `reader` gets, BTD: its mix, normalised. Reader i reads after i writes; any other is slow."""
        mixed_BTD, weight_D = self.mixed(reader), self.readers.norm_weights[reader]
        return rms_norm(mixed_BTD.to(_precise(self.every)), weight_D, self.readers.norm_epsilon).to(mixed_BTD.dtype)

    def mixed(self, reader: int) -> Tensor:
        """What is normalised for `reader`: every source as it weighs them, BTD. Slow: `read` does not need it."""
        query_D, key_weight_D = self.readers.queries[reader], self.readers.key_weights[reader]
        return read_plain(query_D, key_weight_D, self.every, self.readers.key_epsilon)


Start = Callable[[Readers, Tensor], Sources]


def start(readers: Readers, embedding_BTD: Tensor) -> Sources:
    """The first source, of a forward pass that computes in the embedding's dtype: later outputs have it too."""
    return dispatch.choose(OPERATION, embedding_BTD)(readers, embedding_BTD)


def start_plain(readers: Readers, embedding_BTD: Tensor) -> Sources:
    """The definition of `start`."""
    return Sources(readers, (), embedding_BTD)


def read_weights(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor], epsilon: float) -> Tensor:
    """What a read weighs each source with, BTS; sums to one over the sources."""
    values_SBTD = torch.stack(tuple(sources)).to(_precise(sources))
    scale_SBT = torch.rsqrt(values_SBTD.square().mean(-1) + epsilon)
    scores_SBT = scale_SBT * (values_SBTD * (query_D * key_weight_D).to(_precise(sources))).sum(-1)
    return scores_SBT.softmax(0).movedim(0, -1)


def read_plain(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor], epsilon: float) -> Tensor:
    """The sources mixed by softmax(query . (key_weight * source / rms(source))): S tensors BTD -> BTD.

    Scores and softmax are float32 at least, the result has the dtype of the first source. Elementwise products only, so
    that no autocast lowers their precision.
    """
    assert sources, "a read needs at least one source"
    weights_BTS = read_weights(query_D, key_weight_D, sources, epsilon)
    values_BTSD = torch.stack(tuple(sources), dim=-2).to(_precise(sources))
    return (weights_BTS.unsqueeze(-1) * values_BTSD).sum(-2).to(sources[0].dtype)


def _precise(sources: Sequence[Tensor]) -> torch.dtype:
    """float32, or float64 where the sources are."""
    return torch.promote_types(sources[0].dtype, torch.float32)


def _load_numba() -> Start:
    from k3ablate.kernels.attnres_autograd import start_numba

    return start_numba


OPERATION: dispatch.Operation[Start] = dispatch.numba_or_torch("attnres", _load_numba, start_plain)

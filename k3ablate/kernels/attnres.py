"""How does one sublayer read by attention over everything written before it? The read of Attention Residuals.

`read` is the operation of specification 4.4 (Attention Residuals, arXiv 2603.15031, and the K3 report, section 2.2):
every source is scored by a learned query against its own RMS-normalised value, and the softmax over sources weighs
the raw values. `read_plain` is the definition, in torch, stacking the sources; the numba form goes over each token
once, forwards and backwards, and never stacks. Which sources a sublayer has is `model/residual.py`.

Shapes: B batch, T positions, D model width, S sources, N tokens (B x T).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from k3ablate.kernels import dispatch

# (query_D, key_weight_D, sources of shape BTD, epsilon) -> mixed_BTD
Read = Callable[[Tensor, Tensor, Sequence[Tensor], float], Tensor]


def read(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor], epsilon: float) -> Tensor:
    """The sources mixed by softmax(query . (key_weight * source / rms(source))): S tensors BTD -> BTD.

    Scores and softmax are float32 at least; the result has the dtype of the first source.
    """
    assert sources, "a read needs at least one source"
    return dispatch.choose(OPERATION, sources[0])(query_D, key_weight_D, sources, epsilon)


def read_weights(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor], epsilon: float) -> Tensor:
    """What `read` weighs each source with, BTS; sums to one over the sources."""
    values_SBTD = torch.stack(tuple(sources)).to(_precise(sources))
    scale_SBT = torch.rsqrt(values_SBTD.square().mean(-1) + epsilon)
    scores_SBT = scale_SBT * (values_SBTD * (query_D * key_weight_D).to(_precise(sources))).sum(-1)
    return scores_SBT.softmax(0).movedim(0, -1)


def read_plain(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor], epsilon: float) -> Tensor:
    """The definition of `read`, in torch: elementwise products only, so that no autocast lowers their precision."""
    weights_BTS = read_weights(query_D, key_weight_D, sources, epsilon)
    values_BTSD = torch.stack(tuple(sources), dim=-2).to(_precise(sources))
    return (weights_BTS.unsqueeze(-1) * values_BTSD).sum(-2).to(sources[0].dtype)


def _precise(sources: Sequence[Tensor]) -> torch.dtype:
    """float32, or float64 where the sources are."""
    return torch.promote_types(sources[0].dtype, torch.float32)


def _load_numba() -> Read:
    from k3ablate.kernels import attnres_numba

    return attnres_numba.read


OPERATION: dispatch.Operation[Read] = dispatch.numba_or_torch("attnres", _load_numba, read_plain)

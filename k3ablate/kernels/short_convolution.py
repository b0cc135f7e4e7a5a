"""What does each channel of KDA see of its last few positions? A depthwise causal convolution, then SiLU, in one pass.

The plain form is the definition (specification 4.1, step 1). Which inputs stand before the first position is
`model/kda.py`.

Shapes: B batch, T positions, U = W - 1 positions before them, P channels, W taps.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# (x_BTP, before_BUP, weight_PW) -> y_BTP
ShortConvolutionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


def short_convolution(x_BTP: Tensor, before_BUP: Tensor, weight_PW: Tensor) -> Tensor:
    """y_BTP = silu(sum over j of weight[:, j] * x[:, t - U + j]), x[:, -1] the last of `before`."""
    assert x_BTP.shape[2] == weight_PW.shape[0], "one filter for each channel"
    assert before_BUP.shape[1] == weight_PW.shape[1] - 1, "as many inputs before as the filter looks back"
    return dispatch.choose(OPERATION, x_BTP)(x_BTP, before_BUP, weight_PW)


def short_convolution_plain(x_BTP: Tensor, before_BUP: Tensor, weight_PW: Tensor) -> Tensor:
    """The definition of `short_convolution`."""
    seen_BPS = torch.cat([before_BUP, x_BTP], dim=1).transpose(1, 2)
    convolved_BPT = functional.conv1d(seen_BPS, weight_PW[:, None], groups=len(weight_PW))
    return functional.silu(convolved_BPT.transpose(1, 2))


def _load_numba() -> ShortConvolutionFunction:
    from k3ablate.kernels.short_convolution_numba import numba_short_convolution

    return numba_short_convolution


OPERATION: dispatch.Operation[ShortConvolutionFunction] = dispatch.numba_or_torch(
    "short_convolution", _load_numba, short_convolution_plain
)

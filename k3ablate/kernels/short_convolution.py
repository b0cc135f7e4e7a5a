"""What does each channel of KDA see of its last few positions? A depthwise causal convolution, then SiLU, in one pass.

The plain form is the definition (specification 4.1, step 1). Which inputs stand before the first position is
`model/kda.py`.

Shapes: B batch, S positions with those before the first, T = S - W + 1 positions, P channels, W taps.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# (seen_BSP, weight_PW) -> y_BTP
ShortConvolutionFunction = Callable[[Tensor, Tensor], Tensor]


def short_convolution(seen_BSP: Tensor, weight_PW: Tensor) -> Tensor:
    """y_BTP = silu(sum over j of weight[:, j] * seen[:, t + j]); the last tap sees the position itself."""
    assert seen_BSP.shape[2] == weight_PW.shape[0], "one filter for each channel"
    return dispatch.choose(OPERATION, seen_BSP)(seen_BSP, weight_PW)


def short_convolution_plain(seen_BSP: Tensor, weight_PW: Tensor) -> Tensor:
    """The definition of `short_convolution`."""
    convolved_BPT = functional.conv1d(seen_BSP.transpose(1, 2), weight_PW[:, None], groups=len(weight_PW))
    return functional.silu(convolved_BPT.transpose(1, 2))


def _load_numba() -> ShortConvolutionFunction:
    from k3ablate.kernels.short_convolution_numba import numba_short_convolution

    return numba_short_convolution


OPERATION: dispatch.Operation[ShortConvolutionFunction] = dispatch.numba_or_torch(
    "short_convolution", _load_numba, short_convolution_plain
)

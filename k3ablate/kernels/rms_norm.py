"""How is a vector brought to unit root mean square, in one pass forwards and one backwards?

The plain form, torch's own, is the definition; on a CPU torch runs it as five operations and more backwards. Which
norms a model has is `model/`; the norm of a head that a gate follows is `head_norms.py`.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# (x, weight_D, epsilon) -> y, x and y of shape [..., D]
RmsNormFunction = Callable[[Tensor, Tensor, float], Tensor]


def rms_norm(x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis, any leading shape."""
    assert x.shape[-1:] == weight_D.shape, "a weight for each channel"
    return dispatch.choose(OPERATION, x)(x, weight_D, epsilon)


def rms_norm_plain(x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """The definition of `rms_norm`."""
    return functional.rms_norm(x, weight_D.shape, weight_D, epsilon)


def _load_numba() -> RmsNormFunction:
    from k3ablate.kernels.rms_norm_numba import numba_rms_norm

    return numba_rms_norm


OPERATION: dispatch.Operation[RmsNormFunction] = dispatch.numba_or_torch("rms_norm", _load_numba, rms_norm_plain)

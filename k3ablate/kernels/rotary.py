"""How does a query or key carry its position? Its last channels are turned by angles that grow with the position.

`rotary_plain` is the definition (Su et al. 2021, pairs of channels i and i + P/2); `rotary` takes one numba pass where
it can. Which channels are turned, and by which base, is `model/attention.py`'s matter.

Shapes: B batch, T positions from 0 on, H heads, K channels of which the last P are turned.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from k3ablate.kernels import dispatch

# (x_BTHK, P, base) -> y_BTHK
Rotary = Callable[[Tensor, int, float], Tensor]


def rotary(x_BTHK: Tensor, width: int, base: float) -> Tensor:
    """The last `width` channels turned in pairs by t base^(-2i / width), the others as they are; in the dtype of x."""
    assert width % 2 == 0, "channels turn in pairs"
    assert width <= x_BTHK.shape[3], "there are as many channels"
    return dispatch.choose(OPERATION, x_BTHK)(x_BTHK, width, base)


def rotary_plain(x_BTHK: Tensor, width: int, base: float) -> Tensor:
    """The definition of `rotary`; angles in float64, because float32 loses digits at late positions."""
    start = x_BTHK.shape[3] - width
    positions_T1 = torch.arange(x_BTHK.shape[1], device=x_BTHK.device, dtype=torch.float64)[:, None]
    exponents = torch.arange(width // 2, device=x_BTHK.device, dtype=torch.float64) * 2 / width
    angles_T1P = (positions_T1 * base**-exponents)[:, None, :]
    dtype = torch.promote_types(x_BTHK.dtype, torch.float32)
    cosine, sine = angles_T1P.cos().to(dtype), angles_T1P.sin().to(dtype)
    first, second = x_BTHK[..., start:].chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return torch.cat([x_BTHK[..., :start], turned.to(x_BTHK.dtype)], dim=-1)


def _load_numba() -> Rotary:
    from k3ablate.kernels.rotary_numba import numba_rotary

    return numba_rotary


OPERATION: dispatch.Operation[Rotary] = dispatch.numba_or_torch("rotary", _load_numba, rotary_plain)

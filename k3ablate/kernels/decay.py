"""How much does each key channel of a K3 head forget at a token? The bounded log-decay of KDA, in one pass.

Bias, rate, sigmoid and bound of a whole tensor of logits (specification 4.1, step 4): torch makes four passes of it and
eight backwards. The plain form is the definition. Kimi Linear's softplus has no kernel, and what is done with the decay
is `kda.py`.

Shapes: B batch, T positions, H heads, K key channels.
"""

from collections.abc import Callable

from torch import Tensor

from k3ablate.kernels import dispatch

# (logits_BTHK, bias_HK, A_log_H, lower_bound) -> log_decay_BTHK
BoundedDecayFunction = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def bounded_decay(logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor, lower_bound: float) -> Tensor:
    """Natural log-decay_BTHK = lower_bound sigmoid(exp(A_log) (logits + bias)), in (lower_bound, 0)."""
    assert logits_BTHK.shape[2:] == bias_HK.shape, "a bias for each channel of each head"
    return dispatch.choose(OPERATION, logits_BTHK)(logits_BTHK, bias_HK, A_log_H, lower_bound)


def bounded_decay_plain(logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor, lower_bound: float) -> Tensor:
    """The definition of `bounded_decay`."""
    return lower_bound * (A_log_H.exp()[:, None] * (logits_BTHK + bias_HK)).sigmoid()


def _load_numba() -> BoundedDecayFunction:
    from k3ablate.kernels.decay_numba import numba_bounded_decay

    return numba_bounded_decay


OPERATION: dispatch.Operation[BoundedDecayFunction] = dispatch.numba_or_torch(
    "bounded_decay", _load_numba, bounded_decay_plain
)

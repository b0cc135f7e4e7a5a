"""How do tokens look each other up by softmax, each seeing itself and those before it? The core of softmax attention.

`causal_attention_plain` is the definition, around torch's own fused form. `causal_attention` is what a model calls: the
numba kernel on a CPU in float32, the plain form otherwise. Projections, norms and gates belong to
`model/attention.py`, positions to `rotary.py`. No cache for decoding here: this is for training.

Shapes: B batch, T positions, H query heads, G key and value heads (G divides H), K = N + P channels of a query, N of a
key of its own, P of the slice that all keys of a token share, V channels of a value.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# (query_BTHK, key_BTGN, value_BTGV, shared_key_BT1P or None) -> attended_BTHV
CausalAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def causal_attention(
    query_BTHK: Tensor, key_BTGN: Tensor, value_BTGV: Tensor, shared_key_BT1P: Tensor | None = None
) -> Tensor:
    """softmax(q k / sqrt(K)) v over positions up to the query's own -> BTHV; `shared_key` is appended to every key."""
    own_width = query_BTHK.shape[3] - (0 if shared_key_BT1P is None else shared_key_BT1P.shape[3])
    assert key_BTGN.shape[3] == own_width, "a channel of a key for each one of a query"
    assert query_BTHK.shape[2] % key_BTGN.shape[2] == 0, "query heads share key and value heads evenly"
    return dispatch.choose(OPERATION, query_BTHK)(query_BTHK, key_BTGN, value_BTGV, shared_key_BT1P)


def causal_attention_plain(
    query_BTHK: Tensor, key_BTGN: Tensor, value_BTGV: Tensor, shared_key_BT1P: Tensor | None = None
) -> Tensor:
    """The definition of `causal_attention`; the softmax is in float32 at least."""
    key_BTGK = key_BTGN
    if shared_key_BT1P is not None:
        key_BTGK = torch.cat([key_BTGN, shared_key_BT1P.expand(-1, -1, key_BTGN.shape[2], -1)], dim=-1)
    num_heads, query_width, value_width = query_BTHK.shape[2], query_BTHK.shape[3], value_BTGV.shape[3]
    repeats = num_heads // key_BTGK.shape[2]
    # Fused kernels want equal widths: without padding MLA takes torch's unfused path, three times slower on a CPU.
    value_BTGK = functional.pad(value_BTGV, (0, max(0, query_width - value_width)))
    query, key, value = (
        tensor.transpose(1, 2)
        for tensor in (query_BTHK, key_BTGK.repeat_interleave(repeats, 2), value_BTGK.repeat_interleave(repeats, 2))
    )
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return attended[..., :value_width].transpose(1, 2)


def _load_numba() -> CausalAttention:
    from k3ablate.kernels.causal_attention_numba import numba_causal_attention

    return numba_causal_attention


OPERATION: dispatch.Operation[CausalAttention] = dispatch.numba_or_torch(
    "causal_attention", _load_numba, causal_attention_plain
)

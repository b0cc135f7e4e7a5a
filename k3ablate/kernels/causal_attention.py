"""How do tokens look each other up by softmax, each seeing itself and those before it? The core of softmax attention.

`causal_attention_plain` is the definition, around torch's own fused form. `causal_attention` is what a model calls: the
numba kernel on a CPU in float32, the plain form otherwise. Projections, norms and gates belong to
`model/attention.py`, positions to `rotary.py`. No cache for decoding here: this is for training. Whoever wants to know
how large scores get hands in `largest_H`; for nobody else is anything computed.

Shapes: B batch, T positions, Q queries, H query heads, G key and value heads (G divides H), K = N + P channels of a
query, N of a key of its own, P of the slice that all keys of a token share, V channels of a value.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# (query_BTHK, key_BTGN, value_BTGV, shared_key_BT1P or None, largest_H or None) -> attended_BTHV
CausalAttention = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]

QUERIES = 128  # whose scores the plain form holds at a time to find the largest


def causal_attention(
    query_BTHK: Tensor,
    key_BTGN: Tensor,
    value_BTGV: Tensor,
    shared_key_BT1P: Tensor | None = None,
    largest_H: Tensor | None = None,
) -> Tensor:
    """softmax(q k / sqrt(K)) v over positions up to the query's own -> BTHV; `shared_key` is appended to every key.

    `largest_H` is raised, in place, to the largest q k / sqrt(K) of each head; it takes part in no gradient.
    """
    own_width = query_BTHK.shape[3] - (0 if shared_key_BT1P is None else shared_key_BT1P.shape[3])
    assert key_BTGN.shape[3] == own_width, "a channel of a key for each one of a query"
    assert query_BTHK.shape[2] % key_BTGN.shape[2] == 0, "query heads share key and value heads evenly"
    return dispatch.choose(OPERATION, query_BTHK)(query_BTHK, key_BTGN, value_BTGV, shared_key_BT1P, largest_H)


def causal_attention_plain(
    query_BTHK: Tensor,
    key_BTGN: Tensor,
    value_BTGV: Tensor,
    shared_key_BT1P: Tensor | None = None,
    largest_H: Tensor | None = None,
) -> Tensor:
    """The definition of `causal_attention`; the softmax is in float32 at least."""
    key_BTGK = key_BTGN
    if shared_key_BT1P is not None:
        key_BTGK = torch.cat([key_BTGN, shared_key_BT1P.expand(-1, -1, key_BTGN.shape[2], -1)], dim=-1)
    if largest_H is not None:
        _raise_to_largest(largest_H, query_BTHK, key_BTGK)
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


@torch.no_grad()
def _raise_to_largest(largest_H: Tensor, query_BTHK: Tensor, key_BTGK: Tensor) -> None:
    """Torch's fused forms keep no scores, so they are computed once more, those of some queries at a time."""
    length, num_heads, width = query_BTHK.shape[1:]
    key_BHKT = key_BTGK.repeat_interleave(num_heads // key_BTGK.shape[2], 2).permute(0, 2, 3, 1)
    for start in range(0, length if len(query_BTHK) else 0, QUERIES):
        stop = min(start + QUERIES, length)
        scores_BHQT = query_BTHK[:, start:stop].transpose(1, 2) @ key_BHKT[..., :stop]
        hidden_QT = torch.ones(scores_BHQT.shape[2:], dtype=torch.bool, device=largest_H.device).triu(start + 1)
        largest = scores_BHQT.masked_fill(hidden_QT, -torch.inf).amax((0, 2, 3)).to(largest_H.dtype)
        torch.maximum(largest_H, largest * width**-0.5, out=largest_H)


def _load_numba() -> CausalAttention:
    from k3ablate.kernels.causal_attention_numba import numba_causal_attention

    return numba_causal_attention


OPERATION: dispatch.Operation[CausalAttention] = dispatch.numba_or_torch(
    "causal_attention", _load_numba, causal_attention_plain
)

"""What does Kimi Delta Attention compute, and which of its forms runs here?

`recurrent_kda` is the definition, one token after the other. `chunked_kda` is the same in torch with one step per 16
tokens. `kda` is what a model calls: it takes the numba kernel of `kda_numba.py` on a CPU in float32, the chunked form
otherwise. Projections, normalisation and the decay's formula belong to `model/kda.py`.

All forms share one signature:
query_BTHK (scaled by the caller), key_BTHK (unit length), value_BTHV, log_decay_BTHK (natural logarithm, <= 0),
write_strength_BTH (0..1), initial_state_BHKV (None: zeros) -> output_BTHV, final_state_BHKV.

Shapes: B batch, T positions, H heads, K key channels, V value channels, N chunks, C positions of a chunk.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# At most 16 tokens: pairwise decays of a chunk are formed one by one, which costs C x K numbers per token.
CHUNK = 16

KdaFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def kda(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHV: Tensor,
    log_decay_BTHK: Tensor,
    write_strength_BTH: Tensor,
    initial_state_BHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and final state by the implementation that `dispatch.choose` takes; shapes in the module docstring."""
    batch, length, num_heads, key_width = key_BTHK.shape
    assert query_BTHK.shape == log_decay_BTHK.shape == key_BTHK.shape, "query, key and log-decay share one shape"
    assert value_BTHV.shape[:3] == write_strength_BTH.shape == (batch, length, num_heads)
    assert initial_state_BHKV is None or initial_state_BHKV.shape == (batch, num_heads, key_width, value_BTHV.shape[3])
    function = dispatch.choose(OPERATION, value_BTHV)
    return function(query_BTHK, key_BTHK, value_BTHV, log_decay_BTHK, write_strength_BTH, initial_state_BHKV)


def recurrent_kda(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHV: Tensor,
    log_decay_BTHK: Tensor,
    write_strength_BTH: Tensor,
    initial_state_BHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition (K3 report, equations 1 to 3): decay the state, write what is new about the value, read."""
    state_BHKV = zero_state(key_BTHK, value_BTHV) if initial_state_BHKV is None else initial_state_BHKV
    outputs = []
    for position in range(key_BTHK.shape[1]):
        key_BHK = key_BTHK[:, position]
        decayed_BHKV = log_decay_BTHK[:, position].exp()[..., None] * state_BHKV
        recalled_BHV = torch.einsum("bhk,bhkv->bhv", key_BHK, decayed_BHKV)
        written_BHV = write_strength_BTH[:, position, :, None] * (value_BTHV[:, position] - recalled_BHV)
        state_BHKV = decayed_BHKV + key_BHK[..., None] * written_BHV[..., None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", query_BTHK[:, position], state_BHKV))
    return torch.stack(outputs, dim=1), state_BHKV


def chunked_kda(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHV: Tensor,
    log_decay_BTHK: Tensor,
    write_strength_BTH: Tensor,
    initial_state_BHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence with one step per chunk (specification 4.1, chunk form).

    Safe for any decay: every exponent is a sum of log-decays, at most 0.
    """
    length = key_BTHK.shape[1]
    query, key, value = (_chunks(tensor) for tensor in (query_BTHK, key_BTHK, value_BTHV))
    strength_BHNC1 = _chunks(write_strength_BTH[..., None])
    retained_BHNCK, between_BHNCCK = _retentions(_chunks(log_decay_BTHK))

    key_key_BHNCC, query_key_BHNCC = _decayed_products(query, key, between_BHNCCK)
    right_side = strength_BHNC1 * torch.cat([retained_BHNCK * key, value], dim=-1)
    solved = torch.linalg.solve_triangular(  # the diagonal is taken as 1
        strength_BHNC1 * key_key_BHNCC, right_side, upper=False, unitriangular=True
    )
    recall_BHNCK, update_BHNCV = solved.split([key.shape[-1], value.shape[-1]], dim=-1)

    read_BHNCK = retained_BHNCK * query
    write_BHNKC = (between_BHNCCK[..., -1, :, :] * key).transpose(-1, -2)
    kept_BHNK1 = retained_BHNCK[..., -1, :, None]
    state_BHKV = zero_state(key_BTHK, value_BTHV) if initial_state_BHKV is None else initial_state_BHKV
    outputs = []
    for chunk in range(key.shape[2]):
        written_BHCV = update_BHNCV[:, :, chunk] - recall_BHNCK[:, :, chunk] @ state_BHKV
        outputs.append(read_BHNCK[:, :, chunk] @ state_BHKV + query_key_BHNCC[:, :, chunk] @ written_BHCV)
        state_BHKV = kept_BHNK1[:, :, chunk] * state_BHKV + write_BHNKC[:, :, chunk] @ written_BHCV
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :length], state_BHKV


def zero_state(key_BTHK: Tensor, value_BTHV: Tensor) -> Tensor:
    """The empty memory, state_BHKV."""
    batch, _, num_heads, value_width = value_BTHV.shape
    return value_BTHV.new_zeros(batch, num_heads, key_BTHK.shape[-1], value_width)


def _chunks(tensor_BTHX: Tensor) -> Tensor:
    """BTHX -> BHNCX; padding tokens are all zero: they decay nothing and write nothing."""
    batch, length, num_heads, width = tensor_BTHX.shape
    padded = functional.pad(tensor_BTHX, (0, 0, 0, 0, 0, -length % CHUNK))
    return padded.transpose(1, 2).reshape(batch, num_heads, -1, CHUNK, width)


def _retentions(log_decay_BHNCK: Tensor) -> tuple[Tensor, Tensor]:
    """What is kept of the state from the chunk's start to each row, BHNCK, and from column to row, BHNCCK.

    Each sum of log-decays is formed by itself. As differences of sums from the start they would cancel: at a decay of
    -5 everywhere their gradients in float32 lost two digits.
    """
    ones = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=log_decay_BHNCK.device)
    after_CC1, before_CC1 = ones.tril(diagonal=-1)[..., None], ones.triu(diagonal=1)[..., None]
    steps_BHNCCK = (log_decay_BHNCK[..., :, None, :] * after_CC1).cumsum(dim=-3)
    # Masked before exp: the gradient of a retention that does not exist is zero.
    return log_decay_BHNCK.cumsum(dim=-2).exp(), steps_BHNCCK.masked_fill(before_CC1, -torch.inf).exp()


def _decayed_products(query: Tensor, key: Tensor, between_BHNCCK: Tensor) -> tuple[Tensor, Tensor]:
    """Key-key (below the diagonal) and query-key (diagonal included) products decayed from column to row, BHNCC."""
    columns_BHNCCK = between_BHNCCK * key[..., None, :, :]
    rows_BHNC2K = torch.stack([key, query], dim=-2)
    key_key, query_key = (rows_BHNC2K @ columns_BHNCCK.transpose(-1, -2)).unbind(dim=-2)
    return key_key.tril(diagonal=-1), query_key


def _load_numba() -> KdaFunction:
    from k3ablate.kernels.kda_numba import numba_kda

    return numba_kda


OPERATION: dispatch.Operation[KdaFunction] = dispatch.numba_or_torch("kda", _load_numba, chunked_kda)

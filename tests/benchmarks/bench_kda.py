"""The core of KDA against the public plain form, softmax attention and our own torch form; and how it grows."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels.kda import chunked_kda, kda

BATCH, LENGTH, HEADS, WIDTH = 8, 512, 4, 32
pytestmark = pytest.mark.usefixtures("two_threads")


def inputs(length: int, batch: int = BATCH) -> list[Tensor]:
    """Query, key, value, log-decay and write strength, requiring gradients."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, decay = (torch.randn(batch, length, HEADS, WIDTH, generator=generator) for _ in range(4))
    query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
    strength = torch.randn(batch, length, HEADS, generator=generator).sigmoid()
    return [tensor.requires_grad_() for tensor in (query, key, value, -5 * (decay - 1).sigmoid(), strength)]


def both_ways(function: Callable[..., Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    """A call that computes the output and all gradients."""
    given = torch.randn_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, given)


def attention(query_BTHK: Tensor, key_BTHK: Tensor, value_BTHK: Tensor) -> Tensor:
    heads_first = (tensor.transpose(1, 2) for tensor in (query_BTHK, key_BTHK, value_BTHK))
    return functional.scaled_dot_product_attention(*heads_first, is_causal=True)


def public_chunks(*operands: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fla.ops.kda.naive import naive_chunk_kda
    output: Tensor = naive_chunk_kda(*operands, scale=1.0)[0]
    return output


def test_core(compare: Callable[..., None]) -> None:
    leaves = inputs(LENGTH)
    others = {
        "causal attention": both_ways(attention, inputs(LENGTH)[:3]),
        "our chunks in torch": both_ways(lambda *operands: chunked_kda(*operands)[0], leaves),
    }
    compare("KDA core", "kda", both_ways(lambda *operands: kda(*operands)[0], leaves), others, rounds=11)


def test_core_against_the_public_form(compare: Callable[..., None]) -> None:
    leaves = inputs(LENGTH)
    others = {"fla naive_chunk_kda": both_ways(public_chunks, leaves)}
    compare("KDA core", "kda", both_ways(lambda *operands: kda(*operands)[0], leaves), others, rounds=3)


@pytest.mark.parametrize("length", [128, 256, 512, 1024, 2048, 4096, 8192])
def test_length(compare: Callable[..., None], length: int) -> None:
    """A batch of one, as large as memory allows; per token the time of a linear form stays what it is."""
    leaves = inputs(length, batch=1)
    others = {"causal attention": both_ways(attention, leaves[:3])}
    compare(f"KDA at length {length}", "kda", both_ways(lambda *operands: kda(*operands)[0], leaves), others, rounds=9)

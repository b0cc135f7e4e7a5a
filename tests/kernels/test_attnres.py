"""Is one AttnRes read what the specification says, and are all implementations the same function?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import attnres, attnres_numba

EPSILON = 1e-5
# batch, positions, width, sources: one of everything, odd numbers, more sources than a block form has
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 1), (1, 7, 33, 4), (3, 5, 16, 25)]


def _inputs(batch: int, length: int, width: int, num_sources: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(width)
    shapes = [(width,), (width,), *[(batch, length, width)] * num_sources]
    return [torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]


def _written_out(query: Tensor, key_weight: Tensor, sources: list[Tensor]) -> Tensor:
    """Specification 4.4, one token and one source at a time."""
    result = torch.empty_like(sources[0])
    for index in torch.cartesian_prod(*(torch.arange(size) for size in result.shape[:2])).tolist():
        values = [source[tuple(index)] for source in sources]
        scores = [query @ (key_weight * value / (value.square().mean() + EPSILON).sqrt()) for value in values]
        weights = torch.stack(scores).softmax(0)
        result[tuple(index)] = torch.stack([p * value for p, value in zip(weights, values, strict=True)]).sum(0)
    return result


@pytest.mark.parametrize("shape", SHAPES)
def test_definition_is_the_specification(shape: tuple[int, ...]) -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(*shape, dtype=torch.float64))
    mixed = attnres.read_plain(query, key_weight, sources, EPSILON)
    torch.testing.assert_close(mixed, _written_out(query, key_weight, sources))


@pytest.mark.parametrize("shape", SHAPES)
def test_numba_equals_the_definition_in_values_and_gradients(shape: tuple[int, ...]) -> None:
    query, key_weight, *sources = inputs = _inputs(*shape)
    output_gradient = torch.randn(shape[:3], generator=torch.Generator().manual_seed(1))
    results = []
    for read in (attnres.read_plain, attnres_numba.read):
        mixed = read(query, key_weight, sources, EPSILON)
        results.append((mixed, *torch.autograd.grad(mixed, inputs, output_gradient)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_numba_takes_sources_that_are_views() -> None:
    query, key_weight, *_ = _inputs(2, 3, 8, 1)
    whole = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(2), requires_grad=True)
    sources = [whole[..., :8].transpose(0, 1), whole[..., ::2].transpose(0, 1)]
    results = []
    for read in (attnres.read_plain, attnres_numba.read):
        mixed = read(query, key_weight, sources, EPSILON)
        results.append((mixed, *torch.autograd.grad(mixed.square().sum(), [whole, query, key_weight])))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("read", [attnres.read_plain, attnres_numba.read])
def test_a_value_that_is_not_a_number_stays_one(read: attnres.Read) -> None:
    query, key_weight, first, second = (tensor.detach() for tensor in _inputs(1, 2, 4, 2))
    second[0, 1, 2] = torch.nan
    mixed = read(query, key_weight, [first, second], EPSILON)
    assert mixed[0, 0].isfinite().all()
    assert mixed[0, 1].isnan().all()


def test_a_zero_query_reads_the_average_and_weights_sum_to_one() -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(2, 3, 8, 5))
    mean = torch.stack(sources).mean(0)
    torch.testing.assert_close(attnres.read(torch.zeros_like(query), key_weight, sources, EPSILON), mean)
    weights = attnres.read_weights(query, key_weight, sources, EPSILON)
    assert weights.shape == (2, 3, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_half_precision_sources_are_scored_in_float32() -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(2, 3, 64, 4))
    halves = [source.bfloat16() for source in sources]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = attnres.read(query, key_weight, halves, EPSILON)
    precise = attnres.read_plain(query, key_weight, [half.float() for half in halves], EPSILON)
    assert mixed.dtype is torch.bfloat16
    torch.testing.assert_close(mixed, precise.bfloat16())


def test_the_public_reference_agrees() -> None:
    naive = pytest.importorskip("fla.ops.attnres.naive", exc_type=ImportError)
    query, key_weight, *sources = inputs = _inputs(2, 5, 16, 6)
    theirs = naive.naive_attnres(query, sources, key_weight, rms_eps=EPSILON)
    ours = attnres.read(query, key_weight, sources, EPSILON)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours.square().sum(), inputs), torch.autograd.grad(theirs.square().sum(), inputs),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip

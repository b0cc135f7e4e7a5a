"""The read of Attention Residuals on a CPU in float32: one pass over the tokens, sources left where they are.

Not the definition (`attnres.read_plain` is) and not for other devices or dtypes. A token's sources fit in the cache,
so scoring and mixing them costs one trip to memory, where torch makes a dozen. One thread, whatever torch has: the
sums over tokens then do not depend on the machine. Derivatives, for e = r (k . v), k = query * key weight,
r = 1 / rms(v), p = softmax(e) and g the gradient of the output:
de = p (g . v - sum p (g . v)),  dv = p g + de (r k - (e r^2 / D) v),  dk = sum over tokens and sources of de r v.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from torch import Tensor
from torch.autograd.function import once_differentiable

# Reordered sums become vector code; NaN and infinity keep their meaning, so that a diverged run is seen as one.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


def _typed_pointer(typing_context: Any, address: Any) -> Any:  # noqa: ARG001 - numba's signature
    """An address as a float32 pointer, as numba's intrinsics are written: type, then code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.intp), generate  # type: ignore[no-untyped-call]


_pointer: Any = intrinsic(_typed_pointer)


@compiled
def _source(address: Any, num_tokens: int, width: int) -> Any:
    """The source at an address, ND: one compiled kernel takes any number of sources, which a tuple would not allow."""
    return carray(_pointer(address), (num_tokens, width))


@compiled
def _score(source_D: Any, key_D: Any, epsilon: float) -> Any:
    """Score of one source of one token, and 1 / rms of it."""
    product = numpy.float32(0)
    squares = numpy.float32(0)
    for d in range(key_D.shape[0]):
        product += key_D[d] * source_D[d]
        squares += source_D[d] * source_D[d]
    scale = numpy.float32(1) / numpy.sqrt(squares / numpy.float32(key_D.shape[0]) + numpy.float32(epsilon))
    return scale * product, scale


@compiled
def _softmax(scores_S: Any) -> None:
    """In place."""
    top = scores_S.max()
    total = numpy.float32(0)
    for s in range(scores_S.shape[0]):
        scores_S[s] = numpy.exp(scores_S[s] - top)
        total += scores_S[s]
    scores_S /= total


@compiled
def _forward(addresses_S: Any, key_D: Any, epsilon: float, mixed_ND: Any) -> None:
    num_tokens, width = mixed_ND.shape
    weights_S = numpy.empty(addresses_S.shape[0], numpy.float32)
    for n in range(num_tokens):
        for s in range(addresses_S.shape[0]):
            source_ND = _source(addresses_S[s], num_tokens, width)
            weights_S[s], _ = _score(source_ND[n], key_D, epsilon)
        _softmax(weights_S)
        mixed_ND[n] = numpy.float32(0)
        for s in range(addresses_S.shape[0]):
            source_ND = _source(addresses_S[s], num_tokens, width)
            for d in range(width):
                mixed_ND[n, d] += weights_S[s] * source_ND[n, d]


@compiled
def _backward(
    addresses_S: Any, key_D: Any, epsilon: float, gradient_ND: Any, sources_SND: Any, key_gradient_D: Any
) -> None:
    """Fill `sources_SND` and `key_gradient_D` with gradients; scores are computed again rather than kept."""
    num_sources, num_tokens, width = sources_SND.shape
    scores_S = numpy.empty(num_sources, numpy.float32)
    weights_S = numpy.empty(num_sources, numpy.float32)
    scales_S = numpy.empty(num_sources, numpy.float32)
    products_S = numpy.empty(num_sources, numpy.float32)
    for n in range(num_tokens):
        for s in range(num_sources):
            source_ND = _source(addresses_S[s], num_tokens, width)
            scores_S[s], scales_S[s] = _score(source_ND[n], key_D, epsilon)
            products_S[s] = _dot(source_ND[n], gradient_ND[n])
        weights_S[:] = scores_S
        _softmax(weights_S)
        mean = _dot(weights_S, products_S)
        for s in range(num_sources):
            source_ND = _source(addresses_S[s], num_tokens, width)
            along_key = weights_S[s] * (products_S[s] - mean) * scales_S[s]
            along_source = along_key * scores_S[s] * scales_S[s] / numpy.float32(width)
            for d in range(width):
                key_gradient_D[d] += along_key * source_ND[n, d]
                sources_SND[s, n, d] = (
                    weights_S[s] * gradient_ND[n, d] + along_key * key_D[d] - along_source * source_ND[n, d]
                )


@compiled
def _dot(a_D: Any, b_D: Any) -> Any:
    total = numpy.float32(0)
    for d in range(a_D.shape[0]):
        total += a_D[d] * b_D[d]
    return total


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, key_D: Tensor, epsilon: float, *sources: Tensor) -> Tensor:
        kept = tuple(source.contiguous() for source in sources)
        mixed_BTD = torch.empty_like(kept[0])
        _forward(_addresses(kept), key_D.numpy(), epsilon, _rows(mixed_BTD))
        ctx.save_for_backward(key_D, *kept)
        ctx.epsilon = epsilon
        return mixed_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BTD: Tensor) -> tuple[Tensor | None, ...]:
        key_D, *kept = ctx.saved_tensors
        gradients_SBTD = kept[0].new_empty((len(kept), *kept[0].shape))
        key_gradient_D = torch.zeros_like(key_D)
        _backward(
            _addresses(kept),
            key_D.numpy(),
            ctx.epsilon,
            _rows(gradient_BTD.contiguous()),
            gradients_SBTD.view(len(kept), -1, key_D.shape[0]).numpy(),
            key_gradient_D.numpy(),
        )
        return key_gradient_D, None, *gradients_SBTD.unbind(0)


def _addresses(sources: Sequence[Tensor]) -> Any:
    return numpy.array([source.data_ptr() for source in sources], numpy.intp)


def _rows(x_BTD: Tensor) -> Any:
    return x_BTD.view(-1, x_BTD.shape[-1]).numpy()


def read(query_D: Tensor, key_weight_D: Tensor, sources: Sequence[Tensor], epsilon: float) -> Tensor:
    """`attnres.read` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _Read.apply
    return apply(query_D * key_weight_D, epsilon, *sources)

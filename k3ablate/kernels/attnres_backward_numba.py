"""The backward loop of Attention Residuals on a CPU in float32: the gradient of a source, from all its readers at once.

Not the definition (`attnres.Sources.read` is), not what autograd sees (`attnres_autograd.py` is). Symbols as in
`attnres_numba.py`. For g, the gradient of y, that of a score is de = p (g . v - g . y), so a source needs of a reader
only g, p and the number g . y. Over the readers of a source, with u = sum r de k, its gradient is
dv = sum p g + u - (r^2 / D) (u . v) v; over the sources of a reader and tokens, dk = sum r de v.

g itself comes from h, the gradient behind the norm, at the last source that was written before the read, where it is
formed and used while it lies in the cache, and noted for the other sources. With q = 1 / rms(y),
g = q h w - (q^3 / D) (h w . y) y and dw = sum q h y over tokens. That g . y is all but zero then is not made use of:
summed up like g . v it gives a reader of one source a de of exactly zero. Of a read that takes nearly all from one
source, g . v - g . y is a small difference of two rounded numbers: its error stays that of float32 against |g| |v|, but
of the difference itself, and so of the gradients of that read's query and key weight, few digits are left (two of them
where 1 - p is 6e-5, four at 2e-3). The definition keeps them, since it sums over scores that are rounded alike.

Sums over the tokens of a part, in the gradient of a key or norm weight, are added up afterwards, so that the number of
threads changes no bit. Shapes: as in `attnres.py`, and P parts, K rows of keys and norm weights.
"""

from typing import Any

import numpy

from k3ablate.kernels.attnres_rows import (
    PAIR,
    ZERO,
    add_pairs,
    add_products,
    add_row,
    add_scaled,
    ask_ahead,
    at,
    compiled,
    dot,
    inlined,
    load_pair,
    multiply_pairs,
    scaled,
    store_pair,
    total_of,
    zeros,
)

TOKENS_SUMMED = 128  # one after the other in a key's gradient: float32 sums of thousands lose digits


@compiled
def collect(
    first: int, last: int, part: int, links_R4: Any, normalised: int, norm_weight: int, norm_scale: int,
    mixed: int, value: int, scale: int, keys: int, given: int, num_tokens: int, width: int,
    of_value: int, of_own_PKD: Any,
) -> None:  # fmt: skip
    """For parts from `first` up to `last`, the gradient of a source, ND, and what that adds to those of readers' keys.

    A row of `links` has the addresses of g of a reader, ND, of its weights for this source and of its products g . y,
    N each, and the reader's number, by which its key is found. `normalised` is the gradient that arrives behind the
    norm of the first reader, whose g and products are results then, as is the last row of `of_own`, its norm's.
    `given` is a gradient of the value that arrives from elsewhere. Both may be 0.
    """
    num_readers = links_R4.shape[0]
    weights_R, of_products_R = numpy.empty((2, num_readers), numpy.float32)
    sums_KD = numpy.empty(of_own_PKD.shape[1:], numpy.float32)
    sums = sums_KD.ctypes.data
    for p in range(first, last):
        of_own_PKD[p] = ZERO
        stop = min((p + 1) * part, num_tokens)
        for start in range(p * part, stop, TOKENS_SUMMED):
            sums_KD[:] = ZERO
            for n in range(start, min(start + TOKENS_SUMMED, stop)):
                row, scale_n = n * width, at(scale)[n]
                if normalised:
                    at(links_R4[0, 2])[n] = _before_norm(
                        normalised, norm_weight, at(norm_scale)[n], mixed, row, width, links_R4[0, 0],
                        sums + 4 * num_readers * width,
                    )  # fmt: skip
                for r in range(num_readers):
                    product = dot(links_R4[r, 0], row, value, row, width) - at(links_R4[r, 2])[n]
                    weights_R[r] = at(links_R4[r, 1])[n]
                    of_products_R[r] = scale_n * weights_R[r] * product
                along_keys = _spread(links_R4, weights_R, of_products_R, row, width, value, keys, given, of_value, sums)
                factor = -scale_n * scale_n / numpy.float32(width) * along_keys
                add_row(factor, value, of_value, row, width)
            of_own_PKD[p] += sums_KD


@compiled
def add_up(of_own_PKD: Any, links_R4: Any, norm: int, gradients_KD: Any) -> None:
    """Add what `collect` found, part by part, to the gradients of all keys, and of norm weights in row `norm`."""
    num_readers = links_R4.shape[0]
    for p in range(of_own_PKD.shape[0]):
        for r in range(num_readers):
            gradients_KD[links_R4[r, 3]] += of_own_PKD[p, r]
        gradients_KD[norm] += of_own_PKD[p, num_readers]


@compiled
def _before_norm(
    given: int, weight: int, factor: Any, mixed: int, row: int, width: int, of_mixed: int, of_weight: int
) -> Any:
    """Of one token, g from h, and dw, added to what is there; returns g . y."""
    along = zeros()
    for d in range(0, width, PAIR):
        count = width - d
        ask_ahead(given, row + d, width)
        ask_ahead(mixed, row + d, width)
        product = multiply_pairs(load_pair(given, row + d, count), load_pair(mixed, row + d, count))
        along = add_products(product, load_pair(weight, d, count), along)
        store_pair(of_weight, d, count, add_scaled(factor, product, load_pair(of_weight, d, count)))
    back, sums = -factor * factor * factor / numpy.float32(width) * total_of(along), zeros()
    for d in range(0, width, PAIR):
        count, mixed_d = width - d, load_pair(mixed, row + d, width - d)
        through = multiply_pairs(load_pair(given, row + d, count), load_pair(weight, d, count))
        of_mixed_d = add_scaled(back, mixed_d, scaled(factor, through))
        store_pair(of_mixed, row + d, count, of_mixed_d)
        sums = add_products(of_mixed_d, mixed_d, sums)
    return total_of(sums)


@inlined
def _spread(
    links_R4: Any, weights_R: Any, of_products_R: Any, row: int, width: int, value: int, keys: int, given: int,
    of_value: int, sums: int,
) -> Any:  # fmt: skip
    """Of one token, dv without its last term, and dk reader by reader, added to `sums`; returns u . v."""
    along = zeros()
    for d in range(0, width, PAIR):
        count, value_d = width - d, load_pair(value, row + d, width - d)
        direct, along_keys = load_pair(given, row + d, count) if given else zeros(), zeros()
        for r in range(links_R4.shape[0]):
            key, of_key, of_product = links_R4[r, 3] * width + d, r * width + d, of_products_R[r]
            direct = add_scaled(weights_R[r], load_pair(links_R4[r, 0], row + d, count), direct)
            along_keys = add_scaled(of_product, load_pair(keys, key, count), along_keys)
            store_pair(sums, of_key, count, add_scaled(of_product, value_d, load_pair(sums, of_key, count)))
        store_pair(of_value, row + d, count, add_pairs(direct, along_keys))
        along = add_products(along_keys, value_d, along)
    return total_of(along)

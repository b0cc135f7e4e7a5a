"""What does expert parallelism move between ranks, and how evenly are they loaded? From counts of routed pairs.

A pair is one token at one of its chosen experts. Experts lie on ranks in equal shares, in order. A pair whose expert
lies elsewhere is sent there (dispatch) and its result sent back (combine), each as one vector of the routed experts'
width: the model width, or the latent's, which is what a latent saves. An exchange that sends a token once to a rank
which holds several of its experts moves less than what is counted here.

Counts come from a run (`routing.json` in its folder has them by expert, `k3ablate count --run` reads it), from an
array, or from `even_routing`.

Shapes: R ranks, E experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k3ablate.config import InputError
from k3ablate.model.moe import RoutedConfig

BFLOAT16_BYTES = 2


@dataclass(frozen=True)
class Traffic:
    """Of one routed layer; bytes are per token, dispatch and combine together, averaged over tokens."""

    num_ranks: int
    leaving_share: float  # of all pairs, those whose expert lies on another rank than their token
    worst_load: float  # pairs on the busiest rank over the mean
    bytes_per_number: int
    full_width: int
    full_width_bytes: float
    routed_width: int  # what the experts take in: the latent's width, or the model's where there is no latent
    routed_width_bytes: float


@dataclass(frozen=True)
class LayerTraffic:
    """Of one layer, counted from 0, dense ones too."""

    layer: int
    traffic: Traffic


@dataclass(frozen=True)
class RunTraffic:
    """Of every routed layer of a run, by the experts that its tokens chose on a validation set when it had finished."""

    run: str
    validation: str
    num_tokens: int
    layers: Sequence[LayerTraffic]


def traffic(
    feed_forward: RoutedConfig, width: int, pairs_RE: Tensor, bytes_per_number: int = BFLOAT16_BYTES
) -> Traffic:
    """Traffic of `feed_forward` in a model of `width` channels; pairs_RE[r, e]: tokens of rank r that chose e."""
    num_ranks, num_experts = pairs_RE.shape
    assert num_experts == feed_forward.num_experts, (num_experts, feed_forward.num_experts)
    by_ranks_RR = _by_ranks(pairs_RE)
    total = float(by_ranks_RR.sum())
    if total <= 0:
        raise InputError("counts of routed pairs: all zero; give those of at least one batch")
    leaving_share = 1.0 - float(by_ranks_RR.diagonal().sum()) / total
    vectors = 2 * feed_forward.num_active * leaving_share
    routed_width = feed_forward.routed_width(width)
    return Traffic(
        num_ranks=num_ranks,
        leaving_share=leaving_share,
        worst_load=float(by_ranks_RR.sum(0).max()) * num_ranks / total,
        bytes_per_number=bytes_per_number,
        full_width=width,
        full_width_bytes=vectors * width * bytes_per_number,
        routed_width=routed_width,
        routed_width_bytes=vectors * routed_width * bytes_per_number,
    )


def even_routing(num_experts: int, num_ranks: int) -> Tensor:
    """pairs_RE where every expert is as popular as every other, on every rank."""
    return even_sources(torch.ones(num_experts), num_ranks)


def even_sources(pairs_E: Tensor, num_ranks: int) -> Tensor:
    """pairs_RE from pairs by expert, as if each rank's tokens chose alike, which shuffled data does on average."""
    _check_ranks(len(pairs_E), num_ranks)
    return (pairs_E.double() / num_ranks).expand(num_ranks, -1)


def _by_ranks(pairs_RE: Tensor) -> Tensor:
    """Pairs by the rank of the token and by the rank of the expert, in float64."""
    num_ranks, num_experts = pairs_RE.shape
    _check_ranks(num_experts, num_ranks)
    return pairs_RE.double().view(num_ranks, num_ranks, num_experts // num_ranks).sum(-1)


def _check_ranks(num_experts: int, num_ranks: int) -> None:
    if num_ranks < 1 or num_experts % num_ranks:
        divisors = [str(number) for number in range(1, num_experts + 1) if num_experts % number == 0]
        raise InputError(
            f"ranks {num_ranks}: {num_experts} experts do not lie on them in equal shares; "
            f"write one of {', '.join(divisors)}"
        )

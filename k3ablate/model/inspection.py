"""What goes on inside a decoder while it runs? Weights of residual reads, magnitudes of activations, loads of experts.

Everything is seen through hooks that are there only while somebody looks: a decoder that nobody inspects pays nothing,
and one that is inspected computes the same bits. What is logged while a run trains is decided in `training/metrics.py`.

Shape legend: `slots.py`.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from k3ablate.model import ranks
from k3ablate.model.decoder import Decoder
from k3ablate.model.feedforward import GLU
from k3ablate.model.moe import Experts, Router, Routing
from k3ablate.model.residual import AttnResRead
from k3ablate.model.slots import Read

PLACES = ("stream", "experts", "hidden", "glu_hidden")


@torch.no_grad()
def mean_read_weights(decoder: Decoder, tokens_BT: Tensor) -> list[Tensor]:
    """How much each AttnRes read takes from each of its sources, S numbers that sum to 1, averaged over tokens_BT.

    One tensor per read: mixer and feed-forward of every layer, then the output; none for a plain stream. The sources
    are the embedding, then what was written, in order. Runs the decoder in evaluation mode.
    """
    weights: list[Tensor] = []

    def note(read: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(read, AttnResRead)
        weights.append(read.weights(*arguments).mean((0, 1)))

    reads = (module for module in decoder.modules() if isinstance(module, AttnResRead))
    handles = [read.register_forward_pre_hook(note) for read in reads]
    was_training = decoder.training
    try:
        decoder.eval()(tokens_BT)
    finally:
        decoder.train(was_training)
        for handle in handles:
            handle.remove()
    return weights


@contextmanager
def counted_pairs(decoder: Decoder) -> Iterator[list[Tensor]]:
    """Inside the block, how many tokens chose each expert: pairs_E, one of each routed layer, first to last."""
    routers = [module for module in decoder.modules() if isinstance(module, Router)]
    pairs = {router: torch.zeros_like(router.balancer.bias_E, dtype=torch.int64) for router in routers}

    def note(router: Router, _: tuple[Tensor], decision: Routing) -> None:
        pairs[router] += decision.chosen.flatten().bincount(minlength=router.balancer.num_experts)

    handles = [router.register_forward_hook(note) for router in routers]
    try:
        yield list(pairs.values())
    finally:
        for handle in handles:
            handle.remove()


class Magnitudes:
    """Root mean square and largest absolute value of activations, from when it is made until `take`.

    `stream`: what each layer reads from the residual stream, and last what the head reads, before the norm.
    `experts`: the weighted sum of routed experts of each routed layer, before the norm and projection out of a latent.
    `hidden`: what the down-projections of its routed experts take in, over all pairs of token and chosen expert and
    before any weight; the experts' kernel does not show it, so it is computed a second time, see `routed_hidden`.
    `glu_hidden`: what the down-projection of each layer's GLU takes in: its shared experts, or all of a dense layer.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._meters: dict[str, list[_Meter]] = {place: [] for place in PLACES}
        reads = decoder.residual.reads[::2]  # of mixers and the head
        experts = [module for module in decoder.modules() if isinstance(module, Experts)]
        glus = [module for module in decoder.modules() if isinstance(module, GLU)]
        self._handles = [
            *(read.register_forward_pre_hook(self._meter("stream").see_mixed) for read in reads),
            *(module.register_forward_hook(self._meter("experts").see_output) for module in experts),
            *(module.register_forward_pre_hook(self._meter("hidden").see_hidden) for module in experts),
            *(glu.down.register_forward_pre_hook(self._meter("glu_hidden").see_input) for glu in glus),
        ]

    def take(self) -> dict[str, list[float]]:
        """`stream_rms`, `stream_max`, `experts_rms` and so on, layer by layer; then the decoder is left alone.

        Of what all ranks saw, which therefore call it together.
        """
        for handle in self._handles:
            handle.remove()
        if ranks.num_ranks() > 1:
            _share([meter for meters in self._meters.values() for meter in meters])
        return {
            f"{place}_{kind}": [number(meter) for meter in meters]
            for place, meters in self._meters.items()
            for kind, number in (("rms", _Meter.rms), ("max", _Meter.largest))
        }

    def _meter(self, place: str) -> "_Meter":
        """That of the next layer."""
        self._meters[place].append(_Meter())
        return self._meters[place][-1]


@torch.no_grad()
def routed_hidden(experts: Experts, x_BTL: Tensor, decision: Routing) -> Tensor:
    """The hidden activation of every pair of token and chosen expert, hidden_PF: P pairs by expert, F hidden width."""
    chosen_P = decision.chosen.flatten()
    tokens_P = chosen_P.argsort(stable=True) // decision.chosen.shape[-1]
    counts = chosen_P.bincount(minlength=len(experts.gate_EFL)).tolist()
    inputs = torch.split(x_BTL.flatten(0, 1)[tokens_P], counts)  # of each expert, M tokens
    matrices = torch.cat((experts.gate_EFL, experts.up_EFL), dim=1).mT.unbind()  # of each expert, L2F
    both_P2F = torch.cat([x_ML @ matrix_L2F for x_ML, matrix_L2F in zip(inputs, matrices, strict=True)])
    return experts.activation.combine(*both_P2F.chunk(2, dim=-1))


class _Meter:
    """Sums up one activation over forward passes, on its own device."""

    def __init__(self) -> None:
        self._count = 0
        self._square_sum: Tensor | float = 0.0
        self._largest: Tensor | None = None

    def see_input(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._see(arguments[0])

    @torch.no_grad()
    def see_mixed(self, module: nn.Module, arguments: tuple[Any]) -> None:
        assert isinstance(module, Read)
        self._see(module.mixed(*arguments))

    def see_output(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self._see(output)

    def see_hidden(self, module: nn.Module, arguments: tuple[Tensor, Routing]) -> None:
        assert isinstance(module, Experts)
        self._see(routed_hidden(module, *arguments))

    def rms(self) -> float:
        return math.sqrt(float(self._square_sum) / self._count)

    def largest(self) -> float:
        assert self._largest is not None, "nothing was seen"
        return float(self._largest)

    def totals(self) -> Tensor:
        """Values seen and their squares, each summed up."""
        return torch.tensor([self._count, float(self._square_sum)], dtype=torch.float64)

    def replace(self, totals: Tensor, largest: Tensor) -> None:
        """Show what all ranks saw instead of what this one did."""
        self._count, self._square_sum, self._largest = int(totals[0]), totals[1], largest

    @torch.no_grad()
    def _see(self, x: Tensor) -> None:
        self._count += x.numel()
        self._square_sum = self._square_sum + torch.linalg.vector_norm(x, dtype=torch.float32).square()
        largest = x.abs().max()
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)


def _share(meters: list[_Meter]) -> None:
    """Make every meter show what all ranks saw."""
    if meters:
        totals = ranks.summed(torch.stack([meter.totals() for meter in meters]))
        largest = ranks.largest(torch.tensor([meter.largest() for meter in meters]))
        for meter, one_totals, one_largest in zip(meters, totals, largest, strict=True):
            meter.replace(one_totals, one_largest)

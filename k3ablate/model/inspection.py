"""What goes on inside a decoder while it runs? Weights of residual reads, and magnitudes of activations.

Everything is seen through hooks that are there only while somebody looks: a decoder that nobody inspects pays nothing,
and one that is inspected computes the same bits. What is logged while a run trains is decided in `training/metrics.py`.

Shape legend: `slots.py`.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from k3ablate.model.decoder import Decoder
from k3ablate.model.moe import Experts
from k3ablate.model.residual import Read


@torch.no_grad()
def mean_read_weights(decoder: Decoder, tokens_BT: Tensor) -> list[Tensor]:
    """How much each AttnRes read takes from each of its sources, S numbers that sum to 1, averaged over tokens_BT.

    One tensor per read: mixer and feed-forward of every layer, then the output; none for a plain stream. The sources
    are the embedding, then what was written, in order. Runs the decoder in evaluation mode.
    """
    weights: list[Tensor] = []

    def note(read: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(read, Read)
        weights.append(read.weights(*arguments).mean((0, 1)))

    reads = (module for module in decoder.modules() if isinstance(module, Read))
    handles = [read.register_forward_pre_hook(note) for read in reads]
    was_training = decoder.training
    try:
        decoder.eval()(tokens_BT)
    finally:
        decoder.train(was_training)
        for handle in handles:
            handle.remove()
    return weights


class Magnitudes:
    """Root mean square and largest absolute value of activations, from when it is made until `take`.

    `stream`: what each layer reads from the residual stream, and last what the head reads, before the norm.
    `experts`: the weighted sum of routed experts of each routed layer, before the norm and projection out of a latent.
    """

    def __init__(self, decoder: Decoder) -> None:
        norms = [*(layer.get_submodule("mixer_norm") for layer in decoder.layers), decoder.norm]
        experts = [module for module in decoder.modules() if isinstance(module, Experts)]
        self._meters = {"stream": [_Meter() for _ in norms], "experts": [_Meter() for _ in experts]}
        self._handles = [
            *(norm.register_forward_pre_hook(meter.see_input) for norm, meter in self._of("stream", norms)),
            *(module.register_forward_hook(meter.see_output) for module, meter in self._of("experts", experts)),
        ]

    def take(self) -> dict[str, list[float]]:
        """`stream_rms`, `stream_max`, `experts_rms`, `experts_max`, layer by layer; then the decoder is left alone."""
        for handle in self._handles:
            handle.remove()
        return {
            f"{place}_{kind}": [number(meter) for meter in meters]
            for place, meters in self._meters.items()
            for kind, number in (("rms", _Meter.rms), ("max", _Meter.largest))
        }

    def _of(self, place: str, modules: Iterable[nn.Module]) -> Iterable[tuple[nn.Module, "_Meter"]]:
        return zip(modules, self._meters[place], strict=True)


class _Meter:
    """Sums up one activation over forward passes, on its own device."""

    def __init__(self) -> None:
        self._count = 0
        self._square_sum: Tensor | float = 0.0
        self._largest: Tensor | None = None

    def see_input(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._see(arguments[0].detach())

    def see_output(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self._see(output.detach())

    def rms(self) -> float:
        return math.sqrt(float(self._square_sum) / self._count)

    def largest(self) -> float:
        assert self._largest is not None, "nothing was seen"
        return float(self._largest)

    def _see(self, x: Tensor) -> None:
        self._count += x.numel()
        self._square_sum = self._square_sum + torch.linalg.vector_norm(x, dtype=torch.float32).square()
        largest = torch.linalg.vector_norm(x, math.inf)
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)

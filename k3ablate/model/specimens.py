"""What does a trained decoder do with a few real tokens? Their experts, their reads, how their activations are spread.

Small enough to be kept with every run (`records.Specimen`), since the weights themselves are not. Seen through hooks,
as in `inspection`; the decoder computes the same bits.

Shape legend: `slots.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from k3ablate.model.decoder import Decoder
from k3ablate.model.feedforward import GLU
from k3ablate.model.inspection import mean_read_weights, routed_hidden
from k3ablate.model.moe import Experts, Router, Routing

# Magnitudes are counted in bins of a quarter of a decade; what is smaller or larger falls into the outermost.
LOWEST, HIGHEST, BINS_PER_DECADE = -8, 4, 4
GLU_HIDDEN, ROUTED_HIDDEN = "glu_hidden", "routed_hidden"


def magnitude_edges() -> list[float]:
    """Of the bins, in rising order."""
    return torch.logspace(LOWEST, HIGHEST, (HIGHEST - LOWEST) * BINS_PER_DECADE + 1, dtype=torch.float64).tolist()


@dataclass
class Seen:
    """What was noted, layer by layer, first to last; `read_weights` has one more at its end, of the output's read."""

    chosen: list[Tensor] = field(default_factory=list)  # BTA of each routed layer
    weights: list[Tensor] = field(default_factory=list)  # of the same
    read_weights: list[list[float]] = field(default_factory=list)
    magnitudes: dict[str, Tensor] = field(default_factory=dict)  # place -> how many fell into each bin

    def note_routing(self, router: nn.Module, inputs: tuple[Tensor], decision: Routing) -> None:
        """After a router."""
        self.chosen.append(decision.chosen)
        self.weights.append(decision.weights)

    def note_glu(self, down: nn.Module, inputs: tuple[Tensor]) -> None:
        """Before the down-projection of a GLU."""
        self._count(GLU_HIDDEN, inputs[0])

    def note_experts(self, experts: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Before routed experts."""
        assert isinstance(experts, Experts)
        self._count(ROUTED_HIDDEN, routed_hidden(experts, *inputs))

    def _count(self, place: str, x: Tensor) -> None:
        num_bins = (HIGHEST - LOWEST) * BINS_PER_DECADE
        bins = ((x.abs().double().log10() - LOWEST) * BINS_PER_DECADE).clamp(0, num_bins - 1).long()
        self.magnitudes[place] = self.magnitudes.get(place, 0) + bins.flatten().bincount(minlength=num_bins)


@torch.no_grad()
def look(decoder: Decoder, tokens_BT: Tensor) -> Seen:
    """Run tokens_BT in evaluation mode and note what there is to see.

    Magnitudes are of what down-projections take in: `glu_hidden` of every GLU (dense layers, shared experts) and
    `routed_hidden` of routed experts, over all layers together.
    """
    seen = Seen(read_weights=[weights_S.tolist() for weights_S in mean_read_weights(decoder, tokens_BT)])
    modules = list(decoder.modules())
    handles = [
        *(module.register_forward_hook(seen.note_routing) for module in modules if isinstance(module, Router)),
        *(module.down.register_forward_pre_hook(seen.note_glu) for module in modules if isinstance(module, GLU)),
        *(module.register_forward_pre_hook(seen.note_experts) for module in modules if isinstance(module, Experts)),
    ]
    was_training = decoder.training
    try:
        decoder.eval()(tokens_BT)
    finally:
        decoder.train(was_training)
        for handle in handles:
            handle.remove()
    return seen

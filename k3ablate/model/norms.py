"""How are activations brought to unit size, and what stays in float32? RMSNorm.

Norms work in float32 at least, whatever the dtype around them. Which epsilon goes where is the caller's matter.
"""

import torch
from torch import Generator, Tensor, nn

from k3ablate.kernels.rms_norm import rms_norm
from k3ablate.model.slots import Initialised


class RMSNorm(Initialised):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis: the model width, a latent's, or one head's."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def initialise(self, generator: Generator, std: float) -> None:
        """Ones."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width], in the dtype of `x`."""
        return rms_norm(at_least_float32(x), at_least_float32(self.weight), self.epsilon).to(x.dtype)


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or as it is in float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def full_precision(x: Tensor) -> torch.autocast:
    """A context on the device of `x` in which autocast leaves every operation alone."""
    return torch.autocast(x.device.type, enabled=False)

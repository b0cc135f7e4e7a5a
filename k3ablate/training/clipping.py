"""How are attention logits kept from growing without bound? `ClipLogits`: QK-Clip of K2 (specification 4.7).

Largest logits are those of the step's own forward passes: MLA notes them in passing (`model/attention.py`), over all
micro-batches, and the largest over ranks counts. After the optimizer's step the weights of a head that passed the
threshold are scaled so that the same inputs would have reached just the threshold. Gradients are clipped in
`module.py`.
"""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from k3ablate.model import ranks
from k3ablate.model.attention import LatentAttention
from k3ablate.model.decoder import Decoder
from k3ablate.training.callbacks import StepCallback
from k3ablate.training.module import LanguageModule
from k3ablate.training.optimizers import QKClip


def clip_factors(largest_H: Tensor, threshold: float) -> Tensor:
    """min(1, threshold / largest logit) of each head; 1 where no logit is positive, or one is NaN."""
    return torch.where(largest_H > threshold, threshold / largest_H, 1.0)


class ClipLogits(StepCallback):
    """Clips the heads of every MLA layer once per step; a decoder without MLA is left as it is.

    Shows `module` the largest logit of each MLA layer, before clipping, and how many of its heads were clipped.
    """

    def __init__(self, config: QKClip, decoder: Decoder) -> None:
        super().__init__()
        self.threshold = config.threshold
        self.attentions = [module for module in decoder.modules() if isinstance(module, LatentAttention)]
        self._largest: list[Tensor] = []  # of the step being taken, largest_H of each layer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From here on every forward pass notes its largest logits."""
        super().on_train_start(trainer, pl_module)
        self._largest.clear()
        for attention in self.attentions:
            like = attention.output.weight
            largest_H = torch.full((attention.config.num_heads,), -torch.inf, dtype=torch.float32, device=like.device)
            attention.largest_logit_H = largest_H
            self._largest.append(largest_H)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nobody looks any more."""
        self._largest.clear()
        for attention in self.attentions:
            attention.largest_logit_H = None

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """One clipping of all layers, by the logits that this step has seen; the next one's start afresh."""
        if not self.attentions:
            return
        sizes = [len(largest_H) for largest_H in self._largest]
        largest = torch.split(ranks.largest(torch.cat(self._largest)), sizes)
        factors = [clip_factors(largest_H, self.threshold) for largest_H in largest]
        for attention, factor_H in zip(self.attentions, factors, strict=True):
            attention.scale_logits(factor_H)
        module.by_layer["largest_logit"] = torch.stack([largest_H.max() for largest_H in largest])
        module.by_layer["clipped_heads"] = torch.stack([(factor_H < 1).sum() for factor_H in factors])
        for largest_H in self._largest:
            largest_H.fill_(-torch.inf)

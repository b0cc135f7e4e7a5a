"""What is minimised, and what is reported? `LanguageModule` around a decoder: the loss and its parts, nothing else.

The reported loss is the cross-entropy alone; what balancing adds is minimised with it and reported apart. When things
happen around a step is in `callbacks.py`, how a run is put together in `run.py`.
"""

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import Optimizer

from k3ablate.model import ranks
from k3ablate.model.decoder import Decoder
from k3ablate.training.optim import build_optimizer
from k3ablate.training.sharding import shard
from k3ablate.training.spec import TrainingConfig


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean over all tokens in nats, computed in float32 whatever the logits' type; a scalar."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


class LanguageModule(LightningModule):
    """A decoder in training. Batches are int64 (B, context + 1): inputs and, one further, targets.

    After a step `loss` is the cross-entropy of its whole batch, that of all ranks, in nats per token, `auxiliary_loss`
    what balancing added, `gradient_norm` the global norm before clipping, `by_layer` what callbacks measured of
    each layer that has it.
    """

    def __init__(self, decoder: Decoder, training: TrainingConfig) -> None:
        super().__init__()
        self.decoder = decoder
        self.config = training
        self.gradient_norm = torch.zeros(())
        self.by_layer: dict[str, Tensor] = {}
        self._losses: list[Tensor] = []  # (cross-entropy, auxiliary loss) of each micro-batch of the current step

    @property
    def loss(self) -> float:
        """Cross-entropy of the last step's whole batch, nats per token."""
        return torch.stack(self._losses).mean(dim=0)[0].item()

    @property
    def auxiliary_loss(self) -> float:
        """What balancing added to the objective of the last step."""
        return torch.stack(self._losses).mean(dim=0)[1].item()

    def training_step(self, tokens_BT: Tensor, batch_idx: int) -> Tensor:
        """The objective of one micro-batch."""
        output = self.decoder(tokens_BT[:, :-1])
        loss = cross_entropy(output.logits_BTV, tokens_BT[:, 1:])
        if len(self._losses) * self.config.sequences_per_pass == self.config.batch_size:
            self._losses.clear()
        self._losses.append(torch.stack([loss.detach(), output.auxiliary_loss.detach()]))
        objective: Tensor = loss + output.auxiliary_loss
        return objective

    def configure_model(self) -> None:
        """Cut over ranks, if the strategy has laid them out for it; before there are optimizers."""
        if self.device_mesh is not None:
            shard(self.decoder, self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Optimizer:
        """All parameters in one optimizer; the schedule is a pure function applied by a callback."""
        return build_optimizer(self.decoder, self.config.optimizer)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by global norm and keep the norm; the Trainer's own clipping measures it and throws it away.

        The one place that is reached once per optimizer step, on all ranks together, before anybody asks for losses.
        """
        if ranks.num_ranks() > 1:
            self._losses = list(ranks.mean(torch.stack(self._losses)))
        limit = float("inf") if gradient_clip_val is None else gradient_clip_val
        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), limit)
        self.gradient_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm

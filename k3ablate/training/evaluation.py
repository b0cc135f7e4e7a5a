"""How good is a trained model on text it has not seen? Losses on whole validation sets, the same windows for every run.

Which sets are read and what becomes of the numbers is decided in `run.py`.
"""

import math

import torch

from k3ablate.model import ranks
from k3ablate.model.decoder import Decoder
from k3ablate.records import Evaluation
from k3ablate.training.corpus import Corpus
from k3ablate.training.data import WHOLE, Share, windows
from k3ablate.training.module import cross_entropy
from k3ablate.training.spec import TrainingConfig


@torch.no_grad()
def evaluate(
    decoder: Decoder, training: TrainingConfig, corpus: Corpus, name: str, share: Share = WHOLE
) -> Evaluation | None:
    """Cross-entropy on the validation set `name`, in evaluation mode; None where it is not finite.

    Ranks read one share each and know the loss of all.
    """
    device = decoder.head.weight.device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bfloat16")
    total, num_tokens = 0.0, 0
    decoder.eval()
    batch_size = training.sequences_per_pass
    for tokens_BS in windows(corpus, name, training.context, training.validation_tokens, batch_size, share):
        tokens_BT = torch.from_numpy(tokens_BS).to(device)
        inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
        with autocast:
            logits_BTV = decoder(inputs_BT).logits_BTV
        total += cross_entropy(logits_BTV, targets_BT).item() * targets_BT.numel()
        num_tokens += targets_BT.numel()
    total, num_tokens = _of_all_ranks(total, num_tokens)
    loss = total / num_tokens
    if not math.isfinite(loss):
        return None
    bits_per_byte = corpus.bits_per_byte(loss, name)
    return Evaluation(loss=loss, bits_per_byte=bits_per_byte, num_tokens=num_tokens, content=corpus.content(name))


def _of_all_ranks(total: float, num_tokens: int) -> tuple[float, int]:
    loss_sum, tokens = ranks.summed(torch.tensor([total, num_tokens], dtype=torch.float64)).tolist()
    return loss_sum, int(tokens)

"""What does a run leave of its model for those who want to see it at work? `specimen`, of the first validation window.

The same window for every run of a corpus and context, so that arms can be looked at side by side. What is noted is in
`model/specimens.py`, where it is kept in `records`.
"""

import torch

from k3ablate.model.decoder import Decoder
from k3ablate.model.specimens import look, magnitude_edges
from k3ablate.records import PUBLISHED_SET, Specimen
from k3ablate.training.corpus import Corpus
from k3ablate.training.data import windows
from k3ablate.training.spec import RunSpec

MOST_TOKENS = 48  # whose experts are kept; activations and reads are of the whole window


def specimen(decoder: Decoder, spec: RunSpec, corpus: Corpus) -> Specimen:
    """What `decoder` does with the first window of the validation set."""
    context = spec.training.context
    (tokens_1S,) = windows(corpus, PUBLISHED_SET, context, context, batch_size=1)
    tokens_1T = torch.from_numpy(tokens_1S[:, :-1]).to(decoder.head.weight.device)
    with torch.autocast(tokens_1T.device.type, torch.bfloat16, enabled=spec.training.precision == "bfloat16"):
        seen = look(decoder, tokens_1T)
    orders = [weights_1TA[0, :MOST_TOKENS].argsort(dim=-1, descending=True) for weights_1TA in seen.weights]
    shown = list(zip(seen.chosen, seen.weights, orders, strict=True))
    return Specimen(
        digest=spec.digest(),
        validation=PUBLISHED_SET,
        texts=[corpus.decode(token) for token in tokens_1S[0, :-1][:MOST_TOKENS, None]],
        experts=[chosen_1TA[0, :MOST_TOKENS].gather(-1, order_TA).tolist() for chosen_1TA, _, order_TA in shown],
        weights=[weights_1TA[0, :MOST_TOKENS].gather(-1, order_TA).tolist() for _, weights_1TA, order_TA in shown],
        read_weights=seen.read_weights,
        magnitude_edges=magnitude_edges(),
        magnitudes={place: counts.tolist() for place, counts in seen.magnitudes.items()},
    )

"""The loss on a set is the mean over its tokens and leaves the model as it was."""

from collections.abc import Callable

import pytest
import torch

from k3ablate.model.decoder import Decoder, initialise
from k3ablate.training.corpus import Corpus
from k3ablate.training.data import windows
from k3ablate.training.evaluation import evaluate
from k3ablate.training.spec import RunSpec


def test_evaluation_is_the_mean_over_all_tokens(tiny_spec: Callable[..., RunSpec], tiny_corpus: Corpus) -> None:
    spec = tiny_spec(training__validation_tokens=16 * 5)  # five windows: the last batch is smaller
    decoder = Decoder(spec.model)
    initialise(decoder, torch.Generator().manual_seed(0), 0.5)
    found = evaluate(decoder, spec.training, tiny_corpus, "validation")
    tokens_BT = torch.from_numpy(next(windows(tiny_corpus, "validation", 16, 16 * 5, 5)))
    log_probabilities = decoder(tokens_BT[:, :-1]).logits_BTV.double().log_softmax(-1)
    expected = -log_probabilities.gather(-1, tokens_BT[:, 1:, None]).mean().item()
    assert found is not None
    assert found.loss == pytest.approx(expected, rel=1e-6)
    assert found.num_tokens == 80
    assert found.bits_per_byte == tiny_corpus.bits_per_byte(found.loss, "validation")


def test_evaluation_changes_no_weight_and_no_balance(tiny_spec: Callable[..., RunSpec], tiny_corpus: Corpus) -> None:
    spec = tiny_spec()
    decoder = Decoder(spec.model)
    initialise(decoder, torch.Generator().manual_seed(0), 0.5)
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    evaluate(decoder, spec.training, tiny_corpus, "out_of_distribution")
    for balancer in decoder.balancers():
        balancer.step()  # would move on what it had been shown
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_loss_that_is_not_finite_is_no_evaluation(tiny_spec: Callable[..., RunSpec], tiny_corpus: Corpus) -> None:
    spec = tiny_spec()
    decoder = Decoder(spec.model)
    initialise(decoder, torch.Generator().manual_seed(0), 0.5)
    with torch.no_grad():
        decoder.head.weight[0, 0] = torch.nan
    assert evaluate(decoder, spec.training, tiny_corpus, "validation") is None

"""QK-Clip: the largest logit comes to the threshold, by the weights it may touch, once per step on its whole batch."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Generator, Tensor

from k3ablate.kernels import dispatch
from k3ablate.model import ranks
from k3ablate.model.attention import MLA, GatedMLA, LatentAttention, LatentMixerConfig
from k3ablate.model.decoder import Decoder, initialise
from k3ablate.tracking import NoTracking
from k3ablate.training.clipping import ClipLogits, clip_factors
from k3ablate.training.corpus import Corpus
from k3ablate.training.module import LanguageModule
from k3ablate.training.optimizers import QKClip
from k3ablate.training.run import train
from k3ablate.training.spec import Execution, RunSpec

Spec = Callable[..., RunSpec]

WIDTHS = {"query_rank": 6, "key_value_rank": 5, "head_width": 4, "position_width": 2, "value_width": 3}
LATENT = {"kind": "mla", "num_heads": 3} | WIDTHS
GATED = LATENT | {"kind": "gated_mla", "num_heads": 2}
EVERY_STEP = Execution(log_every_steps=1, checkpoint_seconds=1e-9)
PER_HEAD = {"kind": "muon", "learning_rate": 0.01, "cut": "per_head", "rest": {"learning_rate": 0.01}}


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def largest_logits(attention: LatentAttention, x_BTD: Tensor) -> Tensor:
    attention.largest_logit_H = torch.full((attention.config.num_heads,), -torch.inf)
    attention(x_BTD)
    return attention.largest_logit_H


@pytest.fixture(params=[MLA(num_heads=3, **WIDTHS), GatedMLA(num_heads=3, **WIDTHS)], ids=["mla", "gated_mla"])
def attention(request: pytest.FixtureRequest) -> LatentAttention:
    config: LatentMixerConfig = request.param
    module = config.build(12)
    assert isinstance(module, LatentAttention)
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = gaussian(*parameter.shape, seed=seed)
    return module


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_the_largest_logit_comes_to_the_threshold(
    attention: LatentAttention, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, kernels)
    x_BTD = gaussian(2, 40, 12, seed=9)
    before = largest_logits(attention, x_BTD)
    threshold = before.median().item() - 1e-3  # one head stays below it
    attention.scale_logits(clip_factors(before, threshold))
    expected = before.clamp(max=threshold)
    assert (expected < before).tolist().count(True) == 2
    torch.testing.assert_close(largest_logits(attention, x_BTD), expected, rtol=1e-5, atol=1e-5)


def test_factors_touch_queries_and_keys_of_their_heads_only(attention: LatentAttention) -> None:
    before = {name: parameter.detach().clone() for name, parameter in attention.named_parameters()}
    attention.scale_logits(torch.tensor([1.0, 0.25, 1.0]))
    after = {name: parameter.detach() for name, parameter in attention.named_parameters()}
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "query_up.weight",
        "key_value_up.weight",
    }
    query, key_value = before["query_up.weight"].view(3, 6, -1), before["key_value_up.weight"].view(3, 7, -1)
    query[1, :4] *= 0.5
    query[1, 4:] *= 0.25
    key_value[1, :4] *= 0.5
    assert torch.equal(after["query_up.weight"].view(3, 6, -1), query)
    assert torch.equal(after["key_value_up.weight"].view(3, 7, -1), key_value)


def test_no_factor_where_no_logit_is_too_large() -> None:
    largest_H = torch.tensor([99.0, 100.0, 200.0, -5.0, -torch.inf, torch.nan])
    assert clip_factors(largest_H, 100.0).tolist() == [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]


def test_nothing_is_looked_for_unless_somebody_asks_or_in_evaluation(attention: LatentAttention) -> None:
    attention(gaussian(1, 5, 12))
    assert attention.largest_logit_H is None
    attention.eval()
    assert largest_logits(attention, gaussian(1, 5, 12)).tolist() == [-torch.inf] * 3


@dataclass
class Counting:
    """What callbacks use of a Trainer."""

    global_step: int = 0


def two_kinds(tiny_spec: Spec) -> RunSpec:
    """A layer of three gentle heads and one of two."""
    mixer = {"main": LATENT, "periodic": {"mixer": GATED, "period": 2}}
    return tiny_spec(model__mixer=mixer).replaced("model.initializer_range", 0.3)


def module_of(spec: RunSpec) -> LanguageModule:
    decoder = Decoder(spec.model)
    initialise(decoder, Generator().manual_seed(0), spec.model.initializer_range)
    return LanguageModule(decoder, spec.training)


def batches() -> list[Tensor]:
    return [torch.randint(256, (2, 17), generator=Generator().manual_seed(seed)) for seed in (1, 2)]


def largest_of_step(module: LanguageModule, callback: ClipLogits) -> list[Tensor]:
    """Both micro-batches of a step that changes no weight."""
    callback.on_train_start(Counting(), module)
    for tokens_BT in batches():
        module.training_step(tokens_BT, 0)
    return [attention.largest_logit_H.clone() for attention in callback.attentions]


def test_a_step_counts_with_all_its_micro_batches(tiny_spec: Spec) -> None:
    module = module_of(two_kinds(tiny_spec))
    callback = ClipLogits(QKClip(), module.decoder)
    largest = largest_of_step(module, callback)
    alone = []
    for tokens_BT in batches():
        callback.on_step(Counting(), module, 0)  # starts afresh
        module.training_step(tokens_BT, 0)
        alone.append([attention.largest_logit_H.clone() for attention in callback.attentions])
    assert [len(largest_H) for largest_H in largest] == [3, 2]
    for layer, largest_H in enumerate(largest):
        assert torch.equal(largest_H, torch.maximum(alone[0][layer], alone[1][layer]))


def test_each_layer_is_clipped_and_says_so(tiny_spec: Spec) -> None:
    module = module_of(two_kinds(tiny_spec))
    before = largest_of_step(module, ClipLogits(QKClip(), module.decoder))
    threshold = torch.cat(before).median().item()
    callback = ClipLogits(QKClip(threshold=threshold), module.decoder)
    largest_of_step(module, callback)
    callback.on_step(Counting(), module, 0)
    assert module.by_layer["largest_logit"].tolist() == [largest_H.max() for largest_H in before]
    clipped = [int((largest_H > threshold).sum()) for largest_H in before]
    assert module.by_layer["clipped_heads"].tolist() == clipped
    assert sum(clipped) == 2
    first = largest_of_step(module, callback)[0]  # later layers see other inputs now
    torch.testing.assert_close(first, before[0].clamp(max=threshold), rtol=1e-5, atol=1e-5)


def test_the_largest_of_all_ranks_counts(tiny_spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(two_kinds(tiny_spec))
    callback = ClipLogits(QKClip(threshold=50.0), module.decoder)
    largest_of_step(module, callback)
    query = module.decoder.layers[0].mixer.query_up.weight.detach().clone()
    monkeypatch.setattr(ranks, "largest", lambda tensor: torch.full_like(tensor, 200.0))
    callback.on_step(Counting(), module, 0)
    assert module.by_layer["clipped_heads"].tolist() == [3, 2]
    scaled = module.decoder.layers[0].mixer.query_up.weight.detach().view(3, 6, -1)
    torch.testing.assert_close(scaled[:, :4], query.view(3, 6, -1)[:, :4] / 2)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def clipped(spec: RunSpec, threshold: float | None) -> RunSpec:
    value = None if threshold is None else {"threshold": threshold}
    return spec.replaced("training.optimizer.qk_clip", value)


def test_a_run_clips_after_its_steps_and_logs_it(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    spec = two_kinds(tiny_spec)
    losses = {}
    for name, threshold in (("none", None), ("high", 1e6), ("low", 0.5)):
        record = train(clipped(spec, threshold), tmp_path / name, tiny_corpus, EVERY_STEP, NoTracking())
        losses[name] = record.evaluations["validation"].loss
    assert losses["high"] == losses["none"]
    assert losses["low"] != losses["none"]
    assert "clipped_heads" not in lines(tmp_path / "none")[0]
    assert all(line["clipped_heads"] == [0, 0] for line in lines(tmp_path / "high"))
    high, low = lines(tmp_path / "high")[0], lines(tmp_path / "low")[0]
    assert low["largest_logit"] == high["largest_logit"]
    assert low["clipped_heads"] != [0, 0]
    # A step moves logits a little, so that they stay near what the step before clipped them to.
    assert max(lines(tmp_path / "low")[-1]["largest_logit"]) < 1.0 < max(lines(tmp_path / "high")[-1]["largest_logit"])


def test_a_model_without_mla_trains_as_without_it(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    losses = [
        train(clipped(tiny_spec(), threshold), tmp_path / str(threshold), tiny_corpus, EVERY_STEP, NoTracking())
        .evaluations["validation"]
        .loss
        for threshold in (None, 1e-3)
    ]
    assert losses[0] == losses[1]
    assert "clipped_heads" not in lines(tmp_path / "0.001")[0]


class Killed(Exception):  # noqa: N818
    """Stands for a crash."""


def test_a_resumed_run_clips_the_same(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per-head Muon's momenta are in the checkpoint, and of clipping nothing has to be."""
    spec = clipped(two_kinds(tiny_spec).replaced("training.optimizer", PER_HEAD), 0.5)
    whole = train(spec, tmp_path / "whole", tiny_corpus, EVERY_STEP, NoTracking())
    on_step = ClipLogits.on_step

    def crash(callback: ClipLogits, trainer: Trainer, module: LanguageModule, step: int) -> None:
        if step == 7:
            raise Killed
        on_step(callback, trainer, module, step)

    with monkeypatch.context() as patch:
        patch.setattr(ClipLogits, "on_step", crash)
        with pytest.raises(Killed):
            train(spec, tmp_path / "killed", tiny_corpus, EVERY_STEP, NoTracking())
    resumed = train(spec, tmp_path / "killed", tiny_corpus, EVERY_STEP, NoTracking())
    assert (resumed.num_resumes, resumed.evaluations) == (1, whole.evaluations)
    for name in ("largest_logit", "clipped_heads"):
        assert [line[name] for line in lines(tmp_path / "killed")] == [line[name] for line in lines(tmp_path / "whole")]

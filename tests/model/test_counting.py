"""The ledger against the released checkpoints' own totals (architecture specification, sections 3, 5 and 6)."""

import pytest
import torch
from torch import Generator
from torch.utils.flop_counter import FlopCounterMode

from k3ablate.config import parse
from k3ablate.model.counting import count
from k3ablate.model.decoder import Decoder, MixerUnion, ModelConfig, initialise
from k3ablate.model.sizes import Size, scaled
from k3ablate.recipes import recipe

K2 = parse(ModelConfig, recipe("model", "kimi-k2"), source="kimi-k2")
K3 = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")

# The file stores one decay scalar per head padded from 96 to 128, in each of 69 layers; the model has no use for them.
STORED_PADDING = 69 * 32


def test_k2_groups_are_the_released_ones() -> None:
    counts = count(K2, context=8192)
    assert counts.groups == {
        "input_embedding": 1_174_405_120,
        "lm_head": 1_174_405_120,
        "mla_mixers": 6_168_569_856,
        "dense": 396_361_728,
        "router": 165_173_760,
        "shared_experts": 2_642_411_520,
        "routed_experts": 1_014_686_023_680,
        "layer_norms": 881_664,
    }
    assert counts.total_params == 1_026_408_232_448
    assert counts.active_params == pytest.approx(31.687e9, abs=0.5e6)


def test_k3_groups_are_the_released_ones() -> None:
    counts = count(K3, context=8192)
    assert counts.groups == {
        "input_embedding": 1_174_405_120,
        "lm_head": 1_174_405_120,
        "kda_mixers": 30_618_088_704 - STORED_PADDING,
        "gated_mla_mixers": 5_572_706_304,
        "dense": 726_663_168,
        "router": 590_955_008,
        "latent": 4_727_310_336,
        "shared_experts": 12_155_092_992,
        "routed_experts": 2_722_740_830_208,
        "layer_norms": 1_340_416,
        "attnres": 2_680_832,
    }
    assert counts.total_params == 2_779_484_478_208 - STORED_PADDING
    assert counts.active_params == pytest.approx(104.1896e9, abs=0.5e5)


def test_k3_has_69_kda_and_24_mla_layers_in_their_places() -> None:
    kinds = [mixer.kind for mixer, _ in K3.layers()]
    assert [layer + 1 for layer, kind in enumerate(kinds) if kind == "gated_mla"] == [*range(4, 93, 4), 93]
    assert [feed_forward.kind for _, feed_forward in K3.layers()] == ["dense"] + 92 * ["latent_moe"]


def test_links_at_93_layers() -> None:
    assert count(K3, context=1).links == 1_003
    full = K3.replaced("residual", {"kind": "full_attnres"})
    assert count(full, context=1).links == 17_578
    assert count(K2, context=1).links == 0


def test_flops_of_the_specification() -> None:
    attention_free = count(K2, context=0).flops_per_token
    assert attention_free == pytest.approx(2 * count(K2, context=0).active_params, rel=1e-4)
    core = count(K2, context=8192).flops_per_token - attention_free
    assert core == pytest.approx(10.2e9, rel=0.01)  # MLA cores of all layers at 8K


def core_flops(config: ModelConfig, context: int) -> float:
    """What the specification counts and torch's counter does not: attention cores, KDA's recurrence, AttnRes reads."""
    reads = config.residual.flops_per_token(config.width, config.num_layers)
    return reads + sum(_mixer_core(mixer, context) for mixer, _ in config.layers())


def _mixer_core(mixer: MixerUnion, context: int) -> float:
    if mixer.kind == "kda":
        return 7 * mixer.num_heads * mixer.head_width**2 + 24 * mixer.num_heads * mixer.head_width
    return mixer.num_heads * (context + 1) * (mixer.head_width + mixer.position_width + mixer.value_width)


@pytest.mark.parametrize("reference", [K2, K3], ids=["k2", "k3"])
@pytest.mark.parametrize("width", [32, 64])
def test_counted_products_are_the_executed_ones(
    reference: ModelConfig, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every linear map and every expert product, as torch's own counter sees them."""
    monkeypatch.setenv("K3ABLATE_KERNELS", "torch")
    context = 64
    size = Size(name="x", width=width, num_layers=4, head_width=16, num_active=2)
    config = scaled(reference, size, vocabulary_size=256)
    decoder = Decoder(config).eval()
    initialise(decoder, Generator().manual_seed(0), config.initializer_range)
    tokens = torch.randint(256, (2, context), generator=Generator().manual_seed(1))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        decoder(tokens)
    executed = counter.flop_counts["Global"][torch.ops.aten.mm] / tokens.numel()
    assert executed == pytest.approx(count(config, context).flops_per_token - core_flops(config, context), rel=1e-9)

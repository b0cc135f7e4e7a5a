"""What the site is handed of models and runs, against the specification's numbers and planted runs."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ablate.config import parse
from k3ablate.model.decoder import ModelConfig
from k3ablate.model_exhibits import model_exhibits
from k3ablate.records import Label, RoutedPairs, Specimen, write_routing, write_specimen
from k3ablate.report.exhibits import Exhibits
from k3ablate.run_exhibits import joined, run_exhibits

MODEL = {
    "vocabulary_size": 61,
    "width": 24,
    "num_layers": 3,
    "mixer": {"main": {"kind": "softmax", "num_heads": 3, "num_key_value_heads": 1, "head_width": 8}},
    "feed_forward": {
        "main": {"kind": "latent_moe", "num_experts": 6, "num_active": 2, "expert_width": 16, "latent_width": 12},
        "leading": {"feed_forward": {"kind": "dense", "hidden_width": 32}},
    },
    "residual": {"kind": "block_attnres", "num_blocks": 3},
}
DENSE = MODEL | {"feed_forward": {"main": {"kind": "dense", "hidden_width": 32}}, "residual": {"kind": "plain"}}


@pytest.fixture(scope="module")
def models() -> Exhibits:
    return model_exhibits()


def test_stacks_are_the_released_layouts(models: Exhibits) -> None:
    k3, k2 = models.stacks
    assert Counter(layer.mixer for layer in k3.layers) == {"kda": 69, "gated_mla": 24}
    assert [index + 1 for index, layer in enumerate(k3.layers) if layer.mixer == "gated_mla"][-3:] == [88, 92, 93]
    assert Counter(layer.block for layer in k3.layers) == {**dict.fromkeys(range(7), 12), 7: 9}
    assert Counter(layer.feed_forward for layer in k3.layers) == {"latent_moe": 92, "dense": 1}
    assert Counter(layer.mixer for layer in k2.layers) == {"mla": 61}
    assert {layer.block for layer in k2.layers} == {None}


def test_links_are_those_of_the_specification(models: Exhibits) -> None:
    links = models.links
    assert links is not None
    assert (links.num_layers, links.layers_per_block) == (93, 12)
    sublayers, layers = links.grids
    assert (sublayers.full[92], sublayers.block[92][11]) == (17_578, 1_003)
    assert (layers.full[92], layers.block[92][11]) == (4_465, 502)
    assert len(layers.full) == 128
    assert {len(row) for row in layers.block} == {32}
    assert [row[0] for row in layers.block] == list(layers.full)  # a layer to a block is the full form


def test_growth_adds_up_to_the_released_counts(models: Exhibits) -> None:
    assert models.growth is not None
    assert sum(group.before for group in models.growth.groups) == 1_026_408_232_448
    assert sum(group.after for group in models.growth.groups) == 2_779_484_478_208 - 69 * 32  # A_log without padding
    assert models.growth.groups[0].group == "routed_experts"


def test_traffic_of_even_experts(models: Exhibits) -> None:
    (even,) = models.parallel
    assert even.leaving_share == pytest.approx(7 / 8)
    assert even.full_width_bytes == pytest.approx(2 * 16 * 7 / 8 * 7168 * 2)
    assert even.routed_width_bytes == pytest.approx(even.full_width_bytes / 2)
    assert all(len(set(token.experts)) == 16 for token in even.tokens)
    (drawn,) = models.routing
    assert drawn.is_drawn
    assert (drawn.num_experts, drawn.num_active) == (896, 16)


def test_standing_has_every_published_cell(models: Exhibits) -> None:
    assert models.standing is not None
    assert len(models.standing.scores) == 266
    first = models.standing.scores[0]
    assert (first.benchmark, first.model, first.score) == ("GPQA Diamond", "Kimi K3", 93.5)


def planted(root: Path, arm: str, size: str, flops: float, *, tree: dict[str, Any] = MODEL, leaves: bool = True) -> Any:
    """A row of a plan with what a run of it leaves: two tokens, and experts that rank 0 has most of."""
    digest = f"{len(arm):x}{size}{flops:.0f}".ljust(16, "0")[:16]
    folder = root / digest
    folder.mkdir(parents=True)
    config = parse(ModelConfig, tree, source="test")
    is_routed = tree is MODEL
    if leaves:
        specimen = Specimen(
            digest=digest, validation="validation", texts=["a", "<b>"],
            experts=[[[1, 0], [5, 2]], [[0, 1], [3, 4]]] if is_routed else [],
            weights=[[[0.7, 0.3], [0.6, 0.4]], [[0.9, 0.1], [0.5, 0.5]]] if is_routed else [],
            read_weights=[[1.0], [0.5, 0.5], [0.2, 0.8], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4],
                          [0.25] * 4] if is_routed else [],
            magnitude_edges=[0.1, 1.0, 10.0], magnitudes={"glu_hidden": [3, 4]},
        )  # fmt: skip
        write_specimen(specimen, folder)
        if is_routed:
            pairs = [[4, 2, 0, 0, 2, 0], [1, 1, 1, 1, 1, 3]]
            write_routing(
                RoutedPairs(digest=digest, validation="validation", num_tokens=4, pairs=pairs), folder
            )  # fmt: skip
    label = Label("x", arm, size, 0, digest, {}, None)
    return SimpleNamespace(label=label, flops=flops, spec=SimpleNamespace(model=config))


def test_the_largest_run_that_left_something_is_shown(tmp_path: Path) -> None:
    rows = [planted(tmp_path, "k3", "s", 1e9), planted(tmp_path, "k3", "m", 2e9),
            planted(tmp_path, "k3", "l", 3e9, leaves=False)]  # fmt: skip
    found = run_exhibits(rows, tmp_path, ["k3", "unknown"])
    assert [routing.name for routing in found.routing] == [
        "k3, size m, seed 0, layer 2", "k3, size m, seed 0, layer 3",
    ]  # fmt: skip
    first = found.routing[0]
    assert first.pairs == (4, 2, 0, 0, 2, 0)
    assert [(token.text, token.experts) for token in first.tokens] == [("a", (1, 0)), ("<b>", (5, 2))]
    (parallel,) = found.parallel
    assert (parallel.num_ranks, parallel.num_experts) == (6, 6)
    assert parallel.loads == pytest.approx((0.75, 0.75, 0.75, 0.75, 0.75, 2.25))
    (reads,) = found.read_weights
    assert reads.reads == (
        "layer 1 mixer", "layer 1 feed-forward", "layer 2 mixer", "layer 2 feed-forward", "layer 3 mixer",
        "layer 3 feed-forward", "output",
    )  # fmt: skip
    assert reads.sources == ("embedding", "block 1", "block 2", "block 3")
    assert found.activations is not None
    assert [histogram.counts for histogram in found.activations.histograms] == [(3, 4)]
    assert found.activations.histograms[0].activation == "situ_glu"
    situ = next(curve for curve in found.activations.curves if curve.name == "SiTU-GLU")
    assert max(situ.y) < 4.01  # bounded where up is small
    assert max(next(curve for curve in found.activations.curves if curve.name == "SwiGLU").y) > 39


def test_a_dense_model_has_no_experts_to_show(tmp_path: Path, models: Exhibits) -> None:
    found = run_exhibits([planted(tmp_path, "dense", "s", 1e9, tree=DENSE)], tmp_path, ["dense"])
    assert (found.routing, found.parallel, found.read_weights) == ((), (), ())
    both = joined(found, models)
    assert both.routing == models.routing
    assert both.activations is found.activations


def test_runs_that_left_nothing_leave_empty_parts(tmp_path: Path) -> None:
    found = run_exhibits([planted(tmp_path, "k3", "s", 1e9, leaves=False)], tmp_path, ["k3"])
    assert found.routing == ()
    assert found.activations is not None
    assert found.activations.histograms == ()

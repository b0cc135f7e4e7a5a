"""What of our own runs can a reader turn on the site? Routed tokens, reads over depth, spreads of activations, traffic.

From what a finished run leaves in its folder (`specimen.json`, `routing.json`), of two arms at the largest size that
has them: the baseline and the arm that changes most. What needs no run is in `model_exhibits`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from k3ablate.jobs.folders import RunFolder
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.feedforward import SiTUGLU, SwiGLU
from k3ablate.model.moe import RoutedConfig
from k3ablate.model.residual import BlockAttnRes
from k3ablate.model.specimens import GLU_HIDDEN, ROUTED_HIDDEN
from k3ablate.model.traffic import even_sources, traffic
from k3ablate.plan import PlanRow
from k3ablate.records import Specimen
from k3ablate.report.exhibits import (
    Activations,
    Curve,
    Exhibits,
    Histogram,
    Parallel,
    ReadWeights,
    RoutedToken,
    Routing,
    TokenHops,
)

MOST_RANKS = 8
GATES = (-10.0, 40.0, 201)  # where the functions are drawn: from, to, points
SOURCE_OF_ACTIVATIONS = (
    "Absolute values of what down-projections took in on the first window of the validation set, after training."
)
PLACES = {GLU_HIDDEN: "shared, dense", ROUTED_HIDDEN: "routed"}


@dataclass(frozen=True)
class ShownRun:
    """A finished run, its model, and what it left; `pairs` are by routed layer and expert, none for a dense model."""

    name: str
    model: ModelConfig
    specimen: Specimen
    pairs: Sequence[Sequence[int]]
    num_tokens: int  # that were counted


def run_exhibits(rows: Sequence[PlanRow], root: Path, arms: Iterable[str]) -> Exhibits:
    """Of some arms, each at the largest size and the first seed that left a specimen; empty where none did."""
    shown = [run for arm in arms if (run := _shown(rows, root, arm)) is not None]
    return Exhibits(
        routing=tuple(one for run in shown for one in _routings(run)),
        parallel=tuple(one for run in shown for one in _parallel(run)),
        read_weights=tuple(_read_weights(run) for run in shown if run.specimen.read_weights),
        activations=_activations(shown),
    )


def joined(runs: Exhibits, models: Exhibits) -> Exhibits:
    """Parts of runs first, then those of models."""
    return Exhibits(
        routing=(*runs.routing, *models.routing),
        stacks=models.stacks,
        links=models.links,
        parallel=(*runs.parallel, *models.parallel),
        growth=models.growth,
        read_weights=runs.read_weights,
        activations=runs.activations,
        standing=models.standing,
    )


def _shown(rows: Sequence[PlanRow], root: Path, arm: str) -> ShownRun | None:
    for row in sorted((row for row in rows if row.label.arm == arm), key=lambda row: (-row.flops, row.label.seed)):
        folder = RunFolder(root / row.label.digest)
        specimen = folder.specimen()
        if specimen is not None and row.spec is not None:
            name = f"{row.label.arm}, size {row.label.size}, seed {row.label.seed}"
            routing = folder.routing()
            counted = ((), 0) if routing is None else (routing.pairs, routing.num_tokens)
            return ShownRun(name, row.spec.model, specimen, *counted)
    return None


def _shown_layers(run: ShownRun) -> list[tuple[int, int, RoutedConfig]]:
    """First, middle and last of the routed layers: place among them, layer, configuration."""
    layers = [(layer, feed_forward) for layer, (_, feed_forward) in enumerate(run.model.layers())]
    routed = [(layer, one) for layer, one in layers if isinstance(one, RoutedConfig)]
    places = sorted({0, len(run.pairs) // 2, len(run.pairs) - 1}) if run.pairs else []
    return [(place, *routed[place]) for place in places]


def _routings(run: ShownRun) -> list[Routing]:
    return [
        Routing(
            name=f"{run.name}, layer {layer + 1}",
            source=f"Run {run.specimen.digest}: the first tokens of its validation set; loads are of all "
            f"{run.num_tokens:,} tokens that were evaluated.",
            pairs=tuple(run.pairs[place]),
            tokens=tuple(_tokens(run.specimen, place)),
            num_active=config.num_active,
            num_shared=config.num_shared,
        )
        for place, layer, config in _shown_layers(run)
    ]


def _tokens(specimen: Specimen, place: int) -> list[RoutedToken]:
    return [
        RoutedToken(text, tuple(experts), tuple(weights))
        for text, experts, weights in zip(
            specimen.texts, specimen.experts[place], specimen.weights[place], strict=True
        )
    ]  # fmt: skip


def _parallel(run: ShownRun) -> list[Parallel]:
    """The middle of the shown layers."""
    layers = _shown_layers(run)
    if not layers:
        return []
    place, layer, config = layers[len(layers) // 2]
    num_ranks = next(number for number in range(MOST_RANKS, 0, -1) if config.num_experts % number == 0)
    pairs_E = torch.tensor(run.pairs[place])
    found = traffic(config, run.model.width, even_sources(pairs_E, num_ranks))
    loads_R = pairs_E.double().view(num_ranks, -1).sum(-1)
    return [
        Parallel(
            name=f"{run.name}, layer {layer + 1}",
            source=f"Run {run.specimen.digest}: pairs of {run.num_tokens:,} validation tokens, as if its "
            f"{config.num_experts} experts lay on {num_ranks} ranks and every rank's tokens chose alike.",
            num_experts=config.num_experts,
            full_width=found.full_width,
            full_width_bytes=found.full_width_bytes,
            routed_width=found.routed_width,
            routed_width_bytes=found.routed_width_bytes,
            bytes_per_number=found.bytes_per_number,
            leaving_share=found.leaving_share,
            loads=tuple((loads_R / loads_R.mean()).tolist()),
            tokens=tuple(
                TokenHops(token.text, index % num_ranks, token.experts)
                for index, token in enumerate(_tokens(run.specimen, place))
            ),
        )
    ]


def _read_weights(run: ShownRun) -> ReadWeights:
    sublayers = [
        f"layer {layer + 1} {part}" for layer in range(run.model.num_layers) for part in ("mixer", "feed-forward")
    ]
    num_written = len(run.specimen.read_weights[-1]) - 1
    is_block = isinstance(run.model.residual, BlockAttnRes)
    written = [f"block {number + 1}" for number in range(num_written)] if is_block else sublayers
    return ReadWeights(
        name=run.name,
        source=f"Run {run.specimen.digest}: mean weights over the first window of its validation set.",
        reads=(*sublayers, "output"),
        sources=("embedding", *written),
        weights=tuple(map(tuple, run.specimen.read_weights)),
    )


def _activations(shown: Sequence[ShownRun]) -> Activations:
    gate = torch.linspace(GATES[0], GATES[1], int(GATES[2]))
    functions: Mapping[str, SwiGLU | SiTUGLU] = {"SwiGLU": SwiGLU(), "SiTU-GLU": SiTUGLU()}
    return Activations(
        source=SOURCE_OF_ACTIVATIONS,
        x_label="gate",
        y_label="hidden activation where up = 1",
        curves=tuple(
            Curve(name, tuple(gate.tolist()), tuple(function.combine(gate, torch.ones_like(gate)).tolist()))
            for name, function in functions.items()
        ),
        measured="absolute hidden activation",
        histograms=tuple(
            Histogram(
                f"{run.name}, {PLACES[place]}", _activation(run.model), tuple(run.specimen.magnitude_edges),
                tuple(counts),
            )
            for run in shown for place, counts in run.specimen.magnitudes.items()
        ),
    )  # fmt: skip


def _activation(model: ModelConfig) -> str:
    """Of the feed-forward that most layers have."""
    return model.feed_forward.main.activation.kind

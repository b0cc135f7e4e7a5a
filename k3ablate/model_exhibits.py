"""What of the published models can a reader turn on the site? Their layers, links, growth, traffic and standing.

Counted by `model/` from the recipes `kimi-k2` and `kimi-k3`, and read from `analysis/published/`; what runs of our own
show is in `run_exhibits`.
"""

from k3ablate.config import parse, read_yaml
from k3ablate.model.counting import count
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.links import num_links, num_output_links
from k3ablate.model.moe import RoutedConfig
from k3ablate.model.residual import BlockAttnRes, FullAttnRes
from k3ablate.model.traffic import even_routing, traffic
from k3ablate.recipes import published_folder, recipe_path
from k3ablate.report.exhibits import (
    Exhibits,
    GroupGrowth,
    Growth,
    LinkGrid,
    Links,
    Parallel,
    Routing,
    Stack,
    StackLayer,
    TokenHops,
    uniform_routing,
)
from k3ablate.report.standing import published_standing

BEFORE, AFTER = "kimi-k2", "kimi-k3"
NAMES = {BEFORE: "Kimi K2", AFTER: "Kimi K3"}
MOST_LAYERS, MOST_LAYERS_PER_BLOCK = 128, 32
NUM_RANKS = 8
NUM_DRAWN_TOKENS, DRAWN_SEED = 24, 0


def model_exhibits() -> Exhibits:
    """All parts that need no run."""
    before, after = _config(BEFORE), _config(AFTER)
    routed = _routed(after)
    drawn = uniform_routing(
        f"{NAMES[AFTER]}, drawn evenly", routed.num_experts, routed.num_active, NUM_DRAWN_TOKENS, DRAWN_SEED
    )
    return Exhibits(
        routing=(drawn,),
        stacks=(stack(NAMES[AFTER], after), stack(NAMES[BEFORE], before)),
        links=links(after),
        parallel=(_even_parallel(after, drawn),),
        growth=growth(before, after),
        standing=published_standing(published_folder()),
    )


def stack(name: str, config: ModelConfig) -> Stack:
    """A model's layers by the kinds of their slots."""
    return Stack(
        name=name,
        residual=config.residual.kind,
        layers=tuple(
            StackLayer(mixer.kind, feed_forward.kind, _block(config, layer))
            for layer, (mixer, feed_forward) in enumerate(config.layers())
        ),
    )


def links(config: ModelConfig) -> Links:
    """Links at every depth and block size, with sublayers as consumers and with decoder layers."""
    assert isinstance(config.residual, BlockAttnRes), "sliders start where the model has its blocks"
    return Links(
        grids=(_link_grid("sublayer", 2), _link_grid("decoder layer", 1)),
        num_layers=config.num_layers,
        layers_per_block=config.residual.layers_per_block(config.num_layers),
    )


def growth(before: ModelConfig, after: ModelConfig) -> Growth:
    """Parameters by group, those of the later model first."""
    counts = [count(config, context=1).groups for config in (before, after)]
    names = sorted({*counts[0], *counts[1]}, key=lambda name: -counts[1].get(name, 0))
    groups = tuple(GroupGrowth(name, counts[0].get(name, 0), counts[1].get(name, 0)) for name in names)
    return Growth(NAMES[BEFORE], NAMES[AFTER], groups)


def _config(model: str) -> ModelConfig:
    path = recipe_path("model", model)
    return parse(ModelConfig, read_yaml(path), source=str(path))


def _routed(config: ModelConfig) -> RoutedConfig:
    assert isinstance(config.feed_forward.main, RoutedConfig), "both published models are routed"
    return config.feed_forward.main


def _block(config: ModelConfig, layer: int) -> int | None:
    if isinstance(config.residual, BlockAttnRes):
        return layer // config.residual.layers_per_block(config.num_layers)
    return layer if isinstance(config.residual, FullAttnRes) else None


def _link_grid(consumer: str, consumers_per_layer: int) -> LinkGrid:
    depths = [consumers_per_layer * num_layers for num_layers in range(1, MOST_LAYERS + 1)]
    sizes = [consumers_per_layer * size for size in range(1, MOST_LAYERS_PER_BLOCK + 1)]
    return LinkGrid(
        consumer=consumer,
        full=tuple(num_links(depth) + num_output_links(depth) for depth in depths),
        block=tuple(
            tuple(num_links(depth, size) + num_output_links(depth, size) for size in sizes) for depth in depths
        ),
    )


def _even_parallel(config: ModelConfig, drawn: Routing) -> Parallel:
    """K3's experts, all equally popular; hops of the drawn tokens."""
    routed = _routed(config)
    found = traffic(routed, config.width, even_routing(routed.num_experts, NUM_RANKS))
    return Parallel(
        name=f"{NAMES[AFTER]}, even",
        source=f"Counted for {NAMES[AFTER]} with experts that are equally popular; its tokens are the drawn ones.",
        num_experts=routed.num_experts,
        full_width=found.full_width,
        full_width_bytes=found.full_width_bytes,
        routed_width=found.routed_width,
        routed_width_bytes=found.routed_width_bytes,
        bytes_per_number=found.bytes_per_number,
        leaving_share=found.leaving_share,
        loads=(1.0,) * NUM_RANKS,
        tokens=tuple(
            TokenHops(token.text, index % NUM_RANKS, token.experts) for index, token in enumerate(drawn.tokens)
        ),
    )

"""How large is a model, what does a token cost, what moves between ranks, how is each tensor updated? The verb `count`.

Of a recipe or of a run. A recipe's experts are taken as evenly popular; a run left counts of its routing
(`records.RoutedPairs`). What is returned is in `counted`; the counting itself is in `model/`, the rules of updates are
in `training/groups.py`. The other verbs are in `verbs`.
"""

from pathlib import Path

import torch

from k3ablate.config import InputError, parse, read_yaml
from k3ablate.counted import Counted, Updates
from k3ablate.jobs.folders import RunFolder, State, find
from k3ablate.model.attention import LatentAttention
from k3ablate.model.census import checked
from k3ablate.model.conventions import Published, outside, readings
from k3ablate.model.decoder import Decoder, ModelConfig
from k3ablate.model.links import LinkCounts, link_table
from k3ablate.model.moe import RoutedConfig
from k3ablate.model.residual import BlockAttnRes
from k3ablate.model.traffic import LayerTraffic, RunTraffic, Traffic, even_routing, even_sources, traffic
from k3ablate.recipes import published_path, recipe_path
from k3ablate.records import ROUTING_FILE, RoutedPairs
from k3ablate.training.groups import rules
from k3ablate.training.spec import TrainingConfig

DEFAULT_CONTEXT = 4096


def count_model(
    name: str, context: int | None = None, num_ranks: int | None = None, optimizer: str | None = None
) -> Counted:
    """Parameters, FLOPs per token, links and, on `num_ranks`, traffic of a model recipe, given by name or path.

    With `optimizer`, a training recipe by name or path, also how each tensor is updated. Counted in closed form and on
    the built modules, AssertionError where they differ. What is published of a model is found by its name; a path has
    none.
    """
    config, published = _model_recipe(name)
    even = None if num_ranks is None else _even_traffic(name, config, num_ranks)
    return _counted(name, config, published, context or DEFAULT_CONTEXT, even, None, optimizer)


def count_run(
    name: str, root: Path, context: int | None = None, num_ranks: int | None = None, optimizer: str | None = None
) -> Counted:
    """The same of the model of a run, given by digest or folder; traffic also from the routing that it left."""
    folder = find(root, name)
    spec = folder.spec()
    even = measured = None
    if num_ranks is not None:
        even = _even_traffic(name, spec.model, num_ranks)
        measured = _run_traffic(spec.model, _routing(folder), num_ranks)
    return _counted(folder.digest, spec.model, None, context or spec.training.context, even, measured, optimizer)


def _counted(
    name: str,
    config: ModelConfig,
    published: Published | None,
    context: int,
    even: Traffic | None,
    measured: RunTraffic | None,
    optimizer: str | None,
) -> Counted:
    counts, found = checked(config, context)
    beside = outside(config, found, published)
    return Counted(
        model=name,
        context=context,
        total_params=counts.total_params,
        active_params=counts.active_params,
        flops_per_token=counts.flops_per_token,
        links=counts.links,
        groups=counts.groups,
        outside=beside,
        conventions=readings(found, beside, published),
        flops=counts.flops,
        link_table=_link_table(config),
        traffic=even,
        run_traffic=measured,
        updates=None if optimizer is None else _updates(found.decoder, optimizer),
    )


def _updates(decoder: Decoder, recipe: str) -> Updates:
    path = _recipe_file("training", recipe)
    config = parse(TrainingConfig, read_yaml(path), source=str(path)).optimizer
    return Updates(
        recipe=recipe,
        rules=rules(decoder, config),
        qk_clip_threshold=None if config.qk_clip is None else config.qk_clip.threshold,
        num_latent_layers=sum(isinstance(module, LatentAttention) for module in decoder.modules()),
    )


def _model_recipe(name: str) -> tuple[ModelConfig, Published | None]:
    path = _recipe_file("model", name)
    config = parse(ModelConfig, read_yaml(path), source=str(path))
    facts = None if _is_path(name) else published_path(name)
    return config, None if facts is None else parse(Published, read_yaml(facts), source=str(facts))


def _recipe_file(kind: str, name: str) -> Path:
    return Path(name) if _is_path(name) else recipe_path(kind, name)


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _link_table(config: ModelConfig) -> list[LinkCounts]:
    """With the model's own blocks; without blocks there is nothing to compare."""
    if not isinstance(config.residual, BlockAttnRes):
        return []
    return link_table(config.num_layers, config.residual.layers_per_block(config.num_layers))


def _even_traffic(name: str, config: ModelConfig, num_ranks: int) -> Traffic:
    feed_forward = config.feed_forward.main
    if not isinstance(feed_forward, RoutedConfig):
        raise InputError(f"--ranks {num_ranks}: {name} has no routed experts to share out; leave --ranks away")
    return traffic(feed_forward, config.width, even_routing(feed_forward.num_experts, num_ranks))


def _run_traffic(config: ModelConfig, routing: RoutedPairs, num_ranks: int) -> RunTraffic:
    routed = [
        (layer, feed_forward)
        for layer, (_, feed_forward) in enumerate(config.layers())
        if isinstance(feed_forward, RoutedConfig)
    ]
    layers = [
        LayerTraffic(layer, traffic(feed_forward, config.width, even_sources(torch.tensor(pairs), num_ranks)))
        for (layer, feed_forward), pairs in zip(routed, routing.pairs, strict=True)
    ]
    return RunTraffic(routing.digest, routing.validation, routing.num_tokens, layers)


def _routing(folder: RunFolder) -> RoutedPairs:
    found = folder.routing()
    if found is not None:
        return found
    state = folder.state()
    remedy = (
        "this run finished before counts were kept; delete the folder and run its experiment again"
        if state is State.FINISHED
        else f"this run is {state}; name one that has finished"
    )
    raise InputError(f"{folder.path}: no {ROUTING_FILE}, the counts that a run leaves when it finishes: {remedy}")

"""How many parameters do the modules hold that would be trained? Counted on the built decoder, part by part.

The other half of `counting.py`, which has the closed form: `checked` counts both ways and refuses to answer where they
differ. Modules are built on torch's meta device, so trillions of parameters take no memory. Parts are told apart by
their place in the decoder and by their type, never by the names of tensors.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from k3ablate.model.balancing import Balancer
from k3ablate.model.counting import Counts, count
from k3ablate.model.decoder import Decoder, FeedForwardUnion, Layer, ModelConfig
from k3ablate.model.moe import RoutedFeedForward
from k3ablate.model.residual import AttnResStream
from k3ablate.model.slots import FeedForward


@dataclass(frozen=True)
class Census:
    """A decoder on the meta device, and its parameters by the groups of specification section 3."""

    decoder: Decoder
    groups: Mapping[str, int]
    active_params: int  # LM head in, input embedding out


def census(config: ModelConfig) -> Census:
    """Build the decoder of `config` without memory and count it."""
    with torch.device("meta"):
        decoder = Decoder(config)
    groups = Counter(
        input_embedding=num_parameters(decoder.embedding),
        lm_head=num_parameters(decoder.head),
        layer_norms=num_parameters(decoder.norm),
    )
    for (mixer, feed_forward), layer in zip(config.layers(), decoder.layers, strict=True):
        assert isinstance(layer, Layer)
        groups["layer_norms"] += num_parameters(layer.mixer_norm) + num_parameters(layer.feed_forward_norm)
        groups[f"{mixer.kind}_mixers"] += num_parameters(layer.mixer)
        groups.update(_feed_forward_groups(feed_forward, layer.feed_forward))
    stream = "attnres" if isinstance(decoder.residual, AttnResStream) else config.residual.kind
    groups[stream] += num_parameters(decoder.residual)
    assert groups.total() == num_parameters(decoder), "a part of the decoder belongs to no group"
    active_params = num_visited(decoder) - groups["input_embedding"]
    return Census(decoder, {group: size for group, size in groups.items() if size}, active_params)


def checked(config: ModelConfig, context: int) -> tuple[Counts, Census]:
    """Both ways of counting; AssertionError, which names the group, where they differ."""
    counts, found = count(config, context), census(config)
    for group in sorted(counts.groups.keys() | found.groups.keys()):
        formula, built = counts.groups.get(group, 0), found.groups.get(group, 0)
        if formula != built:
            raise AssertionError(f"{group}: the closed form counts {formula:,}, the built modules hold {built:,}")
    if counts.active_params != found.active_params:
        raise AssertionError(
            f"active parameters: the closed form counts {counts.active_params:,}, "
            f"the built modules hold {found.active_params:,}"
        )
    return counts, found


def num_parameters(module: nn.Module) -> int:
    """Parameters and balancing biases of a module, shared ones once."""
    biases = sum(part.bias_E.numel() for part in module.modules() if isinstance(part, Balancer))
    return biases + sum(parameter.numel() for parameter in module.parameters())


def num_visited(module: nn.Module) -> int:
    """Those that one token meets: all but the routed experts it is not sent to."""
    idle = 0
    for part in module.modules():
        if isinstance(part, RoutedFeedForward):
            num_experts = len(part.experts.gate_EFL)
            idle += num_parameters(part.experts) // num_experts * (num_experts - part.router.num_active)
    return num_parameters(module) - idle


def _feed_forward_groups(config: FeedForwardUnion, module: FeedForward) -> dict[str, int]:
    """A routed feed-forward by its parts, any other as a whole under its kind."""
    if isinstance(module, RoutedFeedForward):
        return {
            "router": num_parameters(module.router),
            "latent": num_parameters(module.enter) + num_parameters(module.leave),
            "shared_experts": num_parameters(module.shared_experts),
            "routed_experts": num_parameters(module.experts),
        }
    return {config.kind: num_parameters(module)}

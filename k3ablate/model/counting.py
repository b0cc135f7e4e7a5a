"""How large is a model and what does a token cost? From the config alone, in closed form.

The ledger of every number that is published: parameters by named group, active parameters, forward FLOPs per token
and AttnRes links. Nothing here builds a module: `census.py` does, counts the same parameters on it and compares.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from k3ablate.model.decoder import ModelConfig


@dataclass(frozen=True)
class Counts:
    """Parameters (balancing biases included, as in the released checkpoints) and forward FLOPs per token.

    `active_params`: weights that multiply one token's activations, LM head in, embedding look-up out (specification 3).
    """

    groups: dict[str, int]
    total_params: int
    active_params: int
    active_params_without_embeddings: int
    flops: dict[str, float]  # forward, per token, by structure: what a token is multiplied with
    links: int

    @property
    def flops_per_token(self) -> float:
        """Forward FLOPs of one token."""
        return sum(self.flops.values())

    def training_flops(self, tokens: int) -> float:
        """3 x forward FLOPs of `tokens` tokens (statistics.md, section 8)."""
        return 3.0 * self.flops_per_token * tokens

    def training_flops_6nd(self, tokens: int) -> float:
        """6 x active non-embedding parameters x tokens, the usual shorthand."""
        return 6.0 * self.active_params_without_embeddings * tokens


def count(config: ModelConfig, context: int) -> Counts:
    """Counts of `config` at a context of `context` tokens."""
    groups = _groups(config)
    total = sum(groups.values())
    idle = groups["input_embedding"] + sum(
        sum(feed_forward.parameters(config.width).values()) - feed_forward.active_parameters(config.width)
        for _, feed_forward in config.layers()
    )
    return Counts(
        groups=dict(groups),
        total_params=total,
        active_params=total - idle,
        active_params_without_embeddings=total - idle - groups["lm_head"],
        flops=_flops(config, context),
        links=config.residual.num_links(config.num_layers),
    )


def _groups(config: ModelConfig) -> Counter[str]:
    """Parameters by the group names of specification section 3."""
    embedding = config.vocabulary_size * config.width
    groups = Counter(
        input_embedding=embedding, lm_head=embedding, layer_norms=(2 * config.num_layers + 1) * config.width
    )
    for mixer, feed_forward in config.layers():
        groups[f"{mixer.kind}_mixers"] += sum(mixer.parameters(config.width).values())
        groups.update(feed_forward.parameters(config.width))
    groups.update(config.residual.parameters(config.width, config.num_layers))
    return groups


def _flops(config: ModelConfig, context: int) -> dict[str, float]:
    """Forward FLOPs per token of every product the model executes, by structure (specification 5)."""
    flops: defaultdict[str, float] = defaultdict(float)
    for mixer, feed_forward in config.layers():
        parts = (*mixer.flops(config.width, context).items(), *feed_forward.flops(config.width).items())
        for structure, value in parts:
            flops[structure] += value
    flops["reads"] = config.residual.flops_per_token(config.width, config.num_layers)
    flops["lm_head"] = 2.0 * config.width * config.vocabulary_size
    return {structure: value for structure, value in flops.items() if value}

"""What is the best assignment of tokens to experts in which every expert has the same load?

Maximise the total score when every token takes A experts and every expert N A / E tokens: a linear program, whose
prices are the cutoffs of tokens and the biases of experts. `balanced_bias` finds them by Quantile Balancing's own
quantile, over tokens and over experts in turn (specification 4.6, solver view). Training does not come here: its
balancers (`balancing.py`) take one half-step per optimizer step, on the tokens at hand. This is the yardstick for them.

Shapes: N tokens, E experts, A active experts of a token.
"""

import math

import torch
from torch import Tensor


def balanced_bias(scores_NE: Tensor, num_active: int, num_rounds: int = 100) -> Tensor:
    """The bias whose top-`num_active` of scores + bias is the balanced assignment of most score, E, mean zero.

    Each price is put in the middle of the values that would do. At their end, where balancers put it, the token that
    sets a price ties with it, and prices can come to rest with loads that lack whole ties. Where the fair load is no
    whole number, the program splits tokens and a choice cannot: loads then differ from it by tokens that tie, and the
    value of the prices, not the score of the choice, is the program's.
    """
    num_tokens, num_experts = scores_NE.shape
    assert num_tokens >= num_experts, "even loads need a token for every expert"
    bias_E = scores_NE.new_zeros(num_experts)
    for _ in range(num_rounds):
        cutoff_N = _cutoff(scores_NE + bias_E, num_active, dim=1)
        bias_E = -_cutoff(scores_NE - cutoff_N[:, None], num_tokens * num_active / num_experts, dim=0)
        bias_E = bias_E - bias_E.mean()
    return bias_E


def _cutoff(values: Tensor, num_above: float, dim: int) -> Tensor:
    """What has `num_above` values above it along `dim`: halfway to the next, between ranks for a fraction."""
    ranked = values.sort(dim, descending=True).values
    rank = math.floor(num_above - 0.5)
    return torch.lerp(ranked.select(dim, rank), ranked.select(dim, rank + 1), num_above - 0.5 - rank)

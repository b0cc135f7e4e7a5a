"""Which update does each kind of parameter get? `AdamW` and `Muon` as one writes them; nothing here computes.

What is decayed is stated by role. How roles are found in a decoder is `groups.py`, the updates are `optim.py` and
`muon.py`, the clipping of logits is `clipping.py`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat

from k3ablate.config import Config


class Role(StrEnum):
    """What a parameter is to an optimizer."""

    MATRIX = "matrix"  # multiplies activations, stacks of experts included
    HEAD = "head"  # maps to the vocabulary
    EMBEDDING = "embedding"
    VECTOR = "vector"  # norms, A_log, dt_bias, convolutions, pseudo-queries


def _in_order(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """Each once and in one order, so that one set of roles has one digest."""
    return tuple(role for role in Role if role in roles)


Roles = Annotated[tuple[Role, ...], AfterValidator(_in_order)]
DECAYED = (Role.MATRIX, Role.HEAD)


class QKClip(Config):
    """MLA's query and key weights are scaled down where a head's largest logit passed `threshold` (specification 4.7).

    After each step, on the logits of its whole batch. Layers that are no MLA have nothing to clip: their logits are
    bounded (KDA) or no latent keys hide them (softmax). A model without MLA therefore trains as if this were not set.
    """

    threshold: PositiveFloat = 100.0  # K2


class AdamWRule(Config):
    """The update of AdamW (Loshchilov and Hutter 2019)."""

    learning_rate: PositiveFloat
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    epsilon: PositiveFloat = 1e-8
    weight_decay: float = Field(default=0.1, ge=0)  # of the roles that are decayed


class AdamW(AdamWRule):
    """AdamW for every parameter."""

    kind: Literal["adamw"] = "adamw"
    decayed: Roles = DECAYED
    qk_clip: QKClip | None = None


class Muon(Config):
    """Muon for matrices with AdamW for the rest (specification 4.7): update RMS 0.2 by the 0.2 sqrt(max) factor.

    `cut: per_head` orthogonalises each head's block of a query, key or value matrix alone (K3), `whole` every matrix as
    it is (K2). Experts are always taken one by one.
    """

    kind: Literal["muon"] = "muon"
    learning_rate: PositiveFloat
    momentum: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.1, ge=0)  # of matrices, if they are decayed
    cut: Literal["whole", "per_head"] = "whole"
    rest: AdamWRule
    decayed: Roles = DECAYED
    qk_clip: QKClip | None = None


OptimizerConfig = Annotated[AdamW | Muon, Field(discriminator="kind")]

"""How is a token sent to a few of many experts, and what does that cost? Plain and latent mixture of experts.

Both are specification 4.5: a float32 router with sigmoid scores, top-k of score plus balancing bias, weights from the
raw scores renormalised over the chosen ones, and shared experts as one GLU at full width. `MoE` (DeepSeek, K2) runs
routed experts at full width; `LatentMoE` (Stable LatentMoE, K3) between a down-projection, a norm and an
up-projection. How the bias moves is `balancing.py`; the experts' products are `kernels/experts.py`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Generator, Tensor, nn
from torch.nn import functional

from k3ablate.config import parse
from k3ablate.kernels import routing
from k3ablate.kernels.experts import ExpertWeights, experts
from k3ablate.model.balancing import Balancer
from k3ablate.model.feedforward import GLU, ActivationUnion, SiTUGLU, SwiGLU, glu_parameters
from k3ablate.model.norms import RMSNorm, full_precision
from k3ablate.model.slots import BalancingConfig, Dial, FeedForward, FeedForwardConfig, Initialised


class RoutedConfig(FeedForwardConfig):
    """What plain and latent mixtures share: a router, routed experts and shared experts."""

    num_experts: PositiveInt
    num_active: PositiveInt = Field(description="routed experts per token")
    expert_width: PositiveInt = Field(description="hidden width of one expert")

    # Declared here for the methods below; each kind has its own defaults.
    num_shared: PositiveInt
    routed_scale: PositiveFloat
    activation: ActivationUnion

    @model_validator(mode="after")
    def _router_has_a_choice(self) -> Self:
        if self.num_active >= self.num_experts:
            raise ValueError(
                f"num_active is {self.num_active} of num_experts {self.num_experts}, which leaves nothing to choose; "
                f"write num_active below {self.num_experts}, or a dense feed-forward"
            )
        if self.num_active < 2:
            raise ValueError(
                "num_active is 1: the weight of a single expert, renormalised, is always 1, so the router would get "
                "no gradient and never learn; write at least 2"
            )
        return self

    @property
    def is_routed(self) -> bool:
        """There is a router."""
        return True

    @abstractmethod
    def latent_parameters(self, width: int) -> int:
        """Weights between the model width and the routed experts, norm included."""

    @abstractmethod
    def latent_products(self, width: int) -> int:
        """Multiply-adds per token between the model width and the routed experts."""

    @abstractmethod
    def routed_width(self, width: int) -> int:
        """What routed experts take in and give out."""

    def scaled(self, dial: Dial) -> Self:
        """Widths in proportion to the model width, experts in proportion to active ones, shared experts as they are."""
        changes = {"expert_width": dial.width(self.expert_width)}
        if dial.num_active is not None:
            num_experts = round(self.num_experts * dial.num_active / self.num_active)
            changes |= {"num_active": dial.num_active, "num_experts": num_experts}
        return parse(type(self), self.tree() | changes, source="scaled feed-forward")

    def parameters(self, width: int) -> Mapping[str, int]:
        """Groups 'router' (its balancing bias counted, as in the released files), experts, and 'latent' if any."""
        groups = {
            "router": self.num_experts * (width + 1),
            "latent": self.latent_parameters(width),
            "shared_experts": glu_parameters(width, self.num_shared * self.expert_width),
            "routed_experts": self.num_experts * glu_parameters(self.routed_width(width), self.expert_width),
        }
        return {group: count for group, count in groups.items() if count}

    def active_parameters(self, width: int) -> int:
        """All but the routed experts a token does not visit."""
        idle = self.num_experts - self.num_active
        every = sum(self.parameters(width).values())
        return every - idle * glu_parameters(self.routed_width(width), self.expert_width)

    def flops(self, width: int) -> Mapping[str, float]:
        """2 per multiply-add of router, latent projections, shared experts and active experts (specification 5)."""
        products = {
            "router": width * self.num_experts,
            "latent": self.latent_products(width),
            "shared_experts": glu_parameters(width, self.num_shared * self.expert_width),
            "routed_experts": self.num_active * glu_parameters(self.routed_width(width), self.expert_width),
        }
        return {group: 2.0 * count for group, count in products.items() if count}

    def router(self, width: int, balancing: BalancingConfig) -> "Router":
        """The router with its balancer."""
        return Router(width, self.num_experts, self.num_active, self.routed_scale, balancing)

    def experts(self, width: int) -> "Experts":
        """The routed experts."""
        return Experts(self.num_experts, self.routed_width(width), self.expert_width, self.activation)

    def shared_experts(self, width: int) -> GLU:
        """Shared experts of width m as one GLU of width num_shared x m, which is the same function."""
        return GLU(width, self.num_shared * self.expert_width, self.activation)


class MoE(RoutedConfig):
    """Routed experts at full width (K2)."""

    kind: Literal["moe"] = "moe"
    num_shared: PositiveInt = 1
    routed_scale: PositiveFloat = 2.827
    activation: ActivationUnion = SwiGLU()

    def routed_width(self, width: int) -> int:
        """The model width."""
        return width

    def latent_parameters(self, width: int) -> int:
        """Nothing in between."""
        return 0

    def latent_products(self, width: int) -> int:
        """Nothing in between."""
        return 0

    def build(self, width: int, balancing: BalancingConfig) -> "RoutedFeedForward":
        """The module, uninitialised."""
        return RoutedFeedForward(
            self.router(width, balancing), nn.Identity(), self.experts(width), nn.Identity(), self.shared_experts(width)
        )


class LatentMoE(RoutedConfig):
    """Routed experts in a latent of lower width, whose sum is normalised before it returns (K3)."""

    kind: Literal["latent_moe"] = "latent_moe"
    latent_width: PositiveInt
    latent_norm: Literal["rms", "none"] = "rms"
    norm_epsilon: PositiveFloat = 1e-5
    num_shared: PositiveInt = 2
    routed_scale: PositiveFloat = 1.0
    activation: ActivationUnion = SiTUGLU()

    def routed_width(self, width: int) -> int:
        """The latent width."""
        return self.latent_width

    def latent_parameters(self, width: int) -> int:
        """Both projections and the norm's weight."""
        return self.latent_products(width) + (self.latent_width if self.latent_norm == "rms" else 0)

    def latent_products(self, width: int) -> int:
        """Both projections."""
        return 2 * width * self.latent_width

    def scaled(self, dial: Dial) -> Self:
        """As every mixture, and the latent in proportion to the model width."""
        return super().scaled(dial).replaced("latent_width", dial.width(self.latent_width))

    def build(self, width: int, balancing: BalancingConfig) -> "RoutedFeedForward":
        """The module, uninitialised."""
        down = nn.Linear(width, self.latent_width, bias=False)
        up = nn.Linear(self.latent_width, width, bias=False)
        norm = RMSNorm(self.latent_width, self.norm_epsilon) if self.latent_norm == "rms" else nn.Identity()
        return RoutedFeedForward(
            self.router(width, balancing),
            down,
            self.experts(width),
            nn.Sequential(norm, up),
            self.shared_experts(width),
        )


class Routing(NamedTuple):
    """What the router decided for every token."""

    chosen: Tensor  # BTA, expert indices
    weights: Tensor  # BTA, float32, they sum to the routed scale
    auxiliary_loss: Tensor  # float32 scalar


class Router(nn.Module):
    """Sigmoid scores in float32 whatever surrounds it; the balancer's bias decides who is chosen, not how it weighs."""

    def __init__(
        self, width: int, num_experts: int, num_active: int, routed_scale: float, balancing: BalancingConfig
    ) -> None:
        super().__init__()
        self.projection = nn.Linear(width, num_experts, bias=False)
        balancer = balancing.build(num_experts, num_active)
        assert isinstance(balancer, Balancer)
        self.balancer = balancer
        self.num_active = num_active
        self.routed_scale = routed_scale

    def forward(self, x_BTD: Tensor) -> Routing:
        """Experts and weights of every token; training batches are shown to the balancer."""
        with full_precision(x_BTD):
            x_ND, matrix_ED = x_BTD.float().flatten(0, 1), self.projection.weight.float()
            scores_NE = functional.linear(x_ND, matrix_ED).sigmoid()
            chosen_NA = routing.choose(scores_NE.detach(), self.balancer.bias_E, self.num_active)
            weights_NA = routing.weigh(scores_NE, chosen_NA, x_ND, matrix_ED, self.routed_scale)
        scores_BTE, chosen_BTA, weights_BTA = (
            tensor.view(*x_BTD.shape[:2], -1) for tensor in (scores_NE, chosen_NA, weights_NA)
        )
        auxiliary_loss = self.balancer.observe(scores_BTE, chosen_BTA) if self.training else scores_NE.new_zeros(())
        return Routing(chosen_BTA, weights_BTA, auxiliary_loss)


class Experts(Initialised):
    """The routed experts, their matrices stacked."""

    def __init__(self, num_experts: int, width: int, hidden_width: int, activation: SwiGLU | SiTUGLU) -> None:
        super().__init__()
        self.gate_EFL = nn.Parameter(torch.empty(num_experts, hidden_width, width))
        self.up_EFL = nn.Parameter(torch.empty(num_experts, hidden_width, width))
        self.down_ELF = nn.Parameter(torch.empty(num_experts, width, hidden_width))
        self.activation = activation

    def initialise(self, generator: Generator, std: float) -> None:
        """Normal, like every other matrix."""
        for matrices in (self.gate_EFL, self.up_EFL, self.down_ELF):
            nn.init.normal_(matrices, std=std, generator=generator)

    def forward(self, x_BTL: Tensor, decision: Routing) -> Tensor:
        """Weighted sum over each token's experts, BTL."""
        matrices = ExpertWeights(self.gate_EFL, self.up_EFL, self.down_ELF)
        chosen_NA, weights_NA = decision.chosen.flatten(0, 1), decision.weights.flatten(0, 1)
        y_NL = experts(x_BTL.flatten(0, 1), chosen_NA, weights_NA, matrices, self.activation)
        return y_NL.view_as(x_BTL)


class RoutedFeedForward(FeedForward):
    """shared(x) + leave(experts(enter(x))); a latent enters and leaves by projections, a plain mixture as it is."""

    def __init__(self, router: Router, enter: nn.Module, experts: Experts, leave: nn.Module, shared: GLU) -> None:
        super().__init__()
        self.router = router
        self.enter = enter
        self.experts = experts
        self.leave = leave
        self.shared_experts = shared

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """x_BTD -> (y_BTD, auxiliary loss of the balancer)."""
        decision: Routing = self.router(x_BTD)
        routed_BTD = self.leave(self.experts(self.enter(x_BTD), decision))
        return self.shared_experts(x_BTD) + routed_BTD, decision.auxiliary_loss

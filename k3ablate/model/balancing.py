"""How are experts kept evenly loaded? One `Balancer` per router, in four kinds.

A balancer holds the bias that is added to router scores for selection only. During training the router shows it every
batch (`observe`); once per optimizer step, not per micro-batch, `step` moves the bias from what was seen since the
last one. Choosing and weighing experts is `moe.py`; who calls `step` is the training loop.

Formulas: specification 4.6. Sign update: loss-free balancing (arXiv 2408.15664). Auxiliary loss: the sequence-wise one
of DeepSeek-V3 (arXiv 2412.19437, equations 17-20). Quantile Balancing: K3 report, section 2.3.3 and appendix D.
"""

import math
from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn

from k3ablate.config import InputError
from k3ablate.kernels import routing
from k3ablate.model import ranks
from k3ablate.model.slots import BalancingConfig, Initialised


class NoBalancing(BalancingConfig):
    """Nothing acts on the load; it is still counted."""

    kind: Literal["none"] = "none"

    def build(self, num_experts: int, num_active: int) -> "Balancer":
        """A balancer that only counts."""
        return Balancer(num_experts, num_active)


class AuxiliaryLoss(BalancingConfig):
    """coefficient x sum_i f_i P_i per sequence, averaged over sequences (DeepSeek-V3); 1 x coefficient when even."""

    kind: Literal["auxiliary_loss"] = "auxiliary_loss"
    coefficient: PositiveFloat = 1e-3

    def build(self, num_experts: int, num_active: int) -> "Balancer":
        """A balancer whose `observe` returns the loss."""
        return AuxiliaryLossBalancer(num_experts, num_active, self.coefficient)


class SignUpdate(BalancingConfig):
    """Each step moves a bias by `rate` towards the mean load (K2)."""

    kind: Literal["sign_update"] = "sign_update"
    rate: PositiveFloat = 1e-3

    def build(self, num_experts: int, num_active: int) -> "Balancer":
        """A balancer with the sign rule."""
        return SignUpdateBalancer(num_experts, num_active, self.rate)


class Quantile(BalancingConfig):
    """Each step sets a bias to the value at which the expert would have had its fair share of the tokens (K3).

    `histogram` counts margins in `num_bins` bins and is at most one bin width off; `exact` keeps every margin.
    With `momentum` m the new bias is m x old + (1 - m) x quantile.
    """

    kind: Literal["quantile"] = "quantile"
    estimator: Literal["exact", "histogram"] = "histogram"
    num_bins: PositiveInt = 1000
    momentum: float | None = Field(default=None, gt=0, lt=1)

    def build(self, num_experts: int, num_active: int) -> "Balancer":
        """A balancer with the chosen estimator."""
        if self.estimator == "exact":
            return ExactQuantileBalancer(num_experts, num_active, self.momentum)
        return HistogramQuantileBalancer(num_experts, num_active, self.momentum, self.num_bins)


class Balancer(Initialised):
    """Counts loads and leaves the bias alone; the other kinds build on it.

    What is gathered between two steps lies in plain attributes, not buffers: DistributedDataParallel would overwrite
    buffers with those of the first rank. It is empty after every `step`, which is where checkpoints are written.
    """

    bias_E: Tensor  # added to scores for selection only; moved here, never by a gradient
    load_E: Tensor  # tokens each expert received in the last step

    def __init__(self, num_experts: int, num_active: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.num_active = num_active
        self.register_buffer("bias_E", torch.zeros(num_experts))
        self.register_buffer("load_E", torch.zeros(num_experts), persistent=False)
        self._counts_E: Tensor | None = None

    def initialise(self, generator: Generator, std: float) -> None:
        """No bias, nothing seen."""
        nn.init.zeros_(self.bias_E)
        nn.init.zeros_(self.load_E)
        self._forget()

    def observe(self, scores_BTE: Tensor, chosen_BTA: Tensor) -> Tensor:
        """Count one micro-batch (router scores, chosen experts) and return its auxiliary loss, a float32 scalar.

        For training batches only. Activation recomputation calls this a second time, inside the backward pass;
        that call returns the same loss and counts nothing.
        """
        if not _inside_backward():
            with torch.no_grad():
                counts_E = chosen_BTA.flatten().bincount(minlength=self.num_experts)
                self._counts_E = counts_E if self._counts_E is None else self._counts_E + counts_E
                self._gather(scores_BTE.detach().flatten(0, 1), chosen_BTA.flatten(0, 1))
        return self._loss(scores_BTE, chosen_BTA)

    @torch.no_grad()
    def step(self) -> None:
        """Once per optimizer step: publish the load, move the bias, start counting afresh."""
        if self._counts_E is None:
            return  # no training batch since the last step
        counts_E = ranks.summed(self._counts_E)
        self.load_E.copy_(counts_E)
        bias_E = self._next_bias(counts_E)
        self.bias_E.copy_(bias_E - bias_E.mean())  # a constant shift selects the same experts; this one cannot drift
        self._forget()

    @property
    def imbalance(self) -> float:
        """Largest over mean load of the last step: 1 is even, num_experts / num_active the worst; NaN before it."""
        return float(self.load_E.max() / self.load_E.mean())

    def _gather(self, scores_NE: Tensor, chosen_NA: Tensor) -> None:
        """Keep from a micro-batch what `_next_bias` needs beyond the counts."""

    def _loss(self, scores_BTE: Tensor, chosen_BTA: Tensor) -> Tensor:
        return torch.zeros((), device=scores_BTE.device)

    def _next_bias(self, counts_E: Tensor) -> Tensor:
        """The bias after a step with these loads, not centred."""
        return self.bias_E

    def _forget(self) -> None:
        self._counts_E = None


class AuxiliaryLossBalancer(Balancer):
    """A loss pulls scores down where loads are high."""

    def __init__(self, num_experts: int, num_active: int, coefficient: float) -> None:
        super().__init__(num_experts, num_active)
        self.coefficient = coefficient

    def _loss(self, scores_BTE: Tensor, chosen_BTA: Tensor) -> Tensor:
        """coefficient x sum_i f_i P_i, averaged over sequences.

        f_i: share of a sequence's selections that fell on expert i, times E; it has no gradient.
        P_i: mean over the sequence of the scores normalised over experts.
        """
        length = scores_BTE.shape[1]
        chosen_BE = torch.zeros_like(scores_BTE[:, 0]).scatter_add_(
            1, chosen_BTA.flatten(1), torch.ones_like(chosen_BTA.flatten(1), dtype=scores_BTE.dtype)
        )
        fraction_BE = chosen_BE * (self.num_experts / (self.num_active * length))
        probability_BE = (scores_BTE / scores_BTE.sum(-1, keepdim=True)).mean(1)
        return self.coefficient * (fraction_BE * probability_BE).sum(-1).mean()


class SignUpdateBalancer(Balancer):
    """bias += rate x sign(mean load - load)."""

    def __init__(self, num_experts: int, num_active: int, rate: float) -> None:
        super().__init__(num_experts, num_active)
        self.rate = rate

    def _next_bias(self, counts_E: Tensor) -> Tensor:
        # mean - load as sum - E x load: exact in whole numbers, so that an even load gives no sign
        return self.bias_E + self.rate * torch.sign(counts_E.sum() - self.num_experts * counts_E)


class QuantileBalancer(Balancer):
    """The bias at which an expert's (1 - num_active / num_experts) quantile of margins is zero.

    The distance of a token to an expert (the negative margin) is the token's cutoff minus the raw score: with a bias
    of that size the expert reaches the cutoff. With cutoffs held fixed, an expert takes the tokens of least distance.
    """

    def __init__(self, num_experts: int, num_active: int, momentum: float | None) -> None:
        super().__init__(num_experts, num_active)
        self.momentum = momentum

    def _next_bias(self, counts_E: Tensor) -> Tensor:
        bias_E = self._quantile(fair_load=int(counts_E.sum()) / self.num_experts)
        return bias_E if self.momentum is None else torch.lerp(bias_E, self.bias_E, self.momentum)

    @abstractmethod
    def _quantile(self, fair_load: float) -> Tensor:
        """Per expert, the distance that `fair_load` tokens stay below."""


class ExactQuantileBalancer(QuantileBalancer):
    """Keeps every distance of the step: N x E numbers. For one process; several ranks need the histogram."""

    def __init__(self, num_experts: int, num_active: int, momentum: float | None) -> None:
        super().__init__(num_experts, num_active, momentum)
        self._distances_NE: list[Tensor] = []

    def _gather(self, scores_NE: Tensor, chosen_NA: Tensor) -> None:
        if ranks.num_ranks() > 1:
            raise InputError("balancing.estimator: 'exact' sees one process only; write histogram to train on several")
        self._distances_NE.append(routing.distances(scores_NE, self.bias_E, chosen_NA))

    def _quantile(self, fair_load: float) -> Tensor:
        """The (fair load + 1)-th smallest distance, the (fair load + 1)-th largest margin of the specification."""
        return torch.cat(self._distances_NE).kthvalue(math.floor(fair_load) + 1, dim=0).values

    def _forget(self) -> None:
        super()._forget()
        self._distances_NE = []


class HistogramQuantileBalancer(QuantileBalancer):
    """Counts distances in equal bins over [min bias - 1, max bias + 1], which holds them all."""

    def __init__(self, num_experts: int, num_active: int, momentum: float | None, num_bins: int) -> None:
        super().__init__(num_experts, num_active, momentum)
        self.num_bins = num_bins
        self._histogram_EH: Tensor | None = None  # H bins

    def _gather(self, scores_NE: Tensor, chosen_NA: Tensor) -> None:
        counts_EH = routing.distance_histogram(scores_NE, self.bias_E, chosen_NA, self.num_bins)
        self._histogram_EH = counts_EH if self._histogram_EH is None else self._histogram_EH + counts_EH

    def _quantile(self, fair_load: float) -> Tensor:
        """Linear inside the first bin whose cumulative count reaches the fair load."""
        assert self._histogram_EH is not None
        histogram_EH = ranks.summed(self._histogram_EH)
        lowest, bin_width = routing.bin_edges(self.bias_E, self.num_bins)
        cumulative_EH = histogram_EH.cumsum(1, dtype=torch.int32)
        fair_E1 = torch.full_like(cumulative_EH[:, :1], math.ceil(fair_load))
        bin_E1 = torch.searchsorted(cumulative_EH, fair_E1)
        inside_E = histogram_EH.gather(1, bin_E1).squeeze(1)
        before_E = cumulative_EH.gather(1, bin_E1).squeeze(1) - inside_E
        return lowest + (bin_E1.squeeze(1) + ((fair_load - before_E) / inside_E).clamp(0, 1)) * bin_width

    def _forget(self) -> None:
        super()._forget()
        self._histogram_EH = None


def _inside_backward() -> bool:
    """Whether this thread is inside a backward pass, where a forward can only be a recomputation.

    torch's own checkpointing asks the same question in the same way.
    """
    return torch._C._current_graph_task_id() != -1

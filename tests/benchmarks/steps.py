"""What is a training step here? Models at the demo's sizes, and the barest loop that trains one."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from k3ablate.config import parse
from k3ablate.experiment import load
from k3ablate.kernels.pages import keep_pages
from k3ablate.model.counting import count
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.sizes import Size, matched, scaled
from k3ablate.recipes import recipe

VOCABULARY = 256
DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"

keep_pages()  # as every worker does


def demo_size(name: str) -> Size:
    """A size of the demo."""
    return next(size for size in load(DEMO).sizes if size.name == name)


def k2(size: Size) -> ModelConfig:
    """K2 at a size of the demo."""
    return scaled(parse(ModelConfig, recipe("model", "kimi-k2"), source="kimi-k2"), size, VOCABULARY)


def k3(size: Size, context: int) -> ModelConfig:
    """K3 with the FLOPs per token that K2 has at this size and context."""
    reference = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")
    return matched(reference, size, VOCABULARY, k2(size), "flops_per_token", context)


def built(config: ModelConfig) -> Decoder:
    """The decoder with its initial weights."""
    decoder = Decoder(config)
    initialise(decoder, Generator().manual_seed(0), 0.02)
    return decoder


@dataclass
class Step:
    """Forward, backward, clipping, AdamW and balancing; nothing else."""

    model: nn.Module
    batch_size: int
    context: int

    @cached_property
    def optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)

    @cached_property
    def tokens_BT(self) -> Tensor:  # noqa: N802 - a tensor's name
        shape = (self.batch_size, self.context + 1)
        return torch.randint(VOCABULARY, shape, generator=Generator().manual_seed(1))

    def __call__(self) -> None:
        output = self.model(self.tokens_BT[:, :-1])
        logits_BTV, added = output if isinstance(output, tuple) else (output, 0.0)
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), self.tokens_BT[:, 1:].flatten()) + added
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for balancer in self.model.balancers() if isinstance(self.model, Decoder) else ():
            balancer.step()


class BareLayer(nn.Module):
    """Pre-norm attention and SwiGLU, in the fewest calls of torch."""

    def __init__(self, width: int, num_heads: int, hidden_width: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.projections = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate_and_up = nn.Linear(width, 2 * hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        heads = self.projections(self.norms[0](x_BTD)).unflatten(-1, (3 * self.num_heads, -1)).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        x_BTD = x_BTD + self.output(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_and_up(self.norms[1](x_BTD)).chunk(2, dim=-1)
        return x_BTD + self.down(functional.silu(gate) * up)


def bare_transformer(target: ModelConfig, context: int) -> nn.Module:
    """A dense transformer of the depth and width of `target`, its hidden width such that the FLOPs are the same."""
    width, num_heads = target.width, max(1, target.width // 8)
    fixed = 2 * (4 * width * width) + 2 * (context + 1) * width
    goal = count(target, context).flops_per_token - 2 * width * VOCABULARY
    hidden_width = round((goal / target.num_layers - fixed) / (6 * width))
    layers = [BareLayer(width, num_heads, hidden_width) for _ in range(target.num_layers)]
    return nn.Sequential(
        nn.Embedding(VOCABULARY, width), *layers, nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)
    )

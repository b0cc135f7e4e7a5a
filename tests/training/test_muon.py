"""Newton-Schulz by its definition and known spectra, whole matrices as torch's Muon has them, heads one by one."""

import math

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.model.attention import MLA, GatedMLA, Softmax
from k3ablate.model.kda import KDA
from k3ablate.model.slots import MixerConfig
from k3ablate.training.muon import Blocks, MuonWithAdamW, orthogonalise, pieces

WIDTH = 12
LATENT = {"query_rank": 6, "key_value_rank": 5, "head_width": 4, "position_width": 2, "value_width": 3}


def plain_orthogonalised(matrix: Tensor) -> Tensor:
    """Specification 4.7, one matrix at a time."""
    x = matrix / matrix.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (1, 4)])
def test_newton_schulz_is_the_definition_matrix_by_matrix(shape: tuple[int, int]) -> None:
    matrices = gaussian(3, *shape)
    expected = torch.stack([plain_orthogonalised(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonalise(matrices), expected, rtol=1e-4, atol=1e-5)


def test_singular_values_of_a_wide_matrix_come_near_one() -> None:
    for seed in range(10):
        values = torch.linalg.svdvals(orthogonalise(gaussian(1, 32, 256, seed=seed)))
        assert values.min() > 0.65
        assert values.max() < 1.25


def test_a_square_matrix_keeps_a_tail_of_small_singular_values() -> None:
    values = torch.linalg.svdvals(orthogonalise(gaussian(40, 64, 64)))
    assert values.max() < 1.25
    assert values[:, :-4].min() > 0.65
    assert values[:, -1].min() < 0.1


def test_zero_stays_zero() -> None:
    assert torch.equal(orthogonalise(torch.zeros(1, 3, 2)), torch.zeros(1, 3, 2))


@pytest.mark.parametrize("shape", [(32, 256), (256, 32), (128, 128)])
def test_updates_have_the_rms_of_adamw(shape: tuple[int, int]) -> None:
    blocks = Blocks.of(1, *shape)
    rms = (orthogonalise(gaussian(1, *shape)) * blocks.scale).square().mean().sqrt()
    assert blocks.scale == 0.2 * math.sqrt(max(shape))
    assert rms == pytest.approx(0.2 * math.sqrt(min(shape) * max(shape)) / math.sqrt(shape[0] * shape[1]), rel=0.15)


def optimizer_of(weight: nn.Parameter, *cut: Blocks) -> MuonWithAdamW:
    rest = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
    return MuonWithAdamW({weight: cut}, learning_rate=0.02, momentum=0.9, weight_decay=0.3, rest=rest)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6)])
def test_whole_matrices_move_as_torch_moves_them(shape: tuple[int, int]) -> None:
    """Within what bfloat16, in which torch orthogonalises, leaves of a step."""
    ours, theirs = (nn.Parameter(gaussian(*shape)) for _ in range(2))
    settings = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.3}
    optimizers = [
        optimizer_of(ours, Blocks.of(1, *shape)),
        torch.optim.Muon([theirs], nesterov=False, adjust_lr_fn="match_rms_adamw", **settings),
    ]
    before = ours.detach().clone()
    for seed in (1, 2, 3):
        ours.grad, theirs.grad = (gaussian(*shape, seed=seed) for _ in range(2))
        for optimizer in optimizers:
            optimizer.step()
    assert (ours - theirs).norm() < 0.02 * (ours - before).norm()


def stepped(weight: Tensor, gradient: Tensor, *cut: Blocks) -> Tensor:
    parameter = nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    optimizer_of(parameter, *cut).step()
    return parameter.detach()


def test_blocks_that_take_turns_move_as_matrices_of_their_own() -> None:
    """Three heads, each a block of four rows and one of two."""
    weight, gradient = gaussian(18, 5, seed=1), gaussian(18, 5, seed=2)
    moved = stepped(weight, gradient, Blocks.of(3, 4, 5), Blocks.of(3, 2, 5))
    for head in range(0, 18, 6):
        for rows in (slice(head, head + 4), slice(head + 4, head + 6)):
            block = weight[rows]
            alone = stepped(block, gradient[rows], Blocks.of(1, *block.shape))
            torch.testing.assert_close(moved[rows], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "mixer", [Softmax(num_heads=1, num_key_value_heads=1, head_width=4), KDA(num_heads=1, head_width=4)]
)
def test_one_head_is_the_whole_matrix_to_the_last_bit(mixer: MixerConfig) -> None:
    for projection, (num_heads, rows) in mixer.build(WIDTH).head_cuts().items():
        weight, gradient = gaussian(*projection.weight.shape, seed=3), gaussian(*projection.weight.shape, seed=4)
        by_head = stepped(weight, gradient, *(Blocks.of(num_heads, block_rows, WIDTH) for block_rows in rows))
        assert torch.equal(by_head, stepped(weight, gradient, Blocks.of(1, *weight.shape)))


MIXERS = [
    Softmax(num_heads=6, num_key_value_heads=2, head_width=4),
    KDA(num_heads=3, head_width=4),
    MLA(num_heads=3, **LATENT),
    GatedMLA(num_heads=3, **LATENT),
]


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer.kind)
def test_a_block_reaches_the_heads_it_belongs_to_and_no_other(mixer: MixerConfig) -> None:
    module = mixer.build(WIDTH)
    module.output = nn.Identity()  # what the heads found, side by side
    for seed, parameter in enumerate(module.parameters()):
        parameter.data = gaussian(*parameter.shape, seed=seed)
    x_BTD = gaussian(2, 5, WIDTH)

    def heads() -> Tensor:
        return module(x_BTD).detach().unflatten(-1, (mixer.num_heads, -1))

    before = heads()
    for projection, cut in module.head_cuts().items():
        blocks = tuple(Blocks.of(cut.num_heads, rows, projection.in_features) for rows in cut.rows)
        repeats = mixer.num_heads // cut.num_heads
        for piece_NRC in pieces(projection.weight.data, blocks):
            for head in range(cut.num_heads):
                kept = piece_NRC[head].clone()
                piece_NRC[head] += 1
                changed = (heads() != before).any(-1).any(0).any(0).nonzero().flatten().tolist()
                piece_NRC[head] = kept
                assert changed == list(range(head * repeats, (head + 1) * repeats))


def test_a_latent_head_has_a_block_of_keys_and_one_of_values() -> None:
    """The key block alone decides how positions are weighed: without it a head finds the mean of its values."""
    module = MLA(num_heads=3, **LATENT).build(WIDTH)
    assert module.head_cuts() == {module.query_up: (3, (6,)), module.key_value_up: (3, (4, 3))}

"""Do the three residual streams compute what the specification writes, and count what it counts?"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from k3ablate.config import parse
from k3ablate.kernels import attnres, dispatch
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.norms import RMSNorm
from k3ablate.model.residual import AttnResStream, BlockAttnRes, FullAttnRes, Plain
from k3ablate.model.slots import ResidualStream

WIDTH, EPSILON = 16, 1e-12
Sublayer = Callable[[Tensor], Tensor]
Read = Callable[[int, list[Tensor]], Tensor]


def _norms(num_layers: int) -> list[RMSNorm]:
    """One for every reader, with weights that are not ones."""
    norms = [RMSNorm(WIDTH, EPSILON).double() for _ in range(2 * num_layers + 1)]
    generator = torch.Generator().manual_seed(6)
    for norm in norms:
        torch.nn.init.normal_(norm.weight, mean=1.0, generator=generator)
    return norms


def _sublayers(num_layers: int) -> list[Sublayer]:
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2 * num_layers)]
    return [lambda x, matrix=matrix: torch.tanh(x @ matrix) for matrix in matrices]


def _embedding() -> Tensor:
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _initialised(config: FullAttnRes | BlockAttnRes, num_layers: int) -> AttnResStream:
    stream = config.build(WIDTH, num_layers).double()
    for read in stream.reads:
        read.initialise(torch.Generator(), 0.02)
    return stream


def _with_random_queries(config: FullAttnRes | BlockAttnRes, num_layers: int) -> AttnResStream:
    stream = _initialised(config, num_layers)
    generator = torch.Generator().manual_seed(2)
    for parameter in stream.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    return stream


def _run(stream: ResidualStream, sublayers: list[Sublayer]) -> Tensor:
    state = stream.start(_embedding(), _norms(len(sublayers) // 2))
    for site, sublayer in enumerate(sublayers):
        state = stream.write(state, site, sublayer(stream.read(state, site)))
    return stream.finish(state)


def _plain_reads(stream: AttnResStream) -> Read:
    parameters = [(read.query_D, read.key_weight_D) for read in stream.reads]
    weights = [norm.weight for norm in _norms(len(parameters) // 2)]

    def read(site: int, sources: list[Tensor]) -> Tensor:
        mixed = attnres.read_plain(*parameters[site], sources, stream.config.norm_epsilon)
        return functional.rms_norm(mixed, (WIDTH,), weights[site], EPSILON)

    return read


def _equation_10(read: Read, sublayers: list[Sublayer], per_block: int) -> Tensor:
    """K3 report, equation 10, with sublayers as its layers: sums of finished blocks, then the current one if any."""
    outputs: list[Tensor] = []
    for site, sublayer in enumerate([*sublayers, None]):
        blocks = [sum(outputs[start : start + per_block]) for start in range(0, len(outputs), per_block)]
        mixed = read(site, [_embedding(), *blocks])
        if sublayer is None:
            return mixed
        outputs.append(sublayer(mixed))
    raise AssertionError


def _released_loop(read: Read, sublayers: list[Sublayer], layers_per_block: int) -> Tensor:
    """Specification 4.4, what the released model executes."""
    bank: list[Tensor] = []
    partial: Tensor | None = _embedding()
    for layer in range(len(sublayers) // 2):
        x = read(2 * layer, [*bank, partial])
        if layer % layers_per_block == 0:
            bank.append(partial)
            partial = None
        y = sublayers[2 * layer](x)
        partial = y if partial is None else partial + y
        x = read(2 * layer + 1, [*bank, partial])
        partial = partial + sublayers[2 * layer + 1](x)
    return read(len(sublayers), [*bank, partial])


@pytest.mark.parametrize("config", [FullAttnRes(), BlockAttnRes(num_blocks=3), BlockAttnRes()], ids=str)
def test_at_initialisation_the_network_is_the_plain_one(config: FullAttnRes | BlockAttnRes) -> None:
    sublayers = _sublayers(5)
    plain = _run(Plain().build(WIDTH, 5), sublayers)
    torch.testing.assert_close(_run(_initialised(config, 5), sublayers), plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("num_blocks", "layers_per_block"), [(8, 1), (3, 2), (2, 3), (1, 12)])
def test_block_form_is_equation_10_and_the_released_loop(num_blocks: int, layers_per_block: int) -> None:
    sublayers = _sublayers(5)
    stream = _with_random_queries(BlockAttnRes(num_blocks=num_blocks), 5)
    ours = _run(stream, sublayers)
    torch.testing.assert_close(ours, _equation_10(_plain_reads(stream), sublayers, 2 * layers_per_block))
    torch.testing.assert_close(ours, _released_loop(_plain_reads(stream), sublayers, layers_per_block))


def test_full_form_is_equation_10_with_one_sublayer_a_block() -> None:
    sublayers = _sublayers(4)
    stream = _with_random_queries(FullAttnRes(), 4)
    torch.testing.assert_close(_run(stream, sublayers), _equation_10(_plain_reads(stream), sublayers, 1))


def test_plain_stream_is_the_sum_normalised() -> None:
    stream, norms = Plain().build(WIDTH, 2), _norms(2)
    state = stream.start(_embedding(), norms)
    for site in range(4):
        torch.testing.assert_close(stream.reads[site].mixed(state), _embedding() + site)
        torch.testing.assert_close(stream.read(state, site), norms[site](_embedding() + site))
        state = stream.write(state, site, torch.ones(2, 3, WIDTH))
    torch.testing.assert_close(stream.finish(state), norms[4](_embedding() + 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", [Plain(), FullAttnRes(), BlockAttnRes()], ids=str)
def test_writing_leaves_the_earlier_state_as_it_was(
    config: Plain | FullAttnRes | BlockAttnRes, dtype: torch.dtype
) -> None:
    stream = config.build(WIDTH, 3)
    for parameter in stream.parameters():
        torch.nn.init.ones_(parameter)
    norms = [norm.to(dtype) for norm in _norms(3)]
    state = stream.write(stream.start(_embedding().to(dtype), norms), 0, torch.ones(2, 3, WIDTH))
    before = stream.read(state, 1).clone(), stream.reads[1].mixed(state).clone()
    for site in range(1, 4):
        stream.write(state, site, torch.ones(2, 3, WIDTH))
    assert torch.equal(stream.read(state, 1), before[0])
    assert torch.equal(stream.reads[1].mixed(state), before[1])


def test_every_query_and_key_norm_gets_a_gradient_also_the_trivial_one() -> None:
    stream = _with_random_queries(BlockAttnRes(num_blocks=2), 3)
    _run(stream, _sublayers(3)).square().sum().backward()
    largest = [float(parameter.grad.abs().max()) for parameter in stream.parameters()]
    assert largest[:2] == [0.0, 0.0]  # the first read has one source
    assert min(largest[2:]) > 0


def test_counts_at_93_layers_are_those_of_the_specification() -> None:
    full, block = FullAttnRes(), BlockAttnRes()
    assert (full.num_links(93), block.num_links(93)) == (17_578, 1_003)
    assert full.parameters(7168, 93) == block.parameters(7168, 93) == {"attnres": 2_680_832}
    assert block.flops_per_token(7168, 93) == pytest.approx(43.1e6, rel=1e-3)
    assert full.flops_per_token(7168, 93) == pytest.approx(756e6, rel=1e-3)
    assert (Plain().num_links(93), Plain().flops_per_token(7168, 93)) == (0, 0.0)


@pytest.mark.parametrize("config", [FullAttnRes(), BlockAttnRes(num_blocks=3)], ids=str)
def test_counted_links_are_the_sources_read(config: FullAttnRes | BlockAttnRes) -> None:
    num_sources: list[int] = []
    stream = _initialised(config, 5)
    for read in stream.reads:
        read.register_forward_pre_hook(lambda _, arguments: num_sources.append(len(arguments[0].every)))
    _run(stream, _sublayers(5))
    assert sum(num_sources) == config.num_links(5)


def _decoder(residual: FullAttnRes | BlockAttnRes) -> Decoder:
    """Five layers, with queries that are no longer zero."""
    tree = {
        "vocabulary_size": 61,
        "width": 24,
        "num_layers": 5,
        "mixer": {"main": {"kind": "softmax", "num_heads": 3, "num_key_value_heads": 1, "head_width": 8}},
        "feed_forward": {"main": {"kind": "dense", "hidden_width": 32}},
        "residual": residual.tree(),
    }
    decoder = Decoder(parse(ModelConfig, tree, source="test"))
    initialise(decoder, torch.Generator().manual_seed(3), 0.1)
    for read in decoder.residual.reads:
        torch.nn.init.normal_(read.query_D, generator=torch.Generator().manual_seed(4))
    for number, norm in enumerate(decoder.norms()):
        torch.nn.init.uniform_(norm.weight, 0.7, 1.3, generator=torch.Generator().manual_seed(number))
    return decoder


def _loss(decoder: Decoder) -> Tensor:
    tokens_BT = torch.randint(61, (3, 20), generator=torch.Generator().manual_seed(5))
    return functional.cross_entropy(decoder(tokens_BT[:, :-1]).logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())


def _gradients(decoder: Decoder) -> dict[str, Tensor]:
    decoder.zero_grad()
    _loss(decoder).backward()
    return {name: parameter.grad.clone() for name, parameter in decoder.named_parameters()}


@pytest.mark.parametrize("config", [FullAttnRes(), BlockAttnRes(num_blocks=3)], ids=str)
def test_gradients_of_a_decoder_are_those_of_the_definition(
    config: FullAttnRes | BlockAttnRes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a few times what either is from float64: through five layers, rounding grows to 1.4e-4."""
    decoder, gradients = _decoder(config), []
    for kernels in ("attnres=numba", "attnres=torch"):
        monkeypatch.setenv(dispatch.VARIABLE, kernels)
        gradients.append(_gradients(decoder))
        assert dispatch.used()["attnres"] == kernels.removeprefix("attnres=")
    for name, plain in gradients[1].items():
        assert (gradients[0][name] - plain).norm() <= 3e-4 * plain.norm() + 1e-9, name


@pytest.mark.parametrize("kernels", ["attnres=numba", "attnres=torch"])
@pytest.mark.parametrize("config", [FullAttnRes(), BlockAttnRes(num_blocks=3)], ids=str)
def test_layers_may_be_computed_again_in_the_backward(
    config: FullAttnRes | BlockAttnRes, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activation checkpointing of every layer: the same gradients, from fewer tensors kept."""
    monkeypatch.setenv(dispatch.VARIABLE, kernels)
    decoder = _decoder(config)
    expected, kept = _gradients(decoder), _kept(decoder)
    for layer in decoder.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    assert _kept(decoder) < kept / 2
    for name, gradient in _gradients(decoder).items():
        assert torch.equal(gradient, expected[name]), name


def _kept(decoder: Decoder) -> int:
    """Numbers that autograd keeps of a forward pass, parameters and what layers share included, each once."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _loss(decoder)
    return sum(seen.values())


@pytest.mark.parametrize(
    ("num_layers", "num_blocks", "layers_per_block"),
    [(93, 8, 12), (92, 8, 12), (24, 8, 3), (20, 7, 3), (8, 8, 1), (4, 4, 1), (186, 8, 24)],
)
def test_scaling_keeps_the_number_of_blocks(num_layers: int, num_blocks: int, layers_per_block: int) -> None:
    scaled = BlockAttnRes().scaled(num_layers)
    assert scaled.num_blocks == num_blocks
    assert scaled.layers_per_block(num_layers) == layers_per_block


def test_scaling_leaves_streams_without_blocks_alone() -> None:
    for config in (Plain(), FullAttnRes()):
        assert config.scaled(7) == config

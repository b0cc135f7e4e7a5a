"""Are the reads of Attention Residuals what the specification says, and both implementations the same function?"""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional

from k3ablate.kernels import attnres
from k3ablate.kernels.attnres_autograd import start_numba
from k3ablate.kernels.attnres_rows import parts_of
from k3ablate.kernels.vector import LANES

EPSILON, NORM_EPSILON = 1e-5, 1e-2
# batch, positions, width, sources: one of everything, odd numbers, more sources than a block form has
SHAPES = [(1, 1, 1, 1), (2, 3, 5, 1), (1, 7, 33, 4), (3, 5, 16, 25)]


def _inputs(batch: int, length: int, width: int, num_sources: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = Generator().manual_seed(width)
    shapes = [(width,), (width,), *[(batch, length, width)] * num_sources]
    return [torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]


def _written_out(query: Tensor, key_weight: Tensor, sources: list[Tensor]) -> Tensor:
    """Specification 4.4, one token and one source at a time."""
    result = torch.empty_like(sources[0])
    for index in torch.cartesian_prod(*(torch.arange(size) for size in result.shape[:2])).tolist():
        values = [source[tuple(index)] for source in sources]
        scores = [query @ (key_weight * value / (value.square().mean() + EPSILON).sqrt()) for value in values]
        weights = torch.stack(scores).softmax(0)
        result[tuple(index)] = torch.stack([p * value for p, value in zip(weights, values, strict=True)]).sum(0)
    return result


@pytest.mark.parametrize("shape", SHAPES)
def test_definition_is_the_specification(shape: tuple[int, ...]) -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(*shape, dtype=torch.float64))
    mixed = attnres.read_plain(query, key_weight, sources, EPSILON)
    torch.testing.assert_close(mixed, _written_out(query, key_weight, sources))


def test_the_public_reference_agrees() -> None:
    naive = pytest.importorskip("fla.ops.attnres.naive", exc_type=ImportError)
    query, key_weight, *sources = inputs = _inputs(2, 5, 16, 6)
    theirs = naive.naive_attnres(query, sources, key_weight, rms_eps=EPSILON)
    ours = attnres.read_plain(query, key_weight, sources, EPSILON)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours.square().sum(), inputs), torch.autograd.grad(theirs.square().sum(), inputs),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_a_zero_query_reads_the_average_and_weights_sum_to_one() -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(2, 3, 8, 5))
    mean = torch.stack(sources).mean(0)
    torch.testing.assert_close(attnres.read_plain(torch.zeros_like(query), key_weight, sources, EPSILON), mean)
    weights = attnres.read_weights(query, key_weight, sources, EPSILON)
    assert weights.shape == (2, 3, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_what_is_read_is_the_mix_normalised() -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(2, 3, 8, 3, torch.float64))
    norm_weight = torch.randn(8, generator=Generator().manual_seed(3), dtype=torch.float64)
    readers = attnres.Readers([query] * 3, [key_weight] * 3, [norm_weight] * 3, EPSILON, NORM_EPSILON)
    state = attnres.start(readers, sources[0]).started(sources[1]).started(sources[2])
    mixed = _written_out(query, key_weight, sources)
    torch.testing.assert_close(state.mixed(2), mixed)
    scale = (mixed.square().mean(-1, keepdim=True) + NORM_EPSILON).rsqrt()
    torch.testing.assert_close(state.read(2), scale * mixed * norm_weight)


def test_half_precision_sources_are_scored_and_normalised_in_float32() -> None:
    query, key_weight, *sources = (tensor.detach() for tensor in _inputs(2, 3, 64, 4))
    halves = [source.bfloat16() for source in sources]
    readers = attnres.Readers([query] * 4, [key_weight] * 4, [key_weight] * 4, EPSILON, NORM_EPSILON)
    written = attnres.start(readers, halves[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for half in halves[1:]:
            written = written.started(half)
        mixed, normalised = written.mixed(3), written.read(3)
    precise = attnres.read_plain(query, key_weight, [half.float() for half in halves], EPSILON)
    assert mixed.dtype is normalised.dtype is torch.bfloat16
    torch.testing.assert_close(mixed, precise.bfloat16())
    expected = functional.rms_norm(mixed.float(), (64,), key_weight, NORM_EPSILON)
    assert torch.equal(normalised, expected.bfloat16())


class Passes:
    """Forward passes over writes with the same inputs, in numba or by the definition.

    `pattern` says of each write after the embedding whether it starts a source (s) or adds to one (a).
    """

    def __init__(
        self,
        start: attnres.Start,
        pattern: str,
        tokens: tuple[int, ...],
        width: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.start, self.pattern, self.dtype = start, pattern, dtype
        self.generator = Generator().manual_seed(len(pattern) + 100 * width)
        num_readers = len(pattern) + 1
        self.queries = [self.random(width, scale=width**-0.5) for _ in range(num_readers)]
        self.key_weights = [self.random(width) for _ in range(num_readers)]
        self.norm_weights = [self.random(width) for _ in range(num_readers)]
        self.outputs = [self.random(*tokens, width) for _ in range(num_readers)]
        self.given = [self.random(*tokens, width).detach() for _ in range(num_readers)]

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        """The same numbers in either precision."""
        drawn = scale * torch.randn(*shape, generator=self.generator)
        return drawn.to(self.dtype).requires_grad_()

    def states(self) -> list[attnres.Sources]:
        """Before the first write and after each."""
        readers = attnres.Readers(self.queries, self.key_weights, self.norm_weights, EPSILON, NORM_EPSILON)
        states = [self.start(readers, self.outputs[0])]
        for kind, output in zip(self.pattern, self.outputs[1:], strict=True):
            states.append(states[-1].started(output) if kind == "s" else states[-1].added(output))
        return states

    def read(self) -> list[Tensor]:
        """What each reader gets."""
        return [state.read(reader) for reader, state in enumerate(self.states())]

    def loss(self, *readers: int) -> Tensor:
        """Has the gradients `given` at what these readers get, or all."""
        read = self.read()
        return sum((read[reader] * self.given[reader]).sum() for reader in readers or range(len(read)))

    @property
    def leaves(self) -> list[Tensor]:
        """Everything with a gradient."""
        return [*self.outputs, *self.queries, *self.key_weights, *self.norm_weights]

    def gradients(self, loss: Tensor, **options: bool) -> list[Tensor]:
        """With respect to all leaves; zeros where nothing arrives."""
        return list(torch.autograd.grad(loss, self.leaves, materialize_grads=True, **options))


def both(pattern: str, tokens: tuple[int, ...] = (2, 19), width: int = 17) -> tuple[Passes, Passes]:
    """Numba and, in float64, the definition."""
    return (
        Passes(start_numba, pattern, tokens, width),
        Passes(attnres.start_plain, pattern, tokens, width, torch.float64),
    )


def assert_same(ours: list[Tensor], plain: list[Tensor]) -> None:
    """To 1e-5 of the size of each tensor."""
    for number, (one, other) in enumerate(zip(ours, plain, strict=True)):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-7, number


BLOCKS = "saaasaaasa"  # as block attention residuals write


@pytest.mark.parametrize("pattern", ["", "s", "a", "ssssssss", BLOCKS, 24 * "s"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 130])
@pytest.mark.parametrize("tokens", [(1, 1), (3, 11)])
def test_numba_equals_the_definition_in_values_and_gradients(pattern: str, tokens: tuple[int, ...], width: int) -> None:
    """To 1e-5 or, where products cancel, as in a width of 1, about as well as the definition in float32."""
    ours, plain = both(pattern, tokens, width)
    rounded = Passes(attnres.start_plain, pattern, tokens, width)
    results = [[*passes.read(), *passes.gradients(passes.loss())] for passes in (ours, rounded, plain)]
    for number, (one, other, exact) in enumerate(zip(*results, strict=True)):
        assert (one - exact).norm() <= max(1e-5 * exact.norm(), 10 * (other - exact).norm()), number


def test_the_first_read_is_the_embedding_normalised() -> None:
    passes = Passes(start_numba, "ss", (2, 19), 17)
    embedding, norm_weight = passes.outputs[0], passes.norm_weights[0]
    plain = functional.rms_norm(embedding, (17,), norm_weight, NORM_EPSILON)
    torch.testing.assert_close(passes.read()[0], plain)
    loss, learned = passes.loss(0), [passes.queries[0], passes.key_weights[0]]
    ours = torch.autograd.grad(loss, [embedding, norm_weight], retain_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(plain, [embedding, norm_weight], passes.given[0]))
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, learned))


def test_no_tokens_are_no_trouble() -> None:
    passes = Passes(start_numba, "sa", (0, 5), 17)
    assert passes.read()[2].shape == (0, 5, 17)
    assert not any(gradient.any() for gradient in passes.gradients(passes.loss()))


def test_outputs_may_be_views() -> None:
    whole = torch.randn(3, 2, 16, generator=Generator().manual_seed(2))
    results = []
    for passes, leaf in zip(both("sa", (2, 3), 8), (whole, whole.double()), strict=True):
        leaf = leaf.clone().requires_grad_()
        passes.outputs = [leaf[..., :8].transpose(0, 1), leaf[..., ::2].transpose(0, 1), leaf[..., 8:].transpose(0, 1)]
        results.append(list(torch.autograd.grad(passes.loss(), [leaf, *passes.queries])))
    assert_same(*results)


@pytest.mark.parametrize("start", [attnres.start_plain, start_numba])
@pytest.mark.parametrize("pattern", ["s", "a"])
def test_a_value_that_is_not_a_number_stays_one(start: attnres.Start, pattern: str) -> None:
    passes = Passes(start, pattern, (1, 2), 4)
    with torch.no_grad():
        passes.outputs[1][0, 1, 2] = torch.nan
    read = passes.read()[1]
    assert read[0, 0].isfinite().all()
    assert read[0, 1].isnan().all()
    gradients = passes.gradients(read.sum())
    assert all(gradient.isnan().any() for gradient in (*gradients[:2], gradients[-1]))


@pytest.mark.parametrize("readers", [(0,), (4,), (0, 4), (3, 10)])
def test_readers_without_a_gradient_add_nothing(readers: tuple[int, ...]) -> None:
    ours, plain = both(BLOCKS)
    assert_same(ours.gradients(ours.loss(*readers)), plain.gradients(plain.loss(*readers)))


@pytest.mark.parametrize("pattern", ["ssss", BLOCKS])
def test_a_graph_may_be_used_again_also_after_a_pass_for_some_gradients_only(pattern: str) -> None:
    ours, plain = both(pattern)
    loss, expected = ours.loss(), plain.gradients(plain.loss())
    for leaf in (ours.outputs[-1], ours.queries[2], ours.outputs[2]):
        torch.autograd.grad(loss, leaf, retain_graph=True)
    for _ in range(2):
        assert_same(ours.gradients(loss, retain_graph=True), expected)
    (2 * loss).backward(retain_graph=True)
    assert_same([leaf.grad for leaf in ours.leaves], [2 * gradient for gradient in expected])


@pytest.mark.parametrize("wanted", [(0,), (3,), (10, 12), (11,), (25,), (33,), (36, 40)])
def test_only_some_gradients(wanted: tuple[int, ...]) -> None:
    results = [
        list(torch.autograd.grad(passes.loss(), [passes.leaves[index] for index in wanted])) for passes in both(BLOCKS)
    ]
    assert_same(*results)


@pytest.mark.parametrize("frozen", [slice(0, 1), slice(4, 6), slice(0, 11), slice(11, 33), slice(33, None)])
def test_what_needs_no_gradient_gets_none(frozen: slice) -> None:
    """The embedding, two outputs, all outputs, all queries and key weights, all norm weights."""
    results = []
    for passes in both(BLOCKS):
        for leaf in passes.leaves[frozen]:
            leaf.requires_grad_(False)
        needing = [leaf for leaf in passes.leaves if leaf.requires_grad]
        results.append(list(torch.autograd.grad(passes.loss(), needing)))
    assert_same(*results)


def test_without_gradients_values_are_the_same_and_nothing_is_recorded() -> None:
    passes = Passes(start_numba, BLOCKS, (2, 19), 17)
    recorded = passes.read()
    with torch.no_grad():
        for plain, read in zip(recorded, passes.read(), strict=True):
            assert torch.equal(plain, read)
            assert not read.requires_grad


def test_what_is_normalised_can_be_seen() -> None:
    ours, plain = both(BLOCKS)
    with torch.no_grad():
        seen = [[state.mixed(reader) for reader, state in enumerate(passes.states())] for passes in (ours, plain)]
    assert_same(*seen)


def test_values_may_be_used_outside_reads() -> None:
    results = []
    for passes in both(BLOCKS):
        states = passes.states()
        used = states[5].current.square().sum() + (states[-1].finished[1] * states[-1].every[0]).sum()
        loss = used + states[-1].read(len(BLOCKS)).sum()
        results.append(passes.gradients(loss))
    assert_same(*results)


def test_a_state_may_be_read_twice_and_by_another_reader() -> None:
    results = []
    for passes in both(BLOCKS):
        state = passes.states()[6]
        read = [state.read(reader) for reader in (6, 6, 2, 9)]
        loss = sum((number + 1) * x.square().sum() for number, x in enumerate([*read, state.mixed(6)]))
        results.append([*read, *passes.gradients(loss)])
    assert_same(*results)


def test_two_continuations_of_one_state() -> None:
    results = []
    for passes in both("ssa"):
        state = passes.states()[2]
        branches = [
            state.started(passes.outputs[3]),
            state.added(2 * passes.outputs[3]),
            state.added(passes.outputs[1]),
        ]
        loss = sum((branch.read(3) * branch.started(passes.outputs[0]).read(4 - 1)).sum() for branch in branches)
        results.append(passes.gradients(loss))
    assert_same(*results)


def test_the_same_bits_every_time() -> None:
    passes = Passes(start_numba, BLOCKS, (3, 50), 40)
    first, second = ([*passes.read(), *passes.gradients(passes.loss())] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(("tokens", "width"), [((4, 4096), 8), ((3, 700), 130)])
def test_many_tokens_make_parts_and_lose_no_precision(tokens: tuple[int, ...], width: int) -> None:
    assert parts_of(tokens[0] * tokens[1], width)[0] > 1
    ours, plain = both("sas", tokens, width)
    assert_same([*ours.read(), *ours.gradients(ours.loss())], [*plain.read(), *plain.gradients(plain.loss())])


@pytest.mark.parametrize("num_tokens", [0, 1, 16, 17, 1023, 1024, 5000, 2**20])
@pytest.mark.parametrize("width", [1, 17, 128, 7168])
def test_parts_have_all_tokens_and_are_worth_a_thread(num_tokens: int, width: int) -> None:
    num_parts, part = parts_of(num_tokens, width)
    assert part % LANES == 0
    assert (num_parts - 1) * part < max(num_tokens, 1) <= max(num_parts, 1) * part
    assert num_parts <= 32
    assert num_parts <= 1 or part * width > 2**15


def test_the_same_bits_with_any_number_of_threads() -> None:
    passes = Passes(start_numba, BLOCKS, (3, 700), 130)
    results = []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            results.append([*passes.read(), *passes.gradients(passes.loss())])
    finally:
        torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(one, same) for one, same in zip(results[0], other, strict=True))


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_gradients_do_not_outlive_a_backward_nor_values_their_graph() -> None:
    passes = Passes(start_numba, BLOCKS, (2, 3), 8)
    states, kept = passes.states(), []
    ledger = states[0].step.ledger
    states[4].read(4).register_hook(lambda gradient: kept.append(weakref.ref(gradient)))
    states[2].read(2).register_hook(lambda _: kept.append(weakref.ref(ledger.gradients[-1])))
    loss = sum(state.read(reader).square().sum() for reader, state in enumerate(states))
    loss.backward()
    assert [gradient() for gradient in kept] == [None, None]
    values = [
        weakref.ref(value) for reader, state in enumerate(states) for value in (state.current, state.read(reader))
    ]
    del states, loss
    assert not any(value() is not None for value in values)

"""Curves at equal loss: planted ratios, smoothing that keeps them, dips that do not count, intervals over seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.config import InputError
from k3ablate.fits.training_curves import (
    TrainingCurve,
    default_targets,
    first_reached,
    log_spent,
    mean_over_seeds,
    ratio,
    shared_losses,
    smooth,
)

FLOOR, SCALE, EXPONENT = 1.5, 4.0, 0.25
TOKENS = np.arange(1, 2001) * 1024.0


def planted(multiplier: float = 1.0, noise: np.ndarray | float = 0.0, seed: int | None = 0, window: float = 0.1,
            tokens: np.ndarray = TOKENS) -> TrainingCurve:  # fmt: skip
    loss = FLOOR + SCALE * (multiplier * tokens / 1024) ** -EXPONENT + noise
    return TrainingCurve(seed, smooth(tokens, loss, window), {"tokens": tokens, "flops": 6e5 * tokens})


@pytest.mark.parametrize("window", [0.0, 0.01, 0.1, 0.5])
def test_smoothing_is_the_mean_of_what_was_logged_until_then(window: float) -> None:
    tokens = np.cumsum(np.random.default_rng(0).uniform(1, 100, 300))
    loss = np.random.default_rng(1).normal(3.0, 1.0, 300)
    plain = [
        loss[: n + 1][tokens[: n + 1] > (1 - window) * tokens[n]] if window else loss[n : n + 1] for n in range(300)
    ]
    assert smooth(tokens, loss, window) == pytest.approx([values.mean() for values in plain])


def test_smoothing_never_looks_ahead() -> None:
    loss = np.random.default_rng(1).normal(3.0, 1.0, 2000)
    changed = loss.copy()
    changed[1000:] = 99.0
    assert (smooth(TOKENS, loss, 0.3)[:1000] == smooth(TOKENS, changed, 0.3)[:1000]).all()


@pytest.mark.parametrize("window", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("multiplier", [0.7, 1.25, 3.0])
def test_a_run_that_needs_m_times_fewer_tokens_has_ratio_m_at_every_loss(multiplier: float, window: float) -> None:
    reference, run = planted(window=window), planted(multiplier, window=window)
    lowest, highest = shared_losses([reference, run])
    losses = np.linspace(lowest, 0.1 * highest + 0.9 * lowest, 40)  # windows of many steps
    for axis in ("tokens", "flops"):
        found = log_spent([reference], axis, losses)[0] - log_spent([run], axis, losses)[0]
        assert np.exp(found) == pytest.approx(multiplier, rel=0.01)


def test_tokens_to_a_loss_are_those_of_the_curve_without_smoothing() -> None:
    losses = np.array([2.2, 2.5, 3.0])
    exact = 1024 * ((losses - FLOOR) / SCALE) ** (-1 / EXPONENT)
    assert np.exp(log_spent([planted(window=0.0)], "tokens", losses))[0] == pytest.approx(exact, rel=1e-4)
    late = np.exp(log_spent([planted(window=0.1)], "tokens", losses))[0] / exact
    assert ((late > 1.03) & (late < 1.07)).all()  # half the window, as is printed


def test_a_dip_that_is_taken_back_does_not_count() -> None:
    loss = np.array([5.0, 4.0, 2.0, 4.0, 3.5, 3.0, 2.9, 2.5])
    curve = TrainingCurve(0, loss, {"tokens": np.arange(1.0, 9.0)})
    assert first_reached(curve, np.array([2.8]))[0] > 6


@given(st.lists(st.floats(1, 9), min_size=3, max_size=30), st.floats(1, 9))
def test_no_loss_is_met_before_the_smoothed_curve_is_there(losses: list[float], target: float) -> None:
    curve = TrainingCurve(0, np.array(losses), {"tokens": np.arange(1.0, len(losses) + 1)})
    (position,) = first_reached(curve, np.array([target]))
    if np.isfinite(position):
        assert min(losses[: int(np.ceil(position)) + 1]) <= target + 1e-9


def test_losses_out_of_reach_and_in_the_warm_up_have_no_position() -> None:
    curve = TrainingCurve(0, np.array([5.0, 4.0, 3.0, 2.0]), {"tokens": np.arange(1.0, 5.0)}, start=2)
    never, inside, early = first_reached(curve, np.array([1.5, 2.5, 4.5]))
    assert never == np.inf
    assert 2 < inside < 3
    assert np.isnan(early)


def test_default_losses_are_the_lowest_of_all_and_earlier_ones_of_the_reference() -> None:
    reference, run = planted(window=0.0), planted(0.8, window=0.0)
    losses = default_targets([[reference], [run]])
    assert losses[0] == run.loss_N[-1]
    spent = np.exp(log_spent([reference], "tokens", losses))[0]
    assert spent[0] / spent == pytest.approx([1, 2, 4, 8], rel=0.01)


def test_curves_without_a_common_loss_are_refused_with_their_ranges() -> None:
    low = TrainingCurve(0, np.array([2.0, 1.5]), {"tokens": np.array([1.0, 2.0])})
    high = TrainingCurve(0, np.array([4.0, 3.0]), {"tokens": np.array([1.0, 2.0])})
    with pytest.raises(InputError, match=r"no loss that every run meets.*2\.0000 to 1\.5000; 4\.0000 to 3\.0000"):
        default_targets([[low], [high]])


def test_pairs_count_where_seeds_are_shared_and_intervals_are_students() -> None:
    reference, run = np.log([[10.0], [20.0], [40.0]]), np.log([[20.0], [8.0], [5.0]])
    found = ratio(reference, run, [0, 1, 2], [2, 1, 0])
    assert found.value_G[0] == pytest.approx((2 * 2.5 * 2) ** (1 / 3))
    assert found.degrees_of_freedom == 2
    assert found.method == "paired over seeds 0, 1, 2"
    half = 4.302652729749462 * np.std(np.log([2, 2.5, 2]), ddof=1) / np.sqrt(3)
    assert np.log(found.high_G[0] / found.value_G[0]) == pytest.approx(half)


def test_only_shared_seeds_enter_a_paired_ratio() -> None:
    reference, run = np.log([[10.0], [20.0], [99.0]]), np.log([[5.0], [10.0]])
    assert ratio(reference, run, [0, 1, 2], [0, 1]).value_G[0] == pytest.approx(2.0)


def test_other_seeds_are_not_paired() -> None:
    found = ratio(np.log([[10.0], [20.0]]), np.log([[5.0], [8.0]]), [0, 1], [100, 101])
    assert found.value_G[0] == pytest.approx(np.sqrt(10 * 20 / 40))
    assert found.method.startswith("Welch")
    squares = [np.var(np.log(values), ddof=1) / 2 for values in ([10, 20], [5, 8])]
    assert found.degrees_of_freedom == pytest.approx(sum(squares) ** 2 / (squares[0] ** 2 + squares[1] ** 2))


def test_one_seed_has_no_interval() -> None:
    found = ratio(np.log([[10.0]]), np.log([[5.0]]), [0], [0])
    assert found.value_G[0] == pytest.approx(2.0)
    assert found.interval(0) is None
    assert found.method.startswith("no interval")
    assert mean_over_seeds(np.log([[10.0]])).interval(0) is None


@pytest.mark.parametrize("others", [False, True], ids=["paired", "other seeds"])
def test_the_interval_over_seeds_covers_the_planted_ratio(others: bool) -> None:
    generator, multiplier, hits, num_draws = np.random.default_rng(3), 1.25, 0, 500
    tokens = np.arange(1, 1001, 5) * 1024.0
    loss = np.array([2.7])
    for _ in range(num_draws):
        pairs = []
        for seed in range(3):
            batch = generator.normal(0, 0.03, (1 + others, len(tokens)))  # runs of one seed see the same tokens
            own = generator.normal(0, 0.03, (2, len(tokens))) + generator.normal(0, 0.01, (2, 1))
            curves = [planted(factor, batch[row * others] + own[row], seed + 10 * others * row, tokens=tokens)
                      for row, factor in enumerate((1.0, multiplier))]  # fmt: skip
            pairs.append(curves)
        groups = list(zip(*pairs, strict=True))
        logs, seeds = zip(*((log_spent(g, "tokens", loss), [c.seed for c in g]) for g in groups), strict=True)
        interval = ratio(logs[0], logs[1], seeds[0], seeds[1]).interval(0)
        assert interval is not None
        hits += interval.contains(multiplier)
    assert 0.92 <= hits / num_draws <= 0.98

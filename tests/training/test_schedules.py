"""Schedules against known values, and one way to write a warm-up."""

import math
from collections.abc import Callable

import pytest

from k3ablate.config import InputError, parse
from k3ablate.training.schedules import Constant, Cosine, Linear, ScheduleConfig, Warmup, WarmupStableDecay, factor
from k3ablate.training.spec import RunSpec


def test_cosine_known_values() -> None:
    schedule = Cosine(warmup_fraction=0.1, final_fraction=0.2)
    values = [factor(schedule, step, 100) for step in (0, 4, 9, 10, 55, 99)]
    last = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 89 / 90))
    assert values == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.6, last])


def test_k3_warms_up_for_one_percent() -> None:
    assert [factor(Cosine(), step, 1000) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])


def test_warmup_stable_decay_known_values() -> None:
    schedule = WarmupStableDecay(warmup_fraction=0.02, decay_fraction=0.4, final_fraction=0.1)
    values = [factor(schedule, step, 100) for step in (0, 1, 2, 60, 80)]
    assert values == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.55])


def test_k2_warms_up_for_so_many_steps_whatever_the_length() -> None:
    schedule = WarmupStableDecay(warmup_steps=500)
    for num_steps in (1_000, 200_000):
        assert [factor(schedule, step, num_steps) for step in (0, 249, 499)] == pytest.approx([0.002, 0.5, 1.0])


def test_linear_and_constant_known_values() -> None:
    assert [factor(Linear(warmup_fraction=0.0), step, 11) for step in (0, 1, 6)] == pytest.approx([1.0, 1.0, 0.5])
    assert [factor(Constant(warmup_fraction=0.5), step, 8) for step in (0, 3, 7)] == [0.25, 1.0, 1.0]


@pytest.mark.parametrize("schedule", [Cosine(), WarmupStableDecay(), Linear(), Constant(), Cosine(warmup_steps=1)])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 50, 997])
def test_schedules_rise_to_the_peak_and_never_rise_again(schedule: ScheduleConfig, num_steps: int) -> None:
    values = [factor(schedule, step, num_steps) for step in range(num_steps)]
    peak = values.index(1.0)
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert min(values) > 0  # no step is wasted


@pytest.mark.parametrize("kind", [Cosine, WarmupStableDecay, Linear, Constant])
def test_a_warmup_enters_a_digest_one_way(kind: type[Warmup]) -> None:
    assert kind().digest() == kind(warmup_fraction=0.01).digest()
    assert kind().digest() == kind(warmup_fraction=0.01, warmup_steps=None).digest()
    by_steps = kind(warmup_steps=5)
    assert by_steps.warmup_fraction is None
    for schedule in (kind(), by_steps):
        assert parse(kind, schedule.tree(), source="test") == schedule


def test_two_lengths_of_a_warmup_are_refused() -> None:
    with pytest.raises(InputError, match=r"warmup_fraction 0.01 and warmup_steps 500 both .* write one"):
        parse(Cosine, Cosine().tree() | {"warmup_steps": 500}, source="test")


def test_a_warmup_longer_than_the_run_is_refused(tiny_spec: Callable[..., RunSpec]) -> None:
    assert tiny_spec(training__schedule={"kind": "wsd", "warmup_steps": 12}).num_steps == 12
    with pytest.raises(InputError, match=r"warmup_steps is 13 and the run has 12 steps.*write fewer"):
        tiny_spec(training__schedule={"kind": "wsd", "warmup_steps": 13})

"""How long does a split take, which part of it is not the fitting, and how long does the power of its plan?

A factorial of 16 arms, 5 sizes and 3 seeds with 1,000 draws, planted with and without a floor. The wanted time is under
30 s; the figures are CPU time of one process, taken in turns. Whether the numbers are right is tested elsewhere.
"""

import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import pandas
import pytest

from k3ablate.fits.analysis import analyse
from k3ablate.fits.attribution import split as attribute_all
from k3ablate.fits.coalitions import design
from k3ablate.fits.split import coalitions
from k3ablate.planning import power
from k3ablate.splitting import split

COMPONENTS = ("attention", "residual", "feed_forward", "balancing")
GAINS = (0.4, 0.25, 0.15, 0.0)
ROUNDS = 5


def factorial(floor: float, num_sizes: int = 5, num_seeds: int = 3) -> pandas.DataFrame:
    """One finished run per arm, size and seed."""
    generator, rows = np.random.default_rng(0), []
    compute = np.geomspace(1e17, 1e20, num_sizes)
    for switched in itertools.product((False, True), repeat=len(COMPONENTS)):
        gain = float(np.dot(switched, GAINS))
        arm = "".join(f"+{name}" for name, on in zip(COMPONENTS, switched, strict=True) if on) or "k2"
        levels = {name: "k3" if on else "k2" for name, on in zip(COMPONENTS, switched, strict=True)}
        for size, seed in itertools.product(range(num_sizes), range(num_seeds)):
            loss = floor + 120 * (compute[size] * np.exp(gain)) ** -0.1
            noise = np.exp(0.001 * generator.standard_normal())
            rows.append({"arm": arm, "size": size, "seed": seed, "loss": loss * noise, "flops": compute[size]} | levels)
    return pandas.DataFrame(rows)


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.parametrize("floor", [0.0, 1.5], ids=["power", "power_floor"])
def test_a_factorial_of_sixteen_arms(capsys: pytest.CaptureFixture[str], floor: float) -> None:
    table = factorial(floor)
    calls: dict[str, Callable[[], object]] = {
        "split": lambda: split(table),
        "analysis alone": lambda: analyse(table, "k2", None, np.random.default_rng(0)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            seconds[name].append(cpu_seconds(call))
    with capsys.disabled():
        for name, found in seconds.items():
            print(f"\n{name}, 16 arms x 5 sizes x 3 seeds, 1,000 draws, floor {floor}: "
                  f"median {statistics.median(found):.2f} s of CPU, {min(found):.2f} to {max(found):.2f}")  # fmt: skip


@pytest.mark.parametrize("count", [4, 8])
def test_the_sums_alone(capsys: pytest.CaptureFixture[str], count: int) -> None:
    names = [f"c{index}" for index in range(count)]
    subsets = coalitions([f"{name}=k3" for name in names])
    arms = {
        "+".join(sorted(subset)) or "k2": {change.removesuffix("=k3"): "k3" for change in subset} for subset in subsets
    }
    planned, generator = design(arms, "k2"), np.random.default_rng(0)
    values = {subset: generator.normal(size=1001) for subset in planned.arms}
    found = [cpu_seconds(lambda: attribute_all(planned, values, {})) for _ in range(ROUNDS)]
    with capsys.disabled():
        print(f"\nsums of {count} components, {len(subsets)} arms, 1,000 draws: median "
              f"{statistics.median(found):.3f} s of CPU, {min(found):.3f} to {max(found):.3f}")  # fmt: skip


def test_the_power_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    planned = factorial(0.0).drop(columns="loss")
    found = [cpu_seconds(lambda: power(planned)) for _ in range(3)]
    with capsys.disabled():
        print(f"\npower, 16 arms x 5 sizes x 3 seeds, 200 tables of 119 draws: median {statistics.median(found):.1f} s "
              f"of CPU, {min(found):.1f} to {max(found):.1f}")  # fmt: skip

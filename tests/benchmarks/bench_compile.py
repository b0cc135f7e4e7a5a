"""What does `torch.compile` cost and give on a CPU? A compiled step against an eager one, at the demo's sizes.

Each case runs in a process of its own, with nothing compiled before. With `auto` the kernels of `k3ablate/kernels` stay
as they are and graphs end around each; with `torch` the plain forms are compiled along with the rest.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from steps import Step, built, demo_size, k2, k3
from torch._dynamo import trace_rules
from torch._dynamo.utils import counters
from torch.nn import functional

from k3ablate.kernels.dispatch import AUTO, VARIABLE

COMPILER = os.environ.get("CXX", "g++")
CONTEXT, ROUNDS = 128, 15

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"compiled code needs a C++ compiler: {COMPILER}"
)


@pytest.mark.parametrize("kernels", [AUTO, "torch"])
@pytest.mark.parametrize("model", ["k2", "k3"])
@pytest.mark.parametrize("size", ["s", "m"])
def test_compiled_step(size: str, model: str, kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = subprocess.run(
        [sys.executable, __file__, model, size],
        env={**os.environ, VARIABLE: kernels, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured = json.loads(answer.stdout.splitlines()[-1])
    with capsys.disabled():
        print(f"\ncompiled {model} step, {size}, 8 x {CONTEXT}, kernels {kernels}:")
        print("   " + ", ".join(f"{name} {number:.4g}" for name, number in measured.items()))


def measure(model: str, size_name: str) -> dict[str, float]:
    """Seconds of the first step, ratios of later ones, graphs and the breaks between them, difference of losses."""
    size = demo_size(size_name)
    config = k2(size) if model == "k2" else k3(size, CONTEXT)
    for module in ("k3ablate.kernels", "numba"):  # Dynamo fails inside numba's dispatcher
        if os.environ[VARIABLE] == AUTO:
            trace_rules.add(module)
    eager, compiled = (Step(built(config), 8, CONTEXT) for _ in range(2))
    Step(built(config), 8, CONTEXT)()  # loads the kernels
    compiled.model.compile()
    start = time.perf_counter()
    losses = [difference(eager, compiled)]
    first_call = time.perf_counter() - start
    losses += [difference(eager, compiled) for _ in range(4)]
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, step in (("eager", eager), ("compiled", compiled)):
            seconds.setdefault(f"{name} wall", []).append(elapsed(time.perf_counter, step))
            seconds.setdefault(f"{name} cpu", []).append(elapsed(time.thread_time, step))
    medians = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    return {
        "first call s": first_call,
        "eager ms": medians["eager cpu"],
        "compiled ms": medians["compiled cpu"],
        "ratio of CPU time": medians["compiled cpu"] / medians["eager cpu"],
        "ratio of wall time": medians["compiled wall"] / medians["eager wall"],
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "largest difference of five losses": max(losses),
    }


def difference(one: Step, other: Step) -> float:
    """Of their losses before a step of each."""
    losses = [loss(step) for step in (one, other)]
    one(), other()
    return abs(losses[0] - losses[1])


def loss(step: Step) -> float:
    logits_BTV, _ = step.model(step.tokens_BT[:, :-1])
    return float(functional.cross_entropy(logits_BTV.detach().flatten(0, 1), step.tokens_BT[:, 1:].flatten()))


def elapsed(clock: Callable[[], float], call: Callable[[], Any]) -> float:
    start = clock()
    call()
    return clock() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(*sys.argv[1:])))

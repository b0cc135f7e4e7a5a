"""A step of K2 against a bare dense transformer, of K3 against K2, and of `train` against a bare loop."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from steps import DEMO, Step, bare_transformer, built, demo_size, k2, k3

from k3ablate.experiment import load
from k3ablate.plan import expand
from k3ablate.tracking import prepare, tracker
from k3ablate.training.corpus import Corpus, CorpusFacts, SetFacts
from k3ablate.training.run import train
from k3ablate.training.spec import Execution, RunSpec

PEAK = """
import sys, torch
from pathlib import Path
from steps import Step, built, demo_size, k2, k3
torch.set_num_threads(1)
name, context, batch_size, length = sys.argv[1], *map(int, sys.argv[2:])
size = demo_size("m")
Step(built(k2(size) if name == "k2" else k3(size, context)), batch_size, length)()
print(next(line.split()[1] for line in Path('/proc/self/status').read_text().splitlines() if line.startswith('VmHWM')))
"""


def test_k2_against_dense(compare: Callable[..., None]) -> None:
    config = k2(demo_size("m"))
    others = {"bare dense transformer": Step(bare_transformer(config, 128), 8, 128)}
    compare("K2 step, m, 8 x 128", "K2", Step(built(config), 8, 128), others, rounds=15)


@pytest.mark.parametrize("context", [256, 1024])
def test_k3_against_k2(compare: Callable[..., None], context: int) -> None:
    size = demo_size("m")
    others = {"K2": Step(built(k2(size)), 16, context)}
    compare(f"K3 step, m, 16 x {context}", "K3", Step(built(k3(size, context)), 16, context), others, rounds=7)


@pytest.mark.parametrize("context", [256, 1024])
@pytest.mark.parametrize("model", ["k2", "k3"])
def test_peak_memory(model: str, context: int, capsys: pytest.CaptureFixture[str]) -> None:
    """How far a process of its own grows above what a step on 8 tokens needs, in MiB."""
    peaks = []
    for shape in ((1, 8), (16, context)):
        answer = subprocess.run(
            [sys.executable, "-c", PEAK, model, str(context), *map(str, shape)],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(answer.stdout) / 1024)
    with capsys.disabled():
        print(f"\npeak memory of a {model} step, m, 16 x {context}: {peaks[1] - peaks[0]:.0f} MiB")


@pytest.mark.filterwarnings("ignore")
def test_overhead_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning, callbacks, metrics, MLflow and data against a bare loop on the same model and batch size."""
    rows = expand(load(DEMO), lambda _: "c0ffee").rows
    spec = next(row.spec for row in rows if (row.label.size, row.label.arm) == ("s", "k2"))
    spec = spec.model_copy(update={"tokens": 120 * spec.training.tokens_per_step})
    corpus = random_corpus(tmp_path / "corpus", spec)
    prepare(tmp_path, "demo", b"{}")
    bare = Step(built(spec.model), spec.training.batch_size, spec.training.context)
    bare()
    ratios = []
    for seed in range(5):
        start = time.perf_counter()
        for _ in range(spec.num_steps):
            bare()
        alone = time.perf_counter() - start
        run = spec.model_copy(update={"seed": seed})
        folder = tmp_path / run.digest()
        record = train(run, folder, corpus, Execution(), tracker(tmp_path, folder, str(seed), {}))
        ratios.append(record.wall_seconds / alone)
    with capsys.disabled():
        print(f"\ntrain over a bare loop, s, {spec.num_steps} steps: {' '.join(f'{ratio:.3f}' for ratio in ratios)}")


def random_corpus(folder: Path, spec: RunSpec) -> Corpus:
    """Token files of the sizes that the run wants."""
    folder.mkdir()
    draw, sets = np.random.default_rng(0), {}
    for name in ("train", "validation"):
        num_tokens = 2 * (spec.tokens if name == "train" else spec.training.validation_tokens)
        draw.integers(0, spec.model.vocabulary_size, num_tokens).astype(np.uint8).tofile(folder / f"{name}.tokens")
        sets[name] = SetFacts(num_tokens=num_tokens, num_bytes=num_tokens, num_documents=1)
    facts = {"name": spec.corpus, "recipe": spec.data, "sets": sets, "dropped": {}}
    return Corpus(folder, CorpusFacts.model_validate(facts))

"""Runs that cost nothing, for tests of the launcher; also a launcher of its own: `fake_runs.py ROOT TRAINER NUM_RUNS`.

Worker processes import this file by name, so it lies on the path of whoever starts them.
"""

import fcntl
import io
import os
import platform
import signal
import sys
import time
from pathlib import Path

from k3ablate.config import InputError
from k3ablate.jobs import leases
from k3ablate.jobs.local import run_grid
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.worker import SPIN_VARIABLE, Task
from k3ablate.model.attention import Softmax
from k3ablate.model.counting import count
from k3ablate.model.decoder import FeedForwardPattern, MixerPattern, ModelConfig
from k3ablate.model.feedforward import Dense
from k3ablate.plan import PlanRow
from k3ablate.records import Evaluation, Label, RunRecord, Status
from k3ablate.training import stopping
from k3ablate.training.optimizers import AdamW
from k3ablate.training.schedules import Constant
from k3ablate.training.spec import DataRecipe, Execution, PythonSources, RunSpec, TrainingConfig

if "FAKE_HOST" in os.environ:  # this process, launcher or worker, is on a machine of its own with a shared folder
    platform.node = lambda: os.environ["FAKE_HOST"]
    fcntl.flock = lambda descriptor, kind: None
    leases.BEAT_SECONDS, leases.STALE_SECONDS = 0.2, 4.0

UNLUCKY = 1  # the seed of the run that something happens to
DISK_FULL = 28


def make_spec(seed: int, tokens: int = 1024) -> RunSpec:
    mixer = MixerPattern(main=Softmax(num_heads=2, num_key_value_heads=1, head_width=4))
    model = ModelConfig(
        vocabulary_size=256,
        width=8,
        num_layers=1,
        mixer=mixer,
        feed_forward=FeedForwardPattern(main=Dense(hidden_width=16)),
    )
    return RunSpec(
        model=model,
        data=DataRecipe(source=PythonSources(validation=("json",), out_of_distribution=("email",))),
        corpus="c0ffee",
        training=TrainingConfig(optimizer=AdamW(learning_rate=1e-3), schedule=Constant()),
        tokens=tokens,
        seed=seed,
    )


def make_row(seed: int, tokens: int = 1024) -> PlanRow:
    spec = make_spec(seed, tokens)
    counts = count(spec.model, spec.training.context)
    label = Label("fake", "k2", "s", seed, spec.digest(), {"attention": "k2"}, 0.0)
    return PlanRow(label, spec, counts, tokens, counts.training_flops(tokens))


def make_record(spec: RunSpec, status: Status = Status.FINISHED) -> RunRecord:
    counts = count(spec.model, spec.training.context)
    evaluation = Evaluation(loss=2.0 + spec.seed / 100, bits_per_byte=2.9, num_tokens=64)
    return RunRecord(
        digest=spec.digest(),
        status=status,
        reason="" if status is Status.FINISHED else f"{status} on purpose",
        evaluations={"validation": evaluation} if status is Status.FINISHED else {},
        num_steps=spec.num_steps,
        tokens=spec.tokens,
        flops=counts.training_flops(spec.tokens),
        flops_6nd=counts.training_flops_6nd(spec.tokens),
        active_params=counts.active_params,
        total_params=counts.total_params,
        wall_seconds=1.5,
        tokens_per_second=500.0,
        corpus=spec.corpus,
    )


def num_attempts(folder: Path) -> int:
    """How often a trainer of this file met the run."""
    log = folder / "attempts.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0


def note_attempt(task: Task) -> None:
    with (task.folder.path / "attempts.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    print(f"training {task.name}")


def finish(spec: RunSpec, task: Task, execution: Execution) -> None:
    note_attempt(task)
    task.folder.write_record(make_record(spec))


def diverge(spec: RunSpec, task: Task, execution: Execution) -> None:
    note_attempt(task)
    task.folder.write_record(make_record(spec, Status.DIVERGED))


def unlucky_raises(spec: RunSpec, task: Task, execution: Execution) -> None:
    if spec.seed == UNLUCKY:
        note_attempt(task)
        raise ZeroDivisionError("one seed too many")
    finish(spec, task, execution)


def unlucky_dies(spec: RunSpec, task: Task, execution: Execution) -> None:
    if spec.seed == UNLUCKY:
        note_attempt(task)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    finish(spec, task, execution)


def unlucky_dies_once(spec: RunSpec, task: Task, execution: Execution) -> None:
    trainer = finish if num_attempts(task.folder.path) else unlucky_dies
    trainer(spec, task, execution)


def unlucky_fills_the_disk(spec: RunSpec, task: Task, execution: Execution) -> None:
    if spec.seed == UNLUCKY:
        raise OSError(DISK_FULL, "No space left on device", str(task.folder.path / "checkpoints" / "last.ckpt"))
    finish(spec, task, execution)


def unlucky_meets_wrong_input(spec: RunSpec, task: Task, execution: Execution) -> None:
    if spec.seed == UNLUCKY:
        raise InputError("K3ABLATE_KERNELS: kda=foo: no such kernel; write auto")
    finish(spec, task, execution)


def reports_threads(spec: RunSpec, task: Task, execution: Execution) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", SPIN_VARIABLE)
    versions = {name: os.environ[name] for name in names}
    task.folder.write_record(make_record(spec).model_copy(update={"versions": versions}))


def slow(spec: RunSpec, task: Task, execution: Execution) -> None:
    time.sleep(0.5)
    finish(spec, task, execution)


def endless(spec: RunSpec, task: Task, execution: Execution) -> None:
    note_attempt(task)
    (task.folder.path / "checkpoints").mkdir(exist_ok=True)
    (task.folder.path / "checkpoints" / "step-1.ckpt").touch()
    time.sleep(600)
    raise AssertionError("nobody stopped this run")


def endless_once(spec: RunSpec, task: Task, execution: Execution) -> None:
    trainer = finish if num_attempts(task.folder.path) else endless
    trainer(spec, task, execution)


def obedient(spec: RunSpec, task: Task, execution: Execution) -> None:
    """Ends when it is asked to; whoever takes it up after that finds it easy."""
    if num_attempts(task.folder.path):
        finish(spec, task, execution)
        return
    note_attempt(task)
    (task.folder.path / "checkpoints").mkdir(exist_ok=True)
    (task.folder.path / "checkpoints" / "step-1.ckpt").touch()
    while not stopping.requested():
        time.sleep(0.05)
    raise stopping.Stopped


def last_is_obedient(spec: RunSpec, task: Task, execution: Execution) -> None:
    """Of a pack, the longest first: all end at once but the shortest."""
    (obedient if spec.seed == 0 else finish)(spec, task, execution)


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts tests in the background ignores it
    root, trainer, num_runs = Path(sys.argv[1]), globals()[sys.argv[2]], int(sys.argv[3])
    run_grid([make_row(seed) for seed in range(num_runs)], root, Execution(), 2, reporter(io.StringIO()), trainer)


if __name__ == "__main__":
    main()

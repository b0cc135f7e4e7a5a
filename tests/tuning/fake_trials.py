"""Trials that cost nothing, for tests of studies; also a process of its own: `fake_trials.py ROOT [dies]`.

A run is a folder named after its values; whoever holds it notes an attempt, waits and leaves a record.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from k3ablate.config import digest
from k3ablate.jobs import leases
from k3ablate.records import Evaluation, RunRecord, Status, read_record, write_record
from k3ablate.search import TPE, Range, Tuning
from k3ablate.storage import append_line
from k3ablate.tuning.study import Asked, Runner, Study, conduct

RATE = "training.optimizer.learning_rate"
BEST = 7e-3
TUNING = Tuning(trials=12, sampler=TPE(startup=8, parallel=2), sizes=("xs",), space={RATE: Range(low=1e-3, high=1e-1)})
ATTEMPTS = "attempts.txt"
SECONDS = 0.2  # of a run in a process of its own


def studies(tuning: Tuning = TUNING) -> list[Study]:
    return [Study(f"{arm}/xs", arm, "xs", tuning) for arm in ("k2", "k3")]


def make_record(name: str, status: Status, loss: float) -> RunRecord:
    return RunRecord(
        digest=name,
        status=status,
        reason="" if status is Status.FINISHED else f"{status} on purpose",
        evaluations={"validation": Evaluation(loss=loss, bits_per_byte=loss, num_tokens=1)}
        if status is Status.FINISHED
        else {},
        num_steps=1,
        tokens=1,
        flops=1,
        flops_6nd=1,
        active_params=1,
        total_params=1,
        wall_seconds=1,
        tokens_per_second=1,
        corpus="c0ffee",
    )


def loss_of(one: Asked) -> float:
    rate = float(one.values[RATE])
    return 3 + 20 * abs(rate - BEST)


def train(folder: Path, one: Asked, seconds: float) -> None:
    """Train the run in `folder` unless it has a record or somebody holds it."""
    if leases.held(folder) is leases.Held.YES:
        return
    with leases.claimed(folder) as lease:
        if lease is not None and read_record(folder, folder.name) is None:
            append_line(folder / ATTEMPTS, str(one.number))
            if sys.argv[2:] == ["dies"]:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(seconds)
            status = Status.DIVERGED if float(one.values[RATE]) > 5e-2 else Status.FINISHED
            write_record(make_record(folder.name, status, loss_of(one)), folder)


def runner(root: Path, seconds: float = 0.0) -> Runner:
    """As the launcher does it: train what nobody holds, then wait for what somebody does."""

    def run(asked: Sequence[Asked]) -> list[RunRecord]:
        folders = [root / digest([one.study.arm, dict(one.values)]) for one in asked]
        while True:
            for folder, one in zip(folders, asked, strict=True):
                folder.mkdir(exist_ok=True, parents=True)
                train(folder, one, seconds)
            records = [read_record(folder, folder.name) for folder in folders]
            if None not in records:
                return [record for record in records if record is not None]
            time.sleep(0.05)

    return run


def num_attempts(root: Path) -> dict[str, int]:
    """How often each run was begun."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in root.glob(f"*/{ATTEMPTS}")}


def main() -> None:
    root = Path(sys.argv[1])
    conduct(root / "tuning", studies(), runner(root / "runs", SECONDS))


if __name__ == "__main__":
    main()

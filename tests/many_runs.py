"""Many processes that each follow a run into one store: `many_runs.py ROOT NUM_PROCESSES`, a digest per process.

MLflow is loaded once, by opening another store before the processes part: 64 times would take minutes.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from k3ablate import tracking
from k3ablate.mlflow_store import Store
from k3ablate.records import RunRecord, Status, write_record

NUM_STEPS = 50
PARTS = 5  # a checkpoint after each


def digest_of(number: int) -> str:
    return f"{number:016x}"


def follow(root: Path, number: int) -> None:
    """Leave what a run leaves, over some seconds, and follow it."""
    folder = root / digest_of(number)
    (folder / "checkpoints").mkdir(parents=True)
    tracker = tracking.tracker(root, folder, f"run {number}", {"arm": "k2"})
    tracker.start()
    for part in range(1, PARTS + 1):
        steps = range((part - 1) * NUM_STEPS // PARTS, part * NUM_STEPS // PARTS)
        lines = [json.dumps({"step": step, "seconds": step / 10, "loss": 5 - step / 100}) + "\n" for step in steps]
        with (folder / "metrics.jsonl").open("a") as file:
            file.write("".join(lines))
        (folder / "checkpoints" / f"step-{steps.stop:09d}.ckpt").touch()
        time.sleep(1)
    record = RunRecord(
        digest=folder.name, status=Status.DIVERGED, reason="on purpose", num_steps=NUM_STEPS, tokens=100, flops=1e6,
        flops_6nd=1e6, active_params=10, total_params=20, wall_seconds=5.0, tokens_per_second=33.0, corpus="c",
    )  # fmt: skip
    write_record(record, folder)
    tracker.finish()


def main() -> None:
    root, num_processes = Path(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        Store(f"sqlite:///{folder}/mlflow.db").ask()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=follow, args=(root, number)) for number in range(num_processes)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes if process.exitcode != 0])


if __name__ == "__main__":
    main()

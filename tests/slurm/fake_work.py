"""The command of a task whose runs cost nothing: `fake_work.py TRAINER PACKS`, with a trainer of `fake_runs`.

Like the real one it leaves torch to the worker, which `fake_runs` needs.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate.jobs.launch import carry_out
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.worker import Task

if TYPE_CHECKING:
    from k3ablate.training.spec import Execution, RunSpec

TRAINER = "FAKE_TRAINER"


def train(spec: "RunSpec", task: Task, execution: "Execution") -> None:
    getattr(importlib.import_module("fake_runs"), os.environ[TRAINER])(spec, task, execution)


def main() -> None:
    os.environ[TRAINER] = sys.argv[1]
    carried = carry_out(Path(sys.argv[2]), reporter(sys.stderr), train)
    assert "torch" not in sys.modules, "the launcher starts fast and stays small"
    sys.exit(3 if carried.num_left else 0)


if __name__ == "__main__":
    main()

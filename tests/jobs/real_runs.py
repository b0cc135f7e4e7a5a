"""A run of a second or two that really trains, with its corpus, for launchers and schedulers of several processes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from fake_runs import make_row

from k3ablate.jobs.folders import corpora_folder
from k3ablate.plan import PlanRow
from k3ablate.storage import write_atomic
from k3ablate.training.corpus import CorpusFacts, SetFacts

NUM_TOKENS = {"train": 200_000, "validation": 3_000}
ATTEMPT = """
import pickle, sys
from pathlib import Path
from k3ablate.jobs.folders import prepare
from k3ablate.jobs.worker import Task, attempt, train_run
from k3ablate.training import stopping
row, root, execution = pickle.loads(Path(sys.argv[1]).read_bytes())
stopping.listen()
print(attempt(Task(prepare(root, row.spec), "run", {}), execution.model_dump_json(), train_run))
"""  # what a worker does with one task, as a script


def make_real_row(root: Path, num_steps: int) -> PlanRow:
    """Four sequences of eight tokens a step; its corpus lies below `root`."""
    made: PlanRow = make_row(0)
    assert made.spec is not None
    spec = made.spec.replaced("training.context", 8).replaced("training.batch_size", 4)
    spec = spec.replaced("training.validation_tokens", 64).replaced("tokens", 4 * 8 * num_steps)
    sets = {name: SetFacts(num_tokens=num, num_bytes=num - 1, num_documents=1) for name, num in NUM_TOKENS.items()}
    folder = corpora_folder(root) / spec.corpus
    folder.mkdir(parents=True)
    facts = CorpusFacts(name=spec.corpus, recipe=spec.data, sets=sets, dropped={})
    write_atomic(folder / "corpus.json", facts.model_dump_json())
    for name, num in NUM_TOKENS.items():
        np.random.default_rng(0).integers(1, 99, num).astype(np.uint8).tofile(folder / f"{name}.tokens")
    return replace(made, spec=spec, label=replace(made.label, digest=spec.digest()), tokens=spec.tokens)

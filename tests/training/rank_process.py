"""One rank of a run, as a process that a test starts; forked from a server that has imported the heavy libraries."""

import os
import pickle
import traceback
import warnings
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["k3ablate.training.run"])


def start(job: Path, record: Path, errors: Path, place: Mapping[str, str]) -> ForkServerProcess:
    """Train what `job` holds, pickled; the record, or what was raised, is left in a file."""
    process = CONTEXT.Process(target=_train, args=(job, record, errors, {**os.environ, **place}))
    process.start()
    return process


def _train(job: Path, record: Path, errors: Path, environment: Mapping[str, str]) -> None:
    from k3ablate.tracking import NoTracking
    from k3ablate.training.run import train

    os.environ.clear()  # what the server was started with
    os.environ.update(environment)
    warnings.simplefilter("error")
    spec, corpus, execution, folder, prepare = pickle.loads(job.read_bytes())
    exec(prepare, {})
    try:
        found = train(spec, folder, corpus, execution, NoTracking())
    except BaseException:  # noqa: BLE001 - the test judges it
        errors.write_text(traceback.format_exc())
        os._exit(1)  # what waits for other ranks would hold an orderly exit up
    record.write_text(found.model_dump_json())

"""How do several processes train one run? One process (rank) per device, all started together and ended together.

On one node they are children of the worker that holds the run; on several nodes of a Slurm job `srun` starts them. The
worker keeps the store at which they meet and at which the first that fails says why, hands requests to stop on, and
ends all when one ends badly. A rank that died by a signal takes the worker with it by the same signal, so that the
attempt is counted, and the run goes on, as if it were one process. What ranks do together is `training/parallel.py`;
nothing at the top of this file may import torch.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate import storage
from k3ablate.config import Closed, InputError
from k3ablate.jobs import worker
from k3ablate.jobs.folders import RunFolder
from k3ablate.jobs.leases import LEASE_FILE, Lease, LostLease
from k3ablate.kernels.pages import keep_pages
from k3ablate.training import stopping

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from k3ablate.training.spec import Execution

POLL_SECONDS = 0.2
STOP_AGAIN_SECONDS = 1.0  # a rank that is still importing does not hear the first request
LAST_WORD_SECONDS = 1.0  # for the exit of the rank that is to blame, after that of one that lost its connection to it
REPORT = "report"


class RankFailed(Exception):  # noqa: N818 - says of a run what its exception would
    """What a rank raised, as text."""


class Kind(StrEnum):
    """What kept a rank from its end."""

    STOPPED = "stopped"
    INPUT = "input"
    LOST = "lost"
    ERROR = "error"


class Report(Closed):
    """What the first rank that did not come to its end says."""

    kind: Kind
    message: str


class RankJob(Closed):
    """What a rank is told besides its place, which it finds in its environment."""

    folder: str
    name: str
    tags: dict[str, str]
    token: str  # of the lease that its worker holds
    execution: dict[str, object]


def train_on_ranks(task: "worker.Task", execution: "Execution") -> None:
    """Train the run of `task`, whose lease this process holds, on all its ranks; they leave its record.

    Raises what one process would: InputError, Stopped, LostLease; RankFailed for everything else.
    """
    from torch import distributed

    address = platform.node() if execution.num_nodes > 1 else "localhost"
    store = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    lease = _lease(task.folder)
    job = RankJob(
        folder=str(task.folder.path),
        name=task.name,
        tags=dict(task.tags),
        token=lease.token,
        execution=execution.model_dump(mode="json"),
    )
    command = [sys.executable, "-m", "k3ablate.jobs.ranks", job.model_dump_json()]
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(store.port)}
    with _ended(_start(command, meeting, execution)) as ranks:
        _wait(ranks, lease)
        _raise_what_happened(ranks, store)


def main() -> None:
    """A rank: train the run that the first argument tells of, and say why if that fails."""
    stopping.listen()
    threading.Thread(target=_die_with_worker, daemon=True).start()
    keep_pages()
    job = RankJob.model_validate_json(sys.argv[1])
    report = _carry_out(job)
    if report is not None:
        _say(report)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if report is None else 1)  # connections that wait for other ranks would hold an orderly exit up


def _carry_out(job: RankJob) -> Report | None:
    """None if the run has ended."""
    from k3ablate.training.spec import Execution

    folder = RunFolder(Path(job.folder))
    task = worker.Task(folder, job.name, job.tags)
    try:
        with Lease(folder.path, job.token).guards():
            worker.train_here(folder.spec(), task, Execution.model_validate(job.execution))
    except stopping.Stopped as reason:
        return Report(kind=Kind.STOPPED, message=str(reason))
    except LostLease as reason:
        return Report(kind=Kind.LOST, message=str(reason))
    except InputError as error:
        return Report(kind=Kind.INPUT, message=str(error))
    except Exception as error:  # noqa: BLE001 - it is the worker's to judge
        refusal = storage.problem(error)
        if refusal is not None:
            return Report(kind=Kind.INPUT, message=refusal)
        traceback.print_exc()
        return Report(kind=Kind.ERROR, message="".join(traceback.format_exception_only(error)).strip())
    return None


def _say(report: Report) -> None:
    """Unless another rank has said something: the others fail because the first did."""
    from torch import distributed

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    store.compare_set(REPORT, "", report.model_dump_json())


def _die_with_worker() -> None:
    """The worker writes nothing here, and when it is gone, the other end is closed."""
    sys.stdin.buffer.read()
    os._exit(1)


def _lease(folder: RunFolder) -> Lease:
    """That of this process; if another one's lies there instead, the first look finds out."""
    return Lease(folder.path, json.loads((folder.path / LEASE_FILE).read_text(encoding="utf-8"))["token"])


def _start(
    command: Sequence[str], meeting: Mapping[str, str], execution: "Execution"
) -> "list[subprocess.Popen[bytes]]":
    """The processes to wait for: the ranks themselves, or the `srun` that starts them on all nodes of a job."""
    if execution.num_nodes > 1:
        if "SLURM_JOB_ID" not in os.environ:
            raise InputError(
                f"execution.num_nodes is {execution.num_nodes}, and this is no Slurm job; write num_nodes: 1, or "
                "submit the experiment"
            )
        return [_process([*_srun(execution), *command], meeting)]
    places = (
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(execution.num_ranks), "GROUP_RANK": "0"}
        for rank in range(execution.num_ranks)
    )
    return [_process(command, {**meeting, **place}) for place in places]


def _srun(execution: "Execution") -> list[str]:
    """One task per device. It shares the nodes with the step that the worker itself runs in."""
    return [
        "srun",
        "--overlap",
        f"--nodes={execution.num_nodes}",
        f"--ntasks={execution.num_ranks}",
        f"--ntasks-per-node={execution.num_devices}",
        f"--cpus-per-task={execution.num_threads}",
        "--gpu-bind=none",
        "--kill-on-bad-exit=1",
    ]


def _process(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    with _requests_ignored():
        return subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.PIPE)


@contextmanager
def _requests_ignored() -> Iterator[None]:
    """A process that starts inside does not die of a request to stop before it listens; it is asked again."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in stopping.SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _ended(ranks: "list[subprocess.Popen[bytes]]") -> "Iterator[list[subprocess.Popen[bytes]]]":
    """None of them outlives the block."""
    try:
        yield ranks
    finally:
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()  # reaches ranks on other nodes, too
            rank.terminate() if rank.args[0] == "srun" else rank.kill()  # type: ignore[index]
            rank.wait()


def _wait(ranks: "Sequence[subprocess.Popen[bytes]]", lease: Lease) -> None:
    """Until all have ended well or one has not; LostLease once another process holds the run."""
    asked = 0.0
    while any(rank.poll() is None for rank in ranks):
        if any(rank.returncode for rank in ranks):
            time.sleep(LAST_WORD_SECONDS)
            return
        lease.check()
        if stopping.requested() and time.monotonic() - asked > STOP_AGAIN_SECONDS:
            asked = time.monotonic()
            for rank in ranks:
                rank.send_signal(stopping.STOP_SIGNAL)
        time.sleep(POLL_SECONDS)


def _raise_what_happened(ranks: "Sequence[subprocess.Popen[bytes]]", store: "Store") -> None:
    codes = [code for rank in ranks if (code := rank.poll())]
    if not codes:
        return
    deaths = [-code if code < 0 else code - 128 for code in codes if code < 0 or code > 128]  # srun answers as a shell
    if deaths:
        print(f"a rank died with signal {deaths[0]}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), deaths[0])
        time.sleep(LAST_WORD_SECONDS)  # a signal that this process only notes, such as a request to stop
    if not store.check([REPORT]):
        raise RankFailed(f"ranks exited with codes {codes} and said nothing; see the log")
    report = Report.model_validate_json(store.get(REPORT))
    match report.kind:
        case Kind.STOPPED:
            raise stopping.Stopped(report.message)
        case Kind.LOST:
            raise LostLease(report.message)
        case Kind.INPUT:
            raise InputError(report.message)
        case Kind.ERROR:
            raise RankFailed(report.message)


if __name__ == "__main__":
    main()

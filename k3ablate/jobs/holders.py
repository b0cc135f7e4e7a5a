"""Which process holds a run, and does it still live? The content of a lease, and this machine's word on it.

A process is known by its machine, the machine's start, its number and when it started, for names of machines and
numbers of processes come again. How leases are taken and lost is in `leases`.
"""

import os
import platform
from functools import cache
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from k3ablate.config import Closed

LEASE_BYTES = 1024  # a lease is rewritten in place, so its length never changes


class Holder(Closed):
    """The content of a lease."""

    token: str
    host: str
    boot: str  # identifies the machine's start; empty where the system has none
    pid: int
    started: str  # of the process, in the kernel's count: a number is used again, this is not
    job: str  # of the scheduler, or empty
    beat: int

    def content(self) -> bytes:
        """As it lies in the file."""
        data = self.model_dump_json().encode()
        assert len(data) < LEASE_BYTES, "a host's name has 64 letters at most"
        return data.ljust(LEASE_BYTES - 1) + b"\n"


def this_process() -> Holder:
    """This process, with a token of its own and a counter at 0."""
    return Holder(
        token=uuid4().hex,
        host=platform.node(),
        boot=_boot(),
        pid=os.getpid(),
        started=_started(os.getpid()),
        job=scheduler_job(),
        beat=0,
    )


def is_here(holder: Holder) -> bool:
    """Whether it is, or was, a process of this machine since that started."""
    return (holder.host, holder.boot) == (platform.node(), _boot())


def lives(holder: Holder) -> bool:
    """Whether its process is there; False where the system does not tell, and the kernel's lock has to."""
    return holder.started != "" and _started(holder.pid) == holder.started


def read_holder(content: bytes) -> Holder | None:
    """Who it is; None for a lease that a crash or a disk damaged."""
    try:
        return Holder.model_validate_json(content)
    except ValidationError:
        return None


def scheduler_job() -> str:
    """What Slurm calls the job that this process belongs to, or empty."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _started(pid: int) -> str:
    """When process `pid` started, in ticks since the machine did; empty where there is none, or no telling."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, *numbers = stat.rpartition(")")[2].split()  # the name before may hold anything
    return "" if state == "Z" else numbers[18]

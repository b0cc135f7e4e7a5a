"""Who holds a run? One process at a time, also where several machines share the folder.

On one machine the kernel's lock says: it goes when its process dies. Network file systems may keep such locks to one
machine, so the holder also leaves a lease: `lease.json`, created by a link, which is atomic there too, with a counter
that a thread moves while the run is held. Whoever finds the lease of another machine watches its counter. If that
stands still for STALE_SECONDS of the finder's own monotonic clock, the lease is moved aside, which one of several
finders manages, and looked at again: one that moved on meanwhile is put back. A holder that was taken for dead finds
another's lease and must not write any more, which `storage.guarded` sees to. No decision here reads a wall clock;
`beat_is_old` compares two times of the file server, for people who look (`folders`).
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from operator import eq
from pathlib import Path
from uuid import uuid4

from k3ablate.jobs.holders import Holder, is_here, lives, read_holder, this_process
from k3ablate.jobs.locks import is_locked, lock_within
from k3ablate.storage import guarded, naming

LOCK_FILE = "lock"
LEASE_FILE = "lease.json"

BEAT_SECONDS = 5.0
STALE_SECONDS = 120.0  # a kernel that compiles keeps the beating thread waiting, so does a file server that starts anew
CLAIM_SECONDS = 0.5  # how long `claimed` waits for someone who only looks at the lock
ASIDE_SECONDS = 1.0  # how long a lease may be gone while another process looks at it
LOOK_SECONDS = 0.1


class LostLease(Exception):  # noqa: N818 - no error: another process took a run that this one seemed to have left
    """This process was taken for dead and another holds the run now; nothing more may be written to it."""


class Held(Enum):
    """What one look at a run tells of its holder."""

    NO = auto()  # there is no lease
    DEAD = auto()  # its holder was on this machine and is gone
    YES = auto()  # its holder is on this machine and lives
    ELSEWHERE = auto()  # its holder is on another machine, or cannot be read: only its counter tells


@dataclass(frozen=True)
class Lease:
    """The right to write in the folder of a run, for the process that has its token."""

    folder: Path
    token: str

    def is_mine(self) -> bool:
        """Whether it is still held; one that is gone may have been moved aside for a look."""
        for _ in _looks(ASIDE_SECONDS):
            content = _read(self.folder / LEASE_FILE)
            if content is not None:
                return _is_of(self.token, content)
        return False

    def check(self) -> None:
        """LostLease where it is held no more."""
        if not self.is_mine():
            raise LostLease(f"{self.folder}: another process took this run over; it goes on there")

    def guards(self) -> AbstractContextManager[None]:
        """While the block lasts, this process is kept from writing in the folder once the lease is lost."""
        return guarded(self.folder, self.check)


@dataclass
class Watch:
    """Looks at leases again and again, and tells which have stopped beating."""

    seen: dict[Path, tuple[bytes, float]] = field(default_factory=dict)  # content, and when it was first seen

    def is_held(self, folder: Path) -> bool:
        """Whether the run in `folder` is held, as far as one can tell by now. Does not wait."""
        found = held(folder)
        return found is Held.YES or (found is Held.ELSEWHERE and not self.is_stale(folder))

    def is_stale(self, folder: Path) -> bool:
        """Whether the lease has been the same for STALE_SECONDS of looking."""
        now = time.monotonic()
        content = _read(folder / LEASE_FILE) or b""
        before, since = self.seen.get(folder, (None, now))
        if content != before:
            since = now
        self.seen[folder] = content, since
        return now - since >= STALE_SECONDS


@contextmanager
def claimed(folder: Path) -> Iterator[Lease | None]:
    """Hold the run in `folder` while the block lasts; None where another process does.

    Waits for another machine's lease to beat or to be stale. Inside, a write to the folder raises LostLease once the
    run was taken over.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not lock_within(descriptor, CLAIM_SECONDS):
            yield None
            return
        with _leased(folder) as lease:
            yield lease
    finally:
        os.close(descriptor)  # releases the lock


def held(folder: Path) -> Held:
    """What one look tells: at the lease, and at the kernel's lock where the holder is on this machine."""
    content = _read(folder / LEASE_FILE)
    if content is None:
        return Held.NO
    holder = read_holder(content)
    if holder is None or not is_here(holder):
        return Held.ELSEWHERE
    return Held.YES if is_locked(folder / LOCK_FILE) or lives(holder) else Held.DEAD


def job_of_holder(folder: Path) -> str | None:
    """The scheduler's job that holds the run in `folder`, or held it when it died; None where no lease tells."""
    content = _read(folder / LEASE_FILE)
    holder = None if content is None else read_holder(content)
    return None if holder is None else holder.job


def beat_is_old(folder: Path, now: float) -> bool:
    """Whether the lease was last written STALE_SECONDS before `now`, a time of the same file server."""
    try:
        return now - (folder / LEASE_FILE).stat().st_mtime > STALE_SECONDS
    except FileNotFoundError:
        return False


@contextmanager
def _leased(folder: Path) -> Iterator[Lease | None]:
    holder = this_process()
    own = folder / f"{LEASE_FILE}.{holder.token}"
    try:
        descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with naming(own):
                _write(descriptor, holder)
            if not _take(folder, own):
                yield None
                return
            own.unlink()
            lease = Lease(folder, holder.token)
            with _beating(descriptor, holder), lease.guards():
                yield lease
        finally:
            os.close(descriptor)
            _give_back(folder, holder.token)
    finally:
        own.unlink(missing_ok=True)


def _take(folder: Path, own: Path) -> bool:
    """Make `own` the lease; False where another's beats, or another finder was first. The kernel's lock is held."""
    watch = Watch()
    first: bytes | None = None
    while not _link(own, folder / LEASE_FILE):
        found = _read(folder / LEASE_FILE)
        if found is None:
            continue  # it was given back, or moved aside for a look
        if first is not None and found != first:
            return False
        first = found
        if _is_dead_here(found) or watch.is_stale(folder):
            _move_aside(folder, partial(eq, found))
        else:
            time.sleep(LOOK_SECONDS)
    return True


def _give_back(folder: Path, token: str) -> None:
    """Take the lease of `token` away, unless another's is there."""
    for _ in _looks(ASIDE_SECONDS):
        if _read(folder / LEASE_FILE) is not None:
            _move_aside(folder, partial(_is_of, token))
            return


def _move_aside(folder: Path, is_it: Callable[[bytes], bool]) -> None:
    """Take the lease away if it still `is_it`; of several processes one succeeds. Any other is put back."""
    aside = folder / f"{LEASE_FILE}.{uuid4().hex}"
    content = _read(folder / LEASE_FILE)
    if content is None or not is_it(content):
        return
    try:
        (folder / LEASE_FILE).rename(aside)
    except FileNotFoundError:
        return
    try:
        if not is_it(aside.read_bytes()):  # it beat, or became another's, between the look and the move
            _link(aside, folder / LEASE_FILE)
    finally:
        aside.unlink()


@contextmanager
def _beating(descriptor: int, holder: Holder) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=_beat, args=(descriptor, holder, is_over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _beat(descriptor: int, holder: Holder, is_over: threading.Event) -> None:
    """Move the counter until it `is_over`. The file is the one that was linked: never another's lease."""
    while not is_over.wait(BEAT_SECONDS):
        holder = holder.model_copy(update={"beat": holder.beat + 1})
        with suppress(OSError):  # a server that is away for long makes the lease stale, which `Lease.check` finds
            _write(descriptor, holder)


def _is_dead_here(content: bytes) -> bool:
    """Whether its holder was on this machine, whose lock we have, and is gone."""
    holder = read_holder(content)
    return holder is not None and is_here(holder) and not lives(holder)


def _is_of(token: str, content: bytes) -> bool:
    holder = read_holder(content)
    return holder is not None and holder.token == token


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write(descriptor: int, holder: Holder) -> None:
    os.pwrite(descriptor, holder.content(), 0)
    os.fsync(descriptor)


def _link(path: Path, target: Path) -> bool:
    """Give the file at `path` the second name `target`; False where that is taken."""
    try:
        os.link(path, target)
    except FileExistsError:
        return path.stat().st_nlink == 2  # a file server may do it and lose the answer
    return True


def _looks(seconds: float) -> Iterator[None]:
    """Once, and again until `seconds` have passed."""
    deadline = time.monotonic() + seconds
    yield
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        yield

"""Who has the kernel's lock of a file? It goes when its process dies, and may reach no further than one machine.

Where the file system has no locks, everybody gets them: `leases` decides there.
"""

import errno
import fcntl
import os
import time
from pathlib import Path

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LOOK_SECONDS = 0.02


def is_locked(path: Path) -> bool:
    """Whether another open file has the lock; asking takes a shared one for an instant."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def lock_within(descriptor: int, seconds: float) -> bool:
    """Take the lock for oneself until `descriptor` is closed. Who asks has it for an instant, so it is tried again."""
    deadline = time.monotonic() + seconds
    while not _lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True

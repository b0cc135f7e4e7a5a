"""Where do runs lie, and what does a disk's refusal mean? Atomic writes, a probe, and messages that say what to do.

Every write goes through here, so that a process that lost a folder to another can be kept from writing in it
(`guarded`). Nothing here knows what a run is (`jobs.folders`).
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

ROOT_VARIABLE = "K3ABLATE_RUNS"
TEMPORARY = ".tmp"  # ends the names of files that are being written, or were when their process died
PROBE_BYTES = 64 * 1024  # a full disk may still take a few bytes

# What a full or closed disk says; the person who chose the folder can mend it, no run is to blame.
STORAGE_ERRORS = {
    errno.ENOSPC: "the disk is full; free some space, or set {variable} to a folder on another disk",
    errno.EDQUOT: "the disk quota is used up; free some space, or set {variable} to a folder on another disk",
    errno.EACCES: "no permission; set {variable} to a folder that you may write to",
    errno.EPERM: "no permission; set {variable} to a folder that you may write to",
    errno.EROFS: "the file system is read-only; set {variable} to a folder that can be written to",
    errno.ENOTDIR: "a part of this path is a file; name a folder, e.g. by {variable}",
    errno.EEXIST: "is a file; name a folder, e.g. by {variable}",
    errno.EISDIR: "is a folder where a file belongs; move it away, or name another place by {variable}",
    errno.ENOENT: "no such file or folder; create it, or name another place by {variable}",
    errno.ENAMETOOLONG: "this path is too long; name a shorter one by {variable}",
    errno.ELOOP: "its symbolic links lead in a circle; mend them, or name another place by {variable}",
    errno.EIO: "the disk fails to read or write; check it, or set {variable} to a folder on another disk",
    errno.EFBIG: "a file grows larger than is allowed here; raise `ulimit -f`, or set {variable} to a folder elsewhere",
}


def runs_root() -> Path:
    """`runs/` in the working folder, or what K3ABLATE_RUNS says."""
    return Path(os.environ.get(ROOT_VARIABLE) or "runs")


def problem(error: BaseException) -> str | None:
    """Where it happened and what to do, if `error` is the file system's refusal; None if it is anything else."""
    if not isinstance(error, OSError) or error.errno not in STORAGE_ERRORS:
        return None
    where = error.filename or runs_root()
    return f"{where}: {STORAGE_ERRORS[error.errno].format(variable=ROOT_VARIABLE)}"


def require_writable(root: Path) -> None:
    """Create `root` and write a probe in it, so that a full or read-only disk shows before the first run (OSError)."""
    root.mkdir(parents=True, exist_ok=True)
    probe = root / f".probe.{_own()}"
    write_atomic(probe, "0" * PROBE_BYTES)
    probe.unlink()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace the content of `path` in one step; text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    replace_file(path, lambda file: file.write(data))


def replace_file(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Give `path` new content in one step: a reader, or a crash, meets the old or the new. An OSError names `path`."""
    temporary = path.with_name(f"{path.name}.{_own()}{TEMPORARY}")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())  # a file system may report that it is full only then
            _check_guards(path)  # as late as can be: a large file takes a while to write
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def append_line(path: Path, line: str) -> None:
    """Add `line` to a file of lines, apart from a last one that a crash cut off. An OSError names `path`."""
    _check_guards(path)
    with naming(path), path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        apart = b"" if file.read(1) in (b"", b"\n") else b"\n"
        file.write(apart + line.encode() + b"\n")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError inside names `path`: that of a write names no file, that of a temporary file one that is gone."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def server_time(folder: Path) -> float | None:
    """What time it is for the file system of `folder`, by a new file in it; None where none can be written."""
    probe = folder / f".time.{_own()}"
    try:
        probe.touch(exist_ok=True)
        os.utime(probe)  # "now", which a file server reads off its own clock
        return probe.stat().st_mtime
    except OSError:  # somebody else's runs, or a full disk: who looks can do without
        return None
    finally:
        with suppress(OSError):
            probe.unlink()


@contextmanager
def guarded(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, this process calls `check` before it writes below `folder`; what it raises prevents that.

    `folder` is compared as it is spelt. One guard per folder.
    """
    assert folder not in _guards, "a folder is held once"
    _guards[folder] = check
    try:
        yield
    finally:
        del _guards[folder]


def _own() -> str:
    """A part of a name that no other writer uses: processes of two machines may have one number."""
    return uuid4().hex[:12]


_guards: dict[Path, Callable[[], None]] = {}  # by process, like the right to write that they stand for


def _check_guards(path: Path) -> None:
    for folder, check in [*_guards.items()]:
        if path.is_relative_to(folder):
            check()

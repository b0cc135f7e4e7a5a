"""What is a store that is one SQLite file, and how do many processes write to it at once?

Where its file system is this machine's own, the file is switched to write-ahead logging, once, for good: a write then
waits for the disk once instead of several times and no reader stands in its way. On a network such a log would be
damaged, and writers wait longer for each other. Nothing here knows MLflow (`mlflow_store`).
"""

import sqlite3
from contextlib import closing
from pathlib import Path

SQLITE = "sqlite:///"
MOUNTS = Path("/proc/self/mounts")
# On these all who open a file share its memory. Of others, or where there is no list of mounts, the worst is assumed.
OWN_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"}


def file_of(uri: str) -> Path | None:
    """The file that `uri` means; None where the store is none."""
    return Path(uri.removeprefix(SQLITE)).absolute() if uri.startswith(SQLITE) else None


def artifacts_beside(file: Path) -> Path:
    """Where such a store keeps the files of runs."""
    return file.with_name("mlartifacts")


def ease_writing(file: Path) -> None:
    """Write-ahead logging, where it is safe."""
    if file_system(file) in OWN_FILE_SYSTEMS:
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA journal_mode=WAL")


def file_system(path: Path) -> str | None:
    """The type of the file system that `path` lies on; None where this machine does not say."""
    if not MOUNTS.exists():
        return None
    mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    found = [(place, kind) for place, kind in mounts if path.resolve().is_relative_to(_unescaped(place))]
    # Of mounts on one place the last is seen.
    return max(enumerate(found), key=lambda mount: (len(mount[1][0]), mount[0]))[1][1] if found else None


def _unescaped(place: str) -> str:
    return place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")

"""Which software made a result? Versions for the record; nothing here changes a run."""

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import k3ablate

PACKAGE = Path(k3ablate.__file__).parent
LIBRARIES = ("torch", "lightning", "numpy")


@cache
def versions() -> dict[str, str]:
    """Name -> version; `code` is the commit (`-dirty` with changes) or the package's version, `lock` a digest."""
    found = {"python": platform.python_version(), "k3ablate": k3ablate.__version__}
    found |= {library: version(library) for library in LIBRARIES}
    found["code"] = _commit(PACKAGE) or k3ablate.__version__
    lock = PACKAGE.parent / "requirements.lock"
    if (PACKAGE.parent / "pyproject.toml").exists() and lock.exists():
        found["lock"] = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    return found


def versions_beside(planned: Mapping[str, str]) -> dict[str, str]:
    """`versions`, with `planned_code` where the run was `planned` with other code than carries it out."""
    code = planned.get("code")
    return versions() | ({} if code in (None, versions()["code"]) else {"planned_code": str(code)})


def _commit(package: Path) -> str | None:
    """The commit that `package` is checked out at; None if git does not know its files."""
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")  # a package installed inside another repository
        return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()

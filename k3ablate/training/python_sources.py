"""Which Python files does this machine have, and which packages do they belong to?

The standard library and the files that installed distributions declare: real text that is there without a network.
Nothing here decides what is trained on; `sources` turns these files into sets of documents.
"""

import hashlib
import importlib.metadata
import os
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Installed packages below the standard library's folder are reached through their distributions instead.
EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})

# This package is left out, so that editing it does not change the corpus it is measured on.
OURSELVES = "k3ablate"


class PythonFile(NamedTuple):
    """One source file. `name` is its path below the package root, the same on every machine."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        """The top-level package or module: 'torch' of 'torch/nn/functional.py', 'bisect' of 'bisect.py'."""
        return self.name.partition("/")[0].removesuffix(".py")


def python_files() -> list[PythonFile]:
    """Every Python file of the standard library and of the installed distributions, in the order of a hash of its name.

    The hash mixes the packages, so that any prefix is a sample of the whole. Tests are among them.
    """
    files = {file.name: file for file in [*_standard_library(), *_installed()]}
    return sorted(files.values(), key=lambda file: hashlib.sha256(file.name.encode()).digest())


def environment() -> list[str]:
    """What decides the content of `python_files`: the interpreter's version and each 'distribution==version'."""
    versions = {f"{distribution.name}=={distribution.version}" for distribution in _distributions()}
    return [f"{platform.python_implementation()}=={platform.python_version()}", *sorted(versions)]


def _standard_library() -> Iterator[PythonFile]:
    root = Path(sysconfig.get_path("stdlib"))
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in EXCLUDED_FOLDERS]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                yield PythonFile(path.relative_to(root).as_posix(), path)


def _installed() -> Iterator[PythonFile]:
    for distribution in _distributions():
        for file in distribution.files or []:
            if file.suffix == ".py" and not _is_excluded(file.parts):
                yield PythonFile(file.as_posix(), Path(str(distribution.locate_file(file))))


def _is_excluded(parts: tuple[str, ...]) -> bool:
    """Scripts outside the package root, and the shims of editable installs, which name a folder here."""
    return (
        parts[0] in ("..", OURSELVES) or parts[0].startswith("__editable__") or not EXCLUDED_FOLDERS.isdisjoint(parts)
    )


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """The distributions of this environment, whatever the working folder and PYTHONPATH add; not ourselves."""
    folders = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    for distribution in importlib.metadata.distributions(path=list(folders)):
        if re.sub(r"[-_.]+", "-", distribution.name).lower() != OURSELVES:
            yield distribution

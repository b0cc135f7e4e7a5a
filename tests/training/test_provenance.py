"""The record names the software that made it."""

import platform
import subprocess
from pathlib import Path

import torch

from k3ablate.training import provenance


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_versions_are_those_of_this_process() -> None:
    found = provenance.versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert {"k3ablate", "lightning", "numpy", "code"} <= set(found)


def test_the_code_is_a_commit_only_where_git_knows_the_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert provenance._commit(package) is None
    git(tmp_path, "init", "-q")
    assert provenance._commit(package) is None  # in a repository, but not of it
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance._commit(package) == commit
    (package / "__init__.py").write_text("changed = True\n")
    assert provenance._commit(package) == f"{commit}-dirty"


def test_other_code_than_was_planned_with_is_told() -> None:
    found = provenance.versions()
    assert provenance.versions_beside(found) == provenance.versions_beside({}) == found
    assert provenance.versions_beside({"code": "0ther"}) == found | {"planned_code": "0ther"}

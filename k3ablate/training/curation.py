"""Which Python files are worth training on? Rules as a recipe states them, by the name of a file and by its text.

They hold for training text only: what is held out is the same whatever the rules are, so that recipes can be compared.
Where files come from is `python_sources.py`, what becomes of copies `packing.py`.
"""

import ast
import re
import warnings
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from k3ablate.config import Config

TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
VENDOR_FOLDERS = frozenset({
    "_vendor", "vendor", "_vendored", "vendored", "third_party", "thirdparty", "extern", "_extern", "external",
    "externals",
})  # fmt: skip
TEST_NAME = re.compile(r"test_.*\.py|.*_tests?\.py|conftest\.py")
GENERATED_NAME = re.compile(r".*_pb2(_grpc)?\.py")
HEAD = 2000  # characters in which a generated file says so
SAYS_GENERATED = re.compile(
    r"\bauto[- ]?generated\b|\bgenerated (automatically|by|from|with|using)\b|\bdo not (edit|modify)\b", re.IGNORECASE
)


class PythonRules(Config):
    """Which training files are kept. The defaults keep everything but folders of tests and copies of a text."""

    tests: Literal["keep", "drop_folders", "drop"] = "drop_folders"  # drop: also files whose name says test
    vendored: bool = True  # copies of other projects, which lie in folders that say so
    generated: bool = True  # files that say a program wrote them
    copies: bool = False  # texts that were taken before
    # Share of modules, classes and functions of a file that have a docstring; above 0 a file also has to be Python.
    least_documented: float = Field(default=0.0, ge=0, le=1)


def name_refused(name: str, rules: PythonRules) -> str | None:
    """Why a file called `name` ('package/module.py') is left out; None if its name says nothing against it."""
    path = PurePosixPath(name)
    folders = set(path.parts[:-1])
    if rules.tests != "keep" and folders & TEST_FOLDERS:
        return "test"
    if rules.tests == "drop" and TEST_NAME.fullmatch(path.name):
        return "test"
    if not rules.vendored and folders & VENDOR_FOLDERS:
        return "vendored"
    if not rules.generated and GENERATED_NAME.fullmatch(path.name):
        return "generated"
    return None


def text_refused(text: str, rules: PythonRules) -> str | None:
    """Why a file that holds `text` is left out; None if it is kept."""
    if not rules.generated and SAYS_GENERATED.search(text[:HEAD]):
        return "generated"
    if rules.least_documented == 0:
        return None
    share = documented_share(text)
    if share is None:
        return "not Python"
    return "undocumented" if share < rules.least_documented else None


def documented_share(text: str) -> float | None:
    """Share of the module, its classes and functions that have a docstring; None for what is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a newer Python refuses
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two from deep nesting
        return None
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [
        ast.get_docstring(node, clean=False) is not None for node in ast.walk(tree) if isinstance(node, kinds)
    ]
    return sum(documented) / len(documented)

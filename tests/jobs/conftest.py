"""Runs that cost nothing, for the launcher and its workers."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in runs, importable by the workers under the same name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("fake_runs")

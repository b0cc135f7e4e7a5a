"""Trials that cost nothing."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def fake_trials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The stand-in trials, importable under the name they have as a process."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("fake_trials")

"""One whole line per logged step, whatever was cut off, and numbers that JSON and a store can hold."""

import json
from pathlib import Path

import pytest

from k3ablate.training.metrics import keep_lines


def write(path: Path, steps: list[int], rest: str = "") -> None:
    path.write_text("".join(json.dumps({"step": step, "loss": step / 7}) + "\n" for step in steps) + rest)


def test_lines_of_steps_to_be_taken_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [0, 10, 20, 30])
    keep_lines(path, 20)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert kept == [{"step": 0, "loss": 0.0}, {"step": 10, "loss": 10 / 7}]


def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [0, 10], rest='{"step": 20, "lo')
    keep_lines(path, 100)
    assert len(path.read_text().splitlines()) == 2
    assert path.read_text().endswith("\n")


def test_no_file_no_lines(tmp_path: Path) -> None:
    keep_lines(tmp_path / "metrics.jsonl", 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "kept", "whole_from"),
    [
        (b'{"step": 0}\n{"step": 10}\n{"step": 20}\n{"st', [0, 10, 20], 0),
        (b'{"step": 0}\n{"st\n{"step": 20}\n', [0, 20], 20),
        (b'\xff\xfe\n{"step": 10}\n{"step": 20}\n', [10, 20], 10),
        (b'{"step": 0}\n7\n{"loss": 1}\n{"step": 20}\n{"step": 30}\n{"step": 40}\n', [0, 20, 30], 20),
        (b'{"step": 20}\n', [20], 20),
        (b"", [], 35),
    ],
)
def test_missing_lines_are_told(tmp_path: Path, content: bytes, kept: list[int], whole_from: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    assert keep_lines(path, 35) == whole_from
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == kept

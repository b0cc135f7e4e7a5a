"""One whole line per logged step, whatever was cut off, and numbers that JSON and a store can hold."""

import json
from pathlib import Path

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

"""The verb `figure`, over published data and anybody's tables."""

import json
from pathlib import Path

import pandas
import pytest

from k3ablate import cli
from k3ablate.config import InputError
from k3ablate.picturing import Runs, figure

PUBLISHED = Path(__file__).parents[1] / "analysis" / "published"


def runs(*arms: str, has_levels: bool = True) -> pandas.DataFrame:
    """Arms that need `i` times less compute than the first, three sizes, one seed."""
    return pandas.DataFrame(
        {"arm": arm, "size": f"s{size}", "seed": 0, "flops": 10.0 ** (13 + size), "corpus": "c0ffee",
         "loss": 30 * ((1 + index) * 10.0 ** (13 + size)) ** -0.09 * (1 + 0.001 * (-1) ** (size + index))}
        | ({"attention": arm} if has_levels else {})
        for index, arm in enumerate(arms) for size in range(3)
    )  # fmt: skip


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["figure", *arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_without_a_table_the_published_panel_alone(tmp_path: Path) -> None:
    found = figure("k2-vs-k3", tmp_path)
    assert [Path(file).suffix for file in found.files] == [".png", ".svg", ".pdf", ".csv"]
    assert all(Path(file).stat().st_size for file in found.files)
    assert found.says[0] == "published: 2.44 to 2.53×"
    assert not any(line.startswith("ours") for line in found.says)


def test_a_table_stands_beside_it_and_is_named_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs("base", "new").to_csv("t.csv", index=False)
    assert command("k2-vs-k3", "--table", "t.csv", "--output", "here") == 0
    shown = capsys.readouterr().out
    assert "ours: 2.0" in shown
    assert "here/k2_vs_k3.pdf" in shown
    assert command("k2-vs-k3", "--table", "t.csv", "--output", "here", "--baseline", "new", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    (arrow,) = (row for row in answer["data"] if row["kind"] == "arrow" and row["panel"] == "ours")
    assert arrow["multiplier"] == pytest.approx(0.5, rel=0.1)
    written = pandas.read_csv("here/k2_vs_k3.csv")
    assert written["multiplier"].dropna().tolist() == [arrow["multiplier"]]
    assert len(written) == len(answer["data"])


def test_an_unknown_figure_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("k2-vs-k4") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "figure k2-vs-k4: no such figure; write one of: k2-vs-k3 (the published figure" in captured.err


def test_what_a_table_cannot_answer_is_said(tmp_path: Path) -> None:
    def made(*arms: str, has_levels: bool = True) -> Runs:
        return Runs("t.csv", runs(*arms, has_levels=has_levels), None, None)

    with pytest.raises(InputError, match="which arm changes what; name the one that stands for K3 by --arm: b, c"):
        figure("k2-vs-k3", tmp_path, made("a", "b", "c", has_levels=False))
    found = figure("k2-vs-k3", tmp_path, made("a", "b", "c", has_levels=False), arm="b")
    assert any(line.startswith("ours: 2.") for line in found.says)
    with pytest.raises(InputError, match="--arm d: no such arm beside the baseline a; write one of b"):
        figure("k2-vs-k3", tmp_path, made("a", "b"), arm="d")
    with pytest.raises(InputError, match="--arm b names an arm of a table; name the table by --table too"):
        figure("k2-vs-k3", tmp_path, arm="b")


def test_all_runs_diverged_is_a_picture_that_says_so(tmp_path: Path) -> None:
    frame = runs("a", "b").assign(status="diverged", reason="loss above 30", loss=None)
    found = figure("k2-vs-k3", tmp_path, Runs("t.csv", frame, None, None))
    assert found.says[-1].startswith("ours: no run finished: 6 are listed")

"""Which runs a name means, and what is read of their folders."""

import json
from pathlib import Path

import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.config import digest as content_digest
from k3ablate.records import FrozenSpec, write_spec
from k3ablate.run_logs import find_group, read_folder, refuse_repeats


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs abcd..., abce... and one that has logged nothing."""
    for digest, seed in (("abcd000000000000", 0), ("abce000000000000", 1)):
        folder = tmp_path / "runs" / digest
        folder.mkdir(parents=True)
        spec = {
            "corpus": "c0ffee",
            "seed": seed,
            "tokens": 999,
            "training": {"context": 32, "batch_size": 4},
            "data": {},
        }
        write_spec(FrozenSpec(digest=content_digest(spec), spec=spec, versions={}), folder)
        (folder / "metrics.jsonl").write_text(
            '{"step": 0, "tokens": 10, "loss": 5.0, "imbalance": [1.0, 2.0]}\n'
            '{"step": 10, "tokens": 110, "loss": null, "imbalance": []}\n'
        )
    (tmp_path / "runs" / "ffff000000000000").mkdir()
    (tmp_path / "runs" / "ffff000000000000" / "spec.json").write_text("{}")
    pandas.DataFrame({"step": [0], "tokens": [5], "loss": [4.0]}).to_csv(tmp_path / "theirs.csv", index=False)
    return tmp_path / "runs"


def test_a_folder_is_its_lines_with_what_the_run_says_of_itself(root: Path) -> None:
    frame = read_folder(root / "abcd000000000000")
    assert frame["step"].tolist() == [0, 10]
    assert frame["loss"].isna().tolist() == [False, True]
    assert "imbalance" not in frame
    facts = frame[["corpus", "seed", "budget", "context"]].drop_duplicates()
    assert facts.to_numpy().tolist() == [["c0ffee", 0, 999, 32]]
    assert "status" not in frame  # it has not ended


def test_a_record_says_how_it_ended_also_where_the_folder_was_renamed(root: Path) -> None:
    record = {"digest": "abcd000000000000", "status": "diverged", "reason": "loss 31", "device": "cpu", "num_steps": 11}
    (root / "abcd000000000000" / "record.json").write_text(json.dumps(record))
    (root / "abcd000000000000").rename(root / "mine")
    frame = read_folder(root / "mine")
    assert frame[["status", "reason", "device"]].iloc[0].tolist() == ["diverged", "loss 31", "cpu"]


def test_a_line_that_is_being_written_is_not_there_yet(root: Path) -> None:
    path = root / "abcd000000000000" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 20, "tok')
    assert read_folder(path.parent)["step"].tolist() == [0, 10]
    path.write_text('{"step": 0, "tok\n' + path.read_text())
    with pytest.raises(InputError, match=r"metrics.jsonl: line 1 is not a JSON object"):
        read_folder(path.parent)


def test_names_are_digests_their_beginnings_folders_files_and_lists_of_them(root: Path) -> None:
    def seeds(name: str) -> list[object]:
        runs = find_group(name, root)
        assert runs is not None
        frames = [run.read() for run in runs]
        return [frame["seed"].iloc[0] if "seed" in frame else None for frame in frames]

    assert seeds("abcd000000000000") == seeds("abcd") == seeds(str(root / "abcd000000000000")) == [0]
    assert seeds("abcd,abce000000000000") == seeds("abcd, abce") == [0, 1]
    assert seeds(str(root.parent / "theirs.csv")) == [None]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("abcf", r"abcf: no run below .*runs begins so.*EXPERIMENT/ARM/SIZE"),
        ("abcd,abcf", "abcf: no run below"),
        ("ab", "ab: no run below"),
        ("nowhere/abcd", "no folder or file is called so"),
        ("ffff", "this run has logged nothing yet"),
        ("theirs.csv", "theirs.csv: no such table"),
        ("{root}", r"no folder of a run \(metrics.jsonl is not in it\); name a folder that .*runs holds"),
        ("{root}/abcd000000000000/metrics.jsonl", "a file that is no log; name a .csv .*, or a run's folder"),
    ],
)
def test_names_that_mean_nothing_are_refused(root: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        [run.read() for run in find_group(name.format(root=root), root) or []]


def test_a_beginning_of_several_digests_is_refused_with_them(root: Path) -> None:
    (root / "abcd000000000001").mkdir()
    (root / "abcd000000000001" / "spec.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"abcd: 2 runs below .* begin so .abcd000000000000, abcd000000000001.; write more"
    ):
        find_group("abcd", root)


def test_strokes_may_mean_the_cell_of_an_experiment(root: Path) -> None:
    assert find_group("demo/a/a/m", root) is None
    assert find_group("demo/k2/m", root) is None


def test_a_damaged_specification_is_named(root: Path) -> None:
    (root / "abcd000000000000" / "spec.json").write_text('{"seed": 0}')
    with pytest.raises(InputError, match=r"spec.json: not what a run writes \(Field required\)"):
        read_folder(root / "abcd000000000000")


def test_files_with_commas_between_them_are_seeds_of_one_group(tmp_path: Path) -> None:
    for name, loss in (("a.csv", 3.0), ("b.csv", 2.5)):
        (tmp_path / name).write_text(f"step,tokens,loss\n0,10,{loss}\n")
    runs = find_group(f"{tmp_path / 'a.csv'},{tmp_path / 'b.csv'}", tmp_path)
    assert runs is not None
    assert [run.read()["loss"].tolist() for run in runs] == [[3.0], [2.5]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["{csv},{csv}", "abcd"], r"compare: \S*theirs.csv stands there twice; name each run once"),
        (["abcd", "abcd000000000000"], r"compare: abcd000000000000 stands there twice \(also as abcd\)"),
        (
            ["abcd,abce", "{root}/abce000000000000"],
            r"/abce000000000000 stands there twice \(also as abce\)",
        ),
        (["{csv}", "{root}/../theirs.csv"], r"stands there twice \(also as \S*theirs.csv\)"),
    ],
)
def test_one_run_by_two_names_is_refused(root: Path, groups: list[str], message: str) -> None:
    names = [name.format(csv=root.parent / "theirs.csv", root=root) for name in groups]
    found = {name: find_group(name, root) or [] for name in names}
    with pytest.raises(InputError, match=message):
        refuse_repeats(found)


def test_different_runs_are_no_repeats(root: Path) -> None:
    refuse_repeats({name: find_group(name, root) or [] for name in ("abcd", "abce", str(root.parent / "theirs.csv"))})

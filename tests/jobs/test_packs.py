"""Which runs go into one task, and which pack a task takes."""

from pathlib import Path

import pytest

from k3ablate.config import InputError
from k3ablate.jobs.packs import PackedRun, PackFile, by_minutes, by_number, chosen, read_pack_file


def runs(*flops: float) -> list[PackedRun]:
    return [
        PackedRun(digest=f"{index:016x}", name=f"run {index}", tags={}, tokens=1, flops=cost)
        for index, cost in enumerate(flops)
    ]


def costs(packs: list[tuple[PackedRun, ...]]) -> list[list[float]]:
    return [[run.flops for run in pack] for pack in packs]


def test_packs_of_a_number_are_the_longest_first() -> None:
    assert costs(by_number(runs(1, 5, 3, 2, 4), 2)) == [[5, 4], [3, 2], [1]]
    assert by_number([], 2) == []


def test_packs_by_minutes_take_no_longer_than_asked_but_for_a_run_that_does() -> None:
    packs = by_minutes(runs(30, 500, 50, 120, 60, 10), minutes=2.0, flops_per_second=1.0)
    assert costs(packs) == [[500], [120], [60, 50], [30, 10]]


def test_a_pack_file_comes_back_with_names_that_a_shell_or_a_line_would_break(tmp_path: Path) -> None:
    hostile = "k2; touch pwned `x` $(y)\nsize 'a' \"b\" \\"
    run = PackedRun(digest="0" * 16, name=hostile, tags={"arm": hostile}, tokens=1, flops=1.0)
    written = PackFile(experiment="x", execution={}, num_threads=1, stop_seconds=1, packs=((run,),))
    written.write(tmp_path / "packs.json")
    assert read_pack_file(tmp_path / "packs.json") == written


@pytest.mark.parametrize("digest", ["../../etc/passwd", "0" * 15, "/" + "0" * 15, "0" * 16 + "\n", "G" * 16])
def test_a_pack_names_folders_by_digest_and_nothing_else(digest: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        PackedRun(digest=digest, name="x", tags={}, tokens=1, flops=1.0)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "no such file"), ('{"experiment": "x", "pac', "damaged"), ("{}", "damaged")]
)
def test_a_pack_file_that_is_not_whole_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "packs.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_pack_file(path)


def test_a_task_takes_the_pack_of_its_index() -> None:
    packs = by_number(runs(1, 2), 1)
    assert chosen(packs, "1", "X") == packs[1]


@pytest.mark.parametrize("task_id", [None, "", "2", "-1", "1.0", "²", "0x1", "1\n", " 1"])
def test_an_index_that_is_unset_or_of_another_array_stops_the_task(task_id: str | None) -> None:
    with pytest.raises(InputError, match=r"^X: (not set|found .*there are packs 0 to 1)"):
        chosen(by_number(runs(1, 2), 1), task_id, "X")

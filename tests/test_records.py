"""The table of records as files. Records in their folders are tested with `jobs.folders`."""

import errno
import os
from pathlib import Path

import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.records import read_table, write_table

FRAME = pandas.DataFrame({"arm": ["k2", 'é, "quoted"\nin lines'], "loss": [1 / 3, None]})


def test_a_table_is_read_back_with_every_digit(tmp_path: Path) -> None:
    for path in write_table(FRAME, tmp_path / "results" / "runs"):
        pandas.testing.assert_frame_equal(read_table(path), FRAME, check_exact=True)


@pytest.mark.parametrize("full_after", [0, 1])
def test_a_full_disk_leaves_the_tables_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_after: int
) -> None:
    files = write_table(FRAME, tmp_path / "runs")
    before = [path.read_bytes() for path in files]
    allowed = iter(range(full_after))

    def full(descriptor: int) -> None:
        if next(allowed, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_table(FRAME, tmp_path / "runs")
    assert caught.value.filename == str(files[full_after])
    assert [path.read_bytes() for path in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)


RUNS = "arm,size,flops,loss\nk2,s0,1e18,3.25\nk2,s1,1e19,3.0\n"
PARQUET = pandas.DataFrame({"loss": [3.25]}).to_parquet()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("runs.csv", b"", "is empty; write a header"),
        ("runs.csv", b"\n\n", "is empty; write a header"),
        ("runs.csv", RUNS.encode() + b"k2,s2,1e20,2.9,7,8\n", "Expected 4 fields in line 4, saw 6.*as many cells"),
        (
            "runs.csv",
            b"\narm,loss,flops, loss\nk2,3,4,5\n",
            "has 2 columns 'loss'; give every column a name of its own",
        ),
        ("runs.csv", b"arm;loss;arm\nk2;3;k3\n", "the header has 2 columns 'arm'"),
        ("runs.csv", b"arm,loss\nk2,3,4\nk2,2,9\n", "more cells than the header.; give every column a name"),
        ("runs.csv", RUNS.encode() + b'"k2,s2,1e20,2.9\n', "EOF inside string.*is not closed: close or remove it"),
        ("runs.csv", RUNS.replace("k2", "k\0").encode(), "not text .a zero byte on line 2"),
        ("runs.csv", RUNS.replace("k2", "\xe9").encode("latin-1"), "not UTF-8 .byte 0xe9 on line 2.*iconv -f LATIN1"),
        ("runs.csv", RUNS.encode("utf-16"), "is UTF-16; save it as UTF-8"),
        ("runs.csv", PARQUET, "is a parquet file; name it runs.parquet"),
        ("runs.csv", b"arm;loss\tflops\n", "semicolons and tabs in one header; write commas"),
        ("runs.csv", b"arm;loss\nk2;3,25\nk2;3\n", r"column loss has decimal commas \(3,25\); write points \(3.25\)"),
        ("runs.parquet", b"", "is empty"),
        ("runs.parquet", RUNS.encode(), "not a parquet file .*name a table of text .csv"),
        ("runs.parquet", PARQUET[:60], "a damaged parquet file"),
        ("runs.csv", None, "is a folder; name the table in it"),
        ("runs.parquet", None, "is a folder; name the table in it"),
    ],
)
def test_what_is_no_table_is_refused_by_name(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"(?s)^{path}: .*{message}"):
        read_table(path)


def test_a_table_that_is_not_there_may_be_anybodys(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no such table; name a \.csv or .parquet file that is there, or an experiment"
    ):
        read_table(tmp_path / "runs.csv")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_header_shows_what_stands_between_cells(tmp_path: Path, separator: str, mark: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(mark + RUNS.replace(",", separator), encoding="utf-8")
    found = read_table(path)
    assert list(found) == ["arm", "size", "flops", "loss"]
    assert found["loss"].tolist() == [3.25, 3.0]


def test_a_semicolon_within_a_header_of_commas_is_text(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("arm;name,loss\na;b,3.0\n")
    assert read_table(path)["arm;name"].tolist() == ["a;b"]

from collections import Counter

import pytest

from k3ablate.training.packing import Document, announced, select
from k3ablate.training.sources import Documents


def test_held_out_sets_come_first_and_keep_what_they_share() -> None:
    offered = Documents({"train": ["a", "b"], "out_of_distribution": ["b", "c"], "validation": ["c"]})
    dropped: Counter[str] = Counter()
    assert list(select(offered, dropped)) == [
        Document("validation", b"c"),
        Document("out_of_distribution", b"b"),
        Document("train", b"a"),
    ]
    assert dropped == {"duplicate": 2}


def test_max_bytes_counts_utf8_of_training_documents_that_are_kept() -> None:
    offered = Documents(
        {"train": ["\u00e9\u00e9", "\u00e9\u00e9", "abc", "d"], "validation": ["long held-out text"]}, max_bytes=7
    )
    kept = [document.data for document in select(offered, Counter()) if document.set_name == "train"]
    assert kept == ["\u00e9\u00e9".encode(), b"abc"]


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0), (0.25, 250), (0.4999, 500)])
def test_held_out_fraction_of_the_training_texts(fraction: float, expected: int) -> None:
    offered = Documents({"train": [str(number) for number in range(1000)]}, held_out_fraction=fraction)
    num_held_out = sum(document.set_name == "validation" for document in select(offered, Counter()))
    assert num_held_out == pytest.approx(expected, abs=60)  # four standard deviations of a fair draw


def test_announced_passes_documents_on_and_counts_them() -> None:
    documents = [Document("train", b"abc"), Document("train", b"de")]
    lines: list[str] = []
    assert list(announced(iter(documents), lines.append, seconds=0.0)) == documents
    assert lines == ["corpus: 1 documents, 3 bytes so far", "corpus: 2 documents, 5 bytes so far"]


def test_announced_is_silent_for_short_work() -> None:
    lines: list[str] = []
    assert len(list(announced(iter([Document("train", b"abc")]), lines.append, seconds=60.0))) == 1
    assert lines == []

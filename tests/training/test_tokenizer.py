from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.training.spec import BytePairs
from k3ablate.training.tokenizer import BytePairTokenizer, ByteTokenizer, Tokenizer, open_tokenizer, train_byte_pairs

SAMPLE = [b"def first(items):\n    return items[0]\n", b"def last(items):\n    return items[-1]\n"]

texts = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=5)


@pytest.fixture(scope="module")
def pairs() -> BytePairTokenizer:
    return train_byte_pairs(BytePairs(vocabulary_size=280), SAMPLE)


def test_bytes_are_tokens_and_each_document_ends_with_zero() -> None:
    assert ByteTokenizer().encode([b"ab", "é".encode()]).tolist() == [97, 98, 0, 0xC3, 0xA9, 0]


@given(texts)
def test_bytes_round_trip(documents: list[str]) -> None:
    tokens = ByteTokenizer().encode([document.encode() for document in documents])
    assert ByteTokenizer().decode(tokens) == "".join(document + "\0" for document in documents)


@given(texts)
def test_byte_pairs_round_trip_any_text(documents: list[str]) -> None:
    pairs = train_byte_pairs(BytePairs(vocabulary_size=280), SAMPLE)
    tokens = pairs.encode([document.encode() for document in documents])
    assert pairs.decode(tokens) == "".join(document + "\0" for document in documents)
    assert (tokens == 0).sum() == len(documents)
    assert tokens.max(initial=0) < 280


def test_byte_pairs_merge_what_is_frequent(pairs: BytePairTokenizer) -> None:
    text = b"def return items"
    assert len(pairs.encode([text])) < len(text)


def test_training_is_the_same_each_time(pairs: BytePairTokenizer) -> None:
    again = train_byte_pairs(BytePairs(vocabulary_size=280), SAMPLE)
    assert again.definition() == pairs.definition()


def test_training_reads_only_the_first_bytes() -> None:
    config = BytePairs(vocabulary_size=280, train_bytes=len(SAMPLE[0]))
    short, whole = train_byte_pairs(config, SAMPLE[:1]), train_byte_pairs(config, SAMPLE)
    assert short.definition() == whole.definition()


@pytest.mark.parametrize("kind", ["bytes", "pairs"])
def test_saved_tokenizer_encodes_alike(kind: str, pairs: BytePairTokenizer, tmp_path: Path) -> None:
    tokenizer: Tokenizer = ByteTokenizer() if kind == "bytes" else pairs
    tokenizer.save(tmp_path)
    opened = open_tokenizer(tmp_path)
    assert opened.definition() == tokenizer.definition()
    np.testing.assert_array_equal(opened.encode(SAMPLE), tokenizer.encode(SAMPLE))

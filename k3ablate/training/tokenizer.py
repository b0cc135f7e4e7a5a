"""How does text become tokens, and back? Bytes, or byte-level pairs trained on the training text.

Token 0 ends each document. It stands for the character NUL, which no document of a corpus holds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from k3ablate.training.spec import BytePairs

SEPARATOR = 0
SEPARATOR_TEXT = "\0"

_FILE = "tokenizer.json"

Tokens = NDArray[np.integer]


class Tokenizer(ABC):
    """Documents as UTF-8 to tokens, without loss."""

    @abstractmethod
    def encode(self, documents: Sequence[bytes]) -> Tokens:
        """One array for all documents, each ended by the separator."""

    @abstractmethod
    def decode(self, tokens: Tokens) -> str:
        """The text of `tokens`, separators as NUL; a character cut in two comes back as U+FFFD."""

    @abstractmethod
    def definition(self) -> str:
        """Everything that decides the encoding, as text: part of a corpus's identity."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Leave in `folder` what `open_tokenizer` needs."""


class ByteTokenizer(Tokenizer):
    """Each byte is a token."""

    def encode(self, documents: Sequence[bytes]) -> Tokens:
        """The bytes themselves."""
        return np.frombuffer(b"\0".join([*documents, b""]), np.uint8)

    def decode(self, tokens: Tokens) -> str:
        """The bytes themselves."""
        return tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def definition(self) -> str:
        """There is only one."""
        return "bytes"

    def save(self, folder: Path) -> None:
        """Nothing to keep."""


class BytePairTokenizer(Tokenizer):
    """Byte-level BPE of the library `tokenizers`, split like GPT-2 (Radford et al. 2019)."""

    def __init__(self, pairs: tokenizers.Tokenizer) -> None:
        self._pairs = pairs

    def encode(self, documents: Sequence[bytes]) -> Tokens:
        """Pairs within a document only."""
        encodings = self._pairs.encode_batch_fast([document.decode() for document in documents])
        ended = chain.from_iterable(chain(encoding.ids, (SEPARATOR,)) for encoding in encodings)
        return np.fromiter(ended, np.uint32)

    def decode(self, tokens: Tokens) -> str:
        """Exact: byte-level pairs lose nothing."""
        return self._pairs.decode(tokens.tolist(), skip_special_tokens=False)

    def definition(self) -> str:
        """The library's JSON."""
        return self._pairs.to_str()

    def save(self, folder: Path) -> None:
        """The library's JSON file."""
        (folder / _FILE).write_text(self.definition(), encoding="utf-8")


def train_byte_pairs(config: BytePairs, documents: Iterable[bytes]) -> BytePairTokenizer:
    """Learn up to `config.vocabulary_size` tokens from the first documents, `config.train_bytes` bytes of them."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=config.vocabulary_size,
        special_tokens=[SEPARATOR_TEXT],  # special tokens come first: this one is token 0
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),  # so every text can be encoded
        show_progress=False,
    )
    pairs.train_from_iterator(_first(documents, config.train_bytes), trainer)
    assert pairs.token_to_id(SEPARATOR_TEXT) == SEPARATOR
    return BytePairTokenizer(pairs)


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that `save` left in `folder`."""
    file = folder / _FILE
    return BytePairTokenizer(tokenizers.Tokenizer.from_file(str(file))) if file.exists() else ByteTokenizer()


def _first(documents: Iterable[bytes], num_bytes: int) -> Iterator[str]:
    """Whole documents until `num_bytes` are reached."""
    taken = 0
    for document in documents:
        yield document.decode()
        taken += len(document)
        if taken >= num_bytes:
            return

"""Which documents enter a corpus, and how are they laid out? Selection, and one token file per set.

A document is dropped when its text was already taken, is empty, holds NUL (the separator), or is refused by its source
as training text. Held-out sets are read before the training set, so no text of theirs is ever trained on. Nothing here
knows recipes or digests of corpora.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from k3ablate.records import PUBLISHED_SET
from k3ablate.training.sources import READING_ORDER, TRAIN_SET, Documents
from k3ablate.training.tokenizer import SEPARATOR_TEXT, Tokenizer

# Text that is tokenized at once: large enough for array speed, small beside a corpus.
_CHUNK_BYTES = 8 << 20


class Document(NamedTuple):
    """One text as UTF-8, and the set that it belongs to."""

    set_name: str
    data: bytes


def select(documents: Documents, dropped: Counter[str]) -> Iterator[Document]:
    """The documents that are kept, held-out sets first; `dropped` counts the others by reason.

    The training set ends before the first document that would exceed `documents.max_bytes`.
    """
    seen: set[bytes] = set()
    num_train_bytes = 0
    for set_name in (name for name in READING_ORDER if name in documents.sets):
        for text in documents.sets[set_name]:
            data = text.encode()
            key = hashlib.sha256(data).digest()
            short_key = key[:16]  # 128 bits: two different texts do not meet
            is_train = set_name == TRAIN_SET
            reason = _unusable(text) or (documents.refused(text) if documents.refused and is_train else None)
            reason = reason or ("duplicate" if short_key in seen else None)
            if reason is not None:
                dropped[reason] += 1
                continue
            if not (is_train and documents.keeps_copies):
                seen.add(short_key)
            document = Document(_assigned(set_name, key, documents.held_out_fraction), data)
            num_train_bytes += len(data) if document.set_name == TRAIN_SET else 0
            if documents.max_bytes is not None and num_train_bytes > documents.max_bytes:
                return
            yield document


def announced(selected: Iterator[Document], report: Callable[[str], None], seconds: float) -> Iterator[Document]:
    """The same documents, with a line of progress to `report` at most every `seconds`."""
    num_bytes, last = 0, time.monotonic()
    for number, document in enumerate(selected, start=1):
        num_bytes += len(document.data)
        if time.monotonic() - last >= seconds:
            report(f"corpus: {number:,} documents, {num_bytes:,} bytes so far")
            last = time.monotonic()
        yield document


def _unusable(text: str) -> str | None:
    """Why a text cannot be in a corpus; None if it can."""
    if not text:
        return "empty"
    return "holds NUL" if SEPARATOR_TEXT in text else None


def _assigned(set_name: str, key: bytes, held_out_fraction: float) -> str:
    """The set itself, or validation for training texts whose hash falls into the held-out fraction."""
    is_held_out = set_name == TRAIN_SET and int.from_bytes(key[:8]) < held_out_fraction * 2.0**64
    return PUBLISHED_SET if is_held_out else set_name


class TokenFile:
    """A set of documents on its way to disk: documents in, little-endian unsigned integers out."""

    def __init__(self, path: Path, tokenizer: Tokenizer, token_type: np.dtype[np.unsignedinteger]) -> None:
        self.num_tokens = self.num_bytes = self.num_documents = 0
        self._tokenizer, self._token_type = tokenizer, token_type
        self._handle = path.open("wb")
        self._hash = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._num_waiting_bytes = 0

    def add(self, data: bytes) -> None:
        """Take one document; it may reach the disk later."""
        self._waiting.append(data)
        self._num_waiting_bytes += len(data)
        if self._num_waiting_bytes >= _CHUNK_BYTES:
            self._flush()

    def finish(self) -> str:
        """Write what is left; the SHA-256 of the tokens."""
        self._flush()
        return self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._handle.close()

    def _flush(self) -> None:
        if not self._waiting:
            return
        tokens = self._tokenizer.encode(self._waiting).astype(self._token_type, copy=False)
        self._handle.write(tokens.data)
        self._hash.update(tokens.data)
        self.num_tokens += len(tokens)
        self.num_bytes += self._num_waiting_bytes
        self.num_documents += len(self._waiting)
        self._waiting, self._num_waiting_bytes = [], 0

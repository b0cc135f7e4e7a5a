"""How is text packed once into a corpus, and found again? `build`, `known`, `open_corpus` and what they return.

A corpus is a folder named by its digest: one token file per set, the tokenizer, and `corpus.json`. It appears by one
rename when it is complete, so a killed build leaves at most a `.building-*` folder that nothing reads.
Which tokens a step trains on is the business of `data`.
"""

import errno
import functools
import hashlib
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from k3ablate.config import DIGEST_LENGTH, Config, InputError, digest
from k3ablate.records import PUBLISHED_SET
from k3ablate.training.packing import Document, TokenFile, announced, select
from k3ablate.training.sources import TRAIN_SET, Documents, documents, fingerprint, quiet
from k3ablate.training.spec import Bytes, DataRecipe, SourceConfig
from k3ablate.training.tokenizer import ByteTokenizer, Tokenizer, Tokens, open_tokenizer, train_byte_pairs

# Raised when the same source and recipe give other tokens than before, so that corpora of old code are not taken.
_FORMAT = 1

_PROGRESS_SECONDS = 15.0

_MANIFEST = "corpus.json"
_KEYS = "keys"


class SetFacts(Config):
    """The size of one set: tokens with one separator per document, bytes of UTF-8 text without them."""

    num_tokens: int = Field(gt=0)
    num_bytes: int = Field(gt=0)
    num_documents: int = Field(gt=0)


class CorpusFacts(Config):
    """What `corpus.json` says, and what `data info` shows."""

    name: str  # its digest
    recipe: DataRecipe  # the first that gave this content; another recipe may give the same
    sets: dict[str, SetFacts]
    dropped: dict[str, int]  # documents left out, by reason


@dataclass(frozen=True)
class Corpus:
    """A built corpus. Its digest names its content: the tokens of its sets and the tokenizer."""

    folder: Path
    facts: CorpusFacts

    @property
    def digest(self) -> str:
        """Names the content, 16 hex digits."""
        return self.facts.name

    def tokens(self, set_name: str) -> Tokens:
        """The set as one memory-mapped array of unsigned integers; a set that is not there is an InputError."""
        facts = self._facts(set_name)
        return _memory_map(_token_path(self.folder, set_name), _token_type(self.facts.recipe), facts.num_tokens)

    def num_tokens(self, set_name: str) -> int:
        """Tokens of the set, separators included."""
        return self._facts(set_name).num_tokens

    def bytes_per_token(self, set_name: str) -> float:
        """UTF-8 bytes of text per token; separators are tokens that stand for no byte."""
        facts = self._facts(set_name)
        return facts.num_bytes / facts.num_tokens

    def bits_per_byte(self, loss: float, set_name: str) -> float:
        """`loss` in nats per token as bits per byte of text.

        By the bytes of the whole set: exact for bytes; evaluated windows of a byte-pair set may hold a little more or
        less per token.
        """
        return loss / math.log(2) / self.bytes_per_token(set_name)

    def content(self, set_name: str) -> str:
        """Names the tokens of a set and what they mean, 16 hex digits: losses on equal ones compare across corpora."""
        self._facts(set_name)
        return _content(self.folder, set_name)

    def decode(self, tokens: Tokens) -> str:
        """The text of `tokens`; separators are NUL."""
        return open_tokenizer(self.folder).decode(tokens)

    def _facts(self, set_name: str) -> SetFacts:
        if set_name not in self.facts.sets:
            raise InputError(f"{self.folder}: no set {set_name!r}; this corpus has {', '.join(self.facts.sets)}")
        return self.facts.sets[set_name]


def build(recipe: DataRecipe, folder: Path, report: Callable[[str], None]) -> Corpus:
    """The corpus of `recipe` below `folder`, built if it is not there; `report` gets a line for each stage.

    Several processes may build at once. Unreadable input, an empty set, a full disk or a folder that cannot be
    written is an InputError, and leaves no corpus behind.
    """
    found = known(recipe, folder)
    if found is not None:
        return found
    with _storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with quiet(), tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as scratch:
            return _build(recipe, folder, Path(scratch), report)


def known(recipe: DataRecipe, folder: Path) -> Corpus | None:
    """The corpus that `recipe` gave below `folder`, if its source is as it was then; reads no document."""
    name = _pointed_at(folder / _KEYS / _key(recipe))
    return open_corpus(name, folder) if name is not None and (folder / name).is_dir() else None


def open_corpus(name: str, folder: Path) -> Corpus:
    """The corpus with digest `name` below `folder`; one that is missing or damaged is an InputError."""
    path = folder / name / _MANIFEST
    try:
        facts = CorpusFacts.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder}: no corpus {name} here; build it with `k3ablate data build RECIPE`") from None
    except ValidationError as error:
        raise InputError(f"{path}: damaged ({error.error_count()} errors); delete {path.parent} and build it") from None
    corpus = Corpus(path.parent, facts)
    for set_name in facts.sets:
        _check_size(corpus, set_name)
    return corpus


def _build(recipe: DataRecipe, folder: Path, scratch: Path, report: Callable[[str], None]) -> Corpus:
    key = _key(recipe)  # taken before reading: a source that changes meanwhile is read again next time
    report(f"corpus: reading {recipe.source.kind}")
    offered = documents(recipe.source, scratch / "cache")
    draft = scratch / "corpus"
    draft.mkdir()
    learnt = _learnt_from(recipe)
    taught = offered if learnt is None else documents(learnt, scratch / "taught")
    tokenizer = _tokenizer(recipe, taught, report)
    facts = _pack(recipe, offered, tokenizer, draft, report)
    (draft / _MANIFEST).write_text(facts.model_dump_json(indent=1), encoding="utf-8")
    _publish(draft, folder / facts.name)
    pointer = scratch / "key"
    pointer.write_text(facts.name, encoding="utf-8")
    (folder / _KEYS).mkdir(exist_ok=True)
    pointer.replace(folder / _KEYS / key)
    report(f"corpus: {facts.name} is ready")
    return open_corpus(facts.name, folder)


def _pack(
    recipe: DataRecipe, offered: Documents, tokenizer: Tokenizer, draft: Path, report: Callable[[str], None]
) -> CorpusFacts:
    """Write the token files and the tokenizer into `draft`."""
    tokenizer.save(draft)
    dropped = Counter(offered.left_out)
    selected = announced(select(offered, dropped), report, _PROGRESS_SECONDS)
    files, hashes = _write(selected, draft, tokenizer, _token_type(recipe))
    for required in dict.fromkeys((TRAIN_SET, PUBLISHED_SET, *offered.sets)):
        if required not in files:
            raise InputError(_explain_empty(required, recipe, dropped))
    sets = {name: _set_facts(file) for name, file in sorted(files.items())}
    for name, facts in sets.items():
        report(
            f"corpus: {name}: {facts.num_documents:,} documents, {facts.num_bytes:,} bytes, {facts.num_tokens:,} tokens"
        )
    content = digest({"tokenizer": tokenizer.definition(), "sets": hashes})
    return CorpusFacts(name=content, recipe=recipe, sets=sets, dropped=dict(sorted(dropped.items())))


def _write(
    selected: Iterator[Document], draft: Path, tokenizer: Tokenizer, token_type: np.dtype[np.unsignedinteger]
) -> tuple[dict[str, TokenFile], dict[str, str]]:
    """One token file for each set that has a document, and the SHA-256 of its tokens."""
    files: dict[str, TokenFile] = {}
    with ExitStack() as stack:
        for set_name, data in selected:
            if set_name not in files:
                file = TokenFile(_token_path(draft, set_name), tokenizer, token_type)
                files[set_name] = stack.enter_context(file)
            files[set_name].add(data)
        return files, {name: file.finish() for name, file in files.items()}


def _tokenizer(recipe: DataRecipe, offered: Documents, report: Callable[[str], None]) -> Tokenizer:
    if isinstance(recipe.tokenizer, Bytes):
        return ByteTokenizer()
    report(f"corpus: training {recipe.tokenizer.vocabulary_size:,} byte pairs")
    train = (document.data for document in select(offered, Counter()) if document.set_name == TRAIN_SET)
    return train_byte_pairs(recipe.tokenizer, train)


def _set_facts(file: TokenFile) -> SetFacts:
    return SetFacts(num_tokens=file.num_tokens, num_bytes=file.num_bytes, num_documents=file.num_documents)


def _publish(draft: Path, target: Path) -> None:
    """Give a complete corpus its name; one that is there already has the same content and stays."""
    try:
        draft.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _pointed_at(pointer: Path) -> str | None:
    """The digest that the file `pointer` holds; None where there is none yet."""
    try:
        content = pointer.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not re.fullmatch(rb"[0-9a-f]{%d}" % DIGEST_LENGTH, content):
        raise InputError(f"{pointer}: damaged (it does not name a corpus); delete it and build the corpus")
    return content.decode("ascii")


def _key(recipe: DataRecipe) -> str:
    """Names what a build would read and how, without reading it."""
    learnt = _learnt_from(recipe)
    sources = {"source": fingerprint(recipe.source)} | ({} if learnt is None else {"learnt": fingerprint(learnt)})
    return digest({"format": _FORMAT, "recipe": recipe.tree(), **sources})


def _learnt_from(recipe: DataRecipe) -> SourceConfig | None:
    """The source that the tokenizer comes from, where it is another than the recipe's."""
    return None if isinstance(recipe.tokenizer, Bytes) else recipe.tokenizer.source


def _token_path(folder: Path, set_name: str) -> Path:
    return folder / f"{set_name}.tokens"


def _token_type(recipe: DataRecipe) -> np.dtype[np.unsignedinteger]:
    """The smallest little-endian unsigned integer that holds the vocabulary."""
    sizes = (("<u1", 1 << 8), ("<u2", 1 << 16), ("<u4", 1 << 32))
    return np.dtype(next(name for name, limit in sizes if recipe.vocabulary_size <= limit))


@functools.lru_cache(maxsize=64)
def _content(folder: Path, set_name: str) -> str:
    with _token_path(folder, set_name).open("rb") as file:
        tokens = hashlib.file_digest(file, "sha256").hexdigest()
    return digest({"tokenizer": open_tokenizer(folder).definition(), "tokens": tokens})


@functools.lru_cache(maxsize=64)
def _memory_map(path: Path, token_type: np.dtype[np.unsignedinteger], num_tokens: int) -> NDArray[np.unsignedinteger]:
    return np.memmap(path, token_type, mode="r", shape=(num_tokens,))


def _check_size(corpus: Corpus, set_name: str) -> None:
    path = _token_path(corpus.folder, set_name)
    expected = corpus.num_tokens(set_name) * _token_type(corpus.facts.recipe).itemsize
    found = path.stat().st_size if path.exists() else 0
    if found != expected:
        raise InputError(f"{path}: {found} bytes where {expected} belong; delete {corpus.folder} and build it again")


def _explain_empty(set_name: str, recipe: DataRecipe, dropped: Counter[str]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())) or "none"
    return (
        f"source: the {set_name} set of this {recipe.source.kind} source is empty (documents dropped: {reasons}); "
        "name more text, or cut the sets differently (validation, validation_fraction, max_bytes)"
    )


@contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written into one InputError; reading raises its own."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem = "the disk is full; free space or choose another folder"
        else:
            problem = "the corpus cannot be written here; choose a folder that can"
        raise InputError(f"{folder}: {problem} ({error})") from error

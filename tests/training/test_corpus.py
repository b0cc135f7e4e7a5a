import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from k3ablate.config import InputError
from k3ablate.training import corpus as corpus_module
from k3ablate.training import sources
from k3ablate.training.corpus import Corpus, build, known, open_corpus
from k3ablate.training.python_sources import PythonFile
from k3ablate.training.spec import BytePairs, Bytes, DataRecipe, LocalFiles, PythonSources

TRAIN = ("ab", "c", "the quick brown fox")
VALIDATION = ("jumps", "over")

Recipe = Callable[..., DataRecipe]


def silent(line: str) -> None:
    """A report that goes nowhere."""


def write_rows(path: Path, texts: Sequence[object]) -> None:
    path.write_text("".join(json.dumps({"text": text, "id": number}) + "\n" for number, text in enumerate(texts)))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A recipe that reads the given texts from JSONL files."""

    def make(
        train: Sequence[object] = TRAIN,
        validation: Sequence[object] = VALIDATION,
        name: str = "text",
        tokenizer: Bytes | BytePairs = Bytes(),  # noqa: B008 - frozen
    ) -> DataRecipe:
        write_rows(tmp_path / f"{name}-train.jsonl", train)
        write_rows(tmp_path / f"{name}-validation.jsonl", validation)
        source = LocalFiles(
            format="jsonl",
            train=(str(tmp_path / f"{name}-train.jsonl"),),
            validation=(str(tmp_path / f"{name}-validation.jsonl"),) if validation else (),
        )
        return DataRecipe(source=source, tokenizer=tokenizer)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "corpora"


def texts_of(corpus: Corpus, set_name: str) -> list[str]:
    *texts, after_last = corpus.decode(corpus.tokens(set_name)).split("\0")
    assert after_last == ""
    return texts


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_packs_each_set_with_separators(recipe: Recipe, folder: Path) -> None:
    corpus = build(recipe(), folder, silent)
    assert bytes(corpus.tokens("train")) == b"ab\0c\0the quick brown fox\0"
    assert bytes(corpus.tokens("validation")) == b"jumps\0over\0"
    assert corpus.tokens("train").dtype == np.uint8
    assert isinstance(corpus.tokens("train"), np.memmap)
    assert corpus.facts.recipe == recipe()


def test_facts_count_tokens_bytes_and_documents(recipe: Recipe, folder: Path) -> None:
    facts = build(recipe(), folder, silent).facts.sets["train"]
    assert (facts.num_documents, facts.num_bytes, facts.num_tokens) == (3, 22, 25)


def test_bits_per_byte_by_hand(recipe: Recipe, folder: Path) -> None:
    corpus = build(recipe(), folder, silent)
    assert corpus.bytes_per_token("validation") == 9 / 11  # 'jumps' and 'over' with two separators
    # One bit for each of 11 tokens is 11 bits for 9 bytes.
    assert corpus.bits_per_byte(math.log(2), "validation") == pytest.approx(11 / 9)


def test_byte_pairs_round_trip_and_bits_per_byte(recipe: Recipe, folder: Path) -> None:
    train = [f"the number {number} is écrit as {number:b}" for number in range(50)]
    corpus = build(recipe(train, tokenizer=BytePairs(vocabulary_size=300)), folder, silent)
    assert texts_of(corpus, "train") == train
    assert corpus.tokens("train").dtype == np.dtype("<u2")
    num_bytes, num_tokens = sum(len(text.encode()) for text in train), len(corpus.tokens("train"))
    assert num_tokens < num_bytes
    assert corpus.bits_per_byte(1.5, "train") == pytest.approx(1.5 * num_tokens / (math.log(2) * num_bytes))


def test_digest_names_the_content_whatever_the_files_are_called(recipe: Recipe, folder: Path) -> None:
    first, second = build(recipe(), folder, silent), build(recipe(name="other"), folder, silent)
    assert first.digest == second.digest


@pytest.mark.parametrize(
    "change",
    [
        {"train": (*TRAIN, "more")},
        {"train": ("aB", *TRAIN[1:])},
        {"train": ("a", "bc", TRAIN[2])},  # the same characters, cut elsewhere
        {"validation": ("jump", "sover")},
        {"tokenizer": BytePairs(vocabulary_size=257)},
    ],
)
def test_digest_changes_with_the_content(recipe: Recipe, folder: Path, change: dict[str, object]) -> None:
    assert build(recipe(**change), folder, silent).digest != build(recipe(), folder, silent).digest


def test_second_build_reads_nothing(recipe: Recipe, folder: Path) -> None:
    wanted = recipe()
    lines: list[str] = []
    built = build(wanted, folder, lines.append)
    assert lines != []
    lines.clear()
    assert build(wanted, folder, lines.append) == built
    assert lines == []


def test_known_without_building(recipe: Recipe, folder: Path) -> None:
    wanted = recipe()
    assert known(wanted, folder) is None
    built = build(wanted, folder, silent)
    assert known(wanted, folder) == built


def test_known_forgets_a_source_that_changed(recipe: Recipe, folder: Path) -> None:
    wanted = recipe()
    build(wanted, folder, silent)
    recipe([*TRAIN, "another"])  # overwrites the files
    assert known(wanted, folder) is None


def test_open_by_digest(recipe: Recipe, folder: Path) -> None:
    built = build(recipe(), folder, silent)
    assert open_corpus(built.digest, folder) == built


def test_no_held_out_text_is_trained_on(recipe: Recipe, folder: Path) -> None:
    corpus = build(recipe([*TRAIN, *VALIDATION, "ab"]), folder, silent)
    assert texts_of(corpus, "validation") == list(VALIDATION)
    assert texts_of(corpus, "train") == list(TRAIN)
    assert corpus.facts.dropped == {"duplicate": 3}


def test_held_out_by_hash_does_not_depend_on_the_other_texts(recipe: Recipe, folder: Path) -> None:
    texts = [f"document {number}" for number in range(600)]
    whole, half = (build(recipe(part, ()), folder, silent) for part in (texts, texts[:300]))
    held_out = set(texts_of(whole, "validation"))
    assert held_out | set(texts_of(whole, "train")) == set(texts)
    assert held_out.isdisjoint(texts_of(whole, "train"))
    assert set(texts_of(half, "validation")) == held_out & set(texts[:300])
    assert 0 < len(held_out) < 20  # 1 percent of 600, 6 standard deviations


def test_drops_what_cannot_be_packed(recipe: Recipe, folder: Path) -> None:
    corpus = build(recipe([*TRAIN, "", "nul\0inside"]), folder, silent)
    assert texts_of(corpus, "train") == list(TRAIN)
    assert corpus.facts.dropped == {"empty": 1, "holds NUL": 1}


@pytest.mark.parametrize(
    ("train", "validation", "empty"),
    [([""], VALIDATION, "train"), (TRAIN, [""], "validation"), (["one"], [], "validation"), (["a"], ["a"], "train")],
)
def test_an_empty_set_is_refused(
    recipe: Recipe, folder: Path, train: list[str], validation: list[str], empty: str
) -> None:
    with pytest.raises(InputError, match=f"the {empty} set of this files source is empty"):
        build(recipe(train, validation), folder, silent)
    assert left_behind(folder) == []


def test_full_disk(recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_token_path", lambda folder, set_name: Path("/dev/full"))
    with pytest.raises(InputError, match="the disk is full; free space") as caught:
        build(recipe(), folder, silent)
    assert str(folder) in str(caught.value)
    assert left_behind(folder) == []


def test_full_disk_while_datasets_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(paths: tuple[str, ...]) -> Iterator[dict[str, str]]:
        yield {"text": "a"}
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sources, "python_files", lambda: [PythonFile("a.py", Path("a.py"))])
    monkeypatch.setattr(sources, "_python_rows", rows)
    with pytest.raises(InputError, match="the disk is full; free space"):
        build(DataRecipe(source=PythonSources(validation=("a",), out_of_distribution=())), folder, silent)
    assert left_behind(folder) == []


def test_folder_that_cannot_be_made(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written here; choose a folder that can"):
        build(recipe(), tmp_path / "file" / "corpora", silent)


def test_interrupted_build_leaves_nothing(recipe: Recipe, folder: Path) -> None:
    def interrupt(line: str) -> None:
        if "train" in line:
            raise KeyboardInterrupt

    wanted = recipe()
    with pytest.raises(KeyboardInterrupt):
        build(wanted, folder, interrupt)
    assert left_behind(folder) == []
    assert known(wanted, folder) is None


def test_two_builders_at_once(recipe: Recipe, folder: Path) -> None:
    wanted = recipe()
    others: list[Corpus] = []

    def build_as_well(line: str) -> None:
        if not others:
            others.append(build(wanted, folder, silent))

    assert build(wanted, folder, build_as_well) == others[0]
    assert left_behind(folder) == sorted([others[0].digest, "keys"])


@pytest.mark.slow
def test_killed_build_leaves_no_corpus(recipe: Recipe, folder: Path, tmp_path: Path) -> None:
    wanted = recipe()
    script = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from k3ablate.training.corpus import build\nfrom k3ablate.training.spec import DataRecipe\n"
        "def kill(line):\n    if 'train' in line: os.kill(os.getpid(), signal.SIGKILL)\n"
        "build(DataRecipe.model_validate_json(sys.argv[1]), Path(sys.argv[2]), kill)\n"
    )
    command = [sys.executable, "-c", script, wanted.model_dump_json(), str(folder)]
    killed = subprocess.run(command, check=False, env=os.environ | {"HOME": str(tmp_path / "home")})
    assert killed.returncode == -signal.SIGKILL
    assert all(name.startswith(".building-") for name in left_behind(folder))
    assert known(wanted, folder) is None
    assert texts_of(build(wanted, folder, silent), "train") == list(TRAIN)
    assert not (tmp_path / "home").exists()  # nothing is written outside the folder


def test_truncated_tokens_are_refused(recipe: Recipe, folder: Path) -> None:
    wanted = recipe()
    corpus = build(wanted, folder, silent)
    os.truncate(corpus.folder / "train.tokens", 10)
    with pytest.raises(InputError, match="10 bytes where 25 belong; delete"):
        known(wanted, folder)


def test_damaged_manifest_is_refused(recipe: Recipe, folder: Path) -> None:
    corpus = build(recipe(), folder, silent)
    (corpus.folder / "corpus.json").write_text("{")
    with pytest.raises(InputError, match=r"corpus\.json: damaged .*; delete"):
        open_corpus(corpus.digest, folder)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"../elsewhere"])
def test_damaged_pointer_is_named(recipe: Recipe, folder: Path, content: bytes) -> None:
    wanted = recipe()
    build(wanted, folder, silent)
    (pointer,) = (folder / "keys").iterdir()
    pointer.write_bytes(content)
    with pytest.raises(InputError, match=rf"keys/{pointer.name}: damaged .*; delete it and build the corpus"):
        known(wanted, folder)
    pointer.unlink()
    assert build(wanted, folder, silent).num_tokens("train") == 25


def test_missing_corpus_and_set_are_named(recipe: Recipe, folder: Path) -> None:
    with pytest.raises(InputError, match="no corpus 0123 here; build it with `k3ablate data build"):
        open_corpus("0123", folder)
    with pytest.raises(InputError, match="no set 'test'; this corpus has train, validation"):
        build(recipe(), folder, silent).num_tokens("test")


def test_content_of_a_set_is_that_of_its_tokens_whatever_the_corpus(recipe: Recipe, folder: Path) -> None:
    one, other = build(recipe(), folder, silent), build(recipe([*TRAIN, "more"], name="other"), folder, silent)
    assert one.digest != other.digest
    assert one.content("validation") == other.content("validation")
    assert one.content("train") != other.content("train")
    assert one.content("validation") != one.content("train")
    pairs = build(recipe(tokenizer=BytePairs(vocabulary_size=257)), folder, silent)
    assert pairs.content("validation") != one.content("validation")
    with pytest.raises(InputError, match="no set 'test'"):
        one.content("test")


def test_byte_pairs_of_another_source_are_shared(recipe: Recipe, folder: Path) -> None:
    many = [f"the number {number} is {number:b}" for number in range(50)]
    tokenizer = BytePairs(vocabulary_size=300, source=recipe(many, name="taught").source)
    one = build(recipe(many, name="one", tokenizer=tokenizer), folder, silent)
    other_recipe = recipe(["another text altogether"] * 3, name="other", tokenizer=tokenizer)
    other = build(other_recipe, folder, silent)
    own = build(recipe(many, name="own", tokenizer=BytePairs(vocabulary_size=300)), folder, silent)
    assert one.digest == own.digest  # the same pairs from the same text
    assert one.content("validation") == other.content("validation")
    assert texts_of(other, "train") == ["another text altogether"]
    assert known(other_recipe, folder) == other
    recipe([*many, "more"], name="taught")  # overwrites what the pairs were learnt from
    assert known(other_recipe, folder) is None

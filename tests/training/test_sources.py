import json
import platform
import socket
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import datasets
import huggingface_hub
import pandas
import pytest

from k3ablate.config import InputError, parse, read_yaml
from k3ablate.training import sources
from k3ablate.training.corpus import Corpus, build
from k3ablate.training.curation import PythonRules
from k3ablate.training.python_sources import PythonFile, environment, python_files
from k3ablate.training.sources import fingerprint
from k3ablate.training.spec import DataRecipe, HubDataset, LocalFiles, PythonSources

RECIPES = Path(__file__).parents[2] / "recipes" / "data"
COMMIT = "0123456789abcdef"


def built(source: PythonSources | HubDataset | LocalFiles, folder: Path) -> Corpus:
    return build(DataRecipe(source=source), folder / "corpora", lambda line: None)


def texts(corpus: Corpus, set_name: str) -> list[str]:
    return corpus.decode(corpus.tokens(set_name)).split("\0")[:-1]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stands in for the installed packages; file name -> text, in the order that `python_files` gives them."""
    contents = {
        "core/a.py": "a = 1\n",
        "algebra/solve.py": "x = 0\n",
        "single.py": "alone = True\n",
        "near/b.py": "b = 2\n",
        "core/deep/c.py": "c = 3\n",
        "near/copied.py": "a = 1\n",
    }
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "python_files", lambda: [PythonFile(name, tmp_path / name) for name in contents])
    return contents


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that called out; libraries swallow what a refused call raises."""
    calls: list[object] = []

    def refuse(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert calls == []


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    """What HF_HUB_OFFLINE=1 sets, read when the libraries are imported."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("no_network")
def test_whole_packages_are_held_out(packages: dict[str, str], tmp_path: Path) -> None:
    corpus = built(PythonSources(validation=("near",), out_of_distribution=("algebra", "single")), tmp_path)
    assert texts(corpus, "validation") == [packages["near/b.py"], packages["near/copied.py"]]
    assert texts(corpus, "out_of_distribution") == [packages["algebra/solve.py"], packages["single.py"]]
    assert texts(corpus, "train") == [packages["core/deep/c.py"]]  # core/a.py is copied in a held-out package


def test_max_bytes_takes_a_prefix(packages: dict[str, str], tmp_path: Path) -> None:
    wanted = PythonSources(validation=("algebra",), out_of_distribution=(), max_bytes=20)
    corpus = built(wanted, tmp_path)
    assert texts(corpus, "train") == [packages["core/a.py"], packages["single.py"]]  # 6 + 13 bytes; the next has 6
    assert "out_of_distribution" not in corpus.facts.sets


def test_files_in_other_encodings_are_left_out(packages: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "core/a.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    (tmp_path / "single.py").unlink()
    corpus = built(PythonSources(validation=("near",), out_of_distribution=()), tmp_path)
    assert texts(corpus, "train") == [packages["algebra/solve.py"], packages["core/deep/c.py"]]


def test_unknown_package_is_named(packages: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"source\.out_of_distribution: 'algebr' is not a package .* mean algebra\?"):
        built(PythonSources(validation=("near",), out_of_distribution=("algebr",)), tmp_path)


def test_a_package_belongs_to_one_set(packages: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"source\.out_of_distribution: 'near' is named twice"):
        built(PythonSources(validation=("near",), out_of_distribution=("near",)), tmp_path)


def test_machine_has_the_packages_of_the_recipe() -> None:
    files = python_files()
    names = [file.name for file in files]
    assert len(set(names)) == len(names)
    assert {"bisect.py", "asyncio/events.py", "numpy/__init__.py"} <= set(names)
    assert not [name for name in names if name.startswith("k3ablate/")]
    assert any("/tests/" in name for name in names)  # which rules leave out
    assert all(file.path.is_absolute() for file in files)
    assert names == [file.name for file in python_files()]
    source = parse(DataRecipe, read_yaml(RECIPES / "python.yaml"), "python.yaml").source
    assert isinstance(source, PythonSources)
    assert {*source.validation, *source.out_of_distribution} <= {file.package for file in files}


def test_any_prefix_of_the_python_files_is_a_mixture() -> None:
    files = python_files()
    first = files[: len(files) // 10]
    share = {part: sum(file.package == "torch" for file in part) / len(part) for part in (tuple(files), tuple(first))}
    assert share[tuple(first)] == pytest.approx(share[tuple(files)], rel=0.2)


def test_environment_names_interpreter_and_versions() -> None:
    assert environment()[0] == f"CPython=={platform.python_version()}"
    assert f"numpy=={version('numpy')}" in environment()
    assert not [line for line in environment() if line.startswith("k3ablate")]


def test_fineweb_recipe_is_pinned_to_a_commit() -> None:
    source = parse(DataRecipe, read_yaml(RECIPES / "fineweb-edu.yaml"), "fineweb-edu.yaml").source
    assert isinstance(source, HubDataset)
    assert len(source.revision) == 40
    assert int(source.revision, 16) > 0


def stand_in(folder: Path, rows: Sequence[str]) -> Path:
    """A folder laid out like FineWeb-Edu on the Hub: parquet files, and a card that names the subset."""
    (folder / "sample" / "10BT").mkdir(parents=True)
    for shard, part in enumerate((rows[::2], rows[1::2])):
        frame = pandas.DataFrame({"text": part, "id": range(len(part))})
        frame.to_parquet(folder / "sample" / "10BT" / f"00{shard}_00000.parquet")
    card = "---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    (folder / "README.md").write_text(card)
    return folder


@pytest.mark.usefixtures("no_network")
def test_hub_dataset_from_a_local_stand_in(tmp_path: Path) -> None:
    rows = [f"page {number}" for number in range(200)]
    name = str(stand_in(tmp_path / "hub", rows))
    fineweb = parse(DataRecipe, read_yaml(RECIPES / "fineweb-edu.yaml"), "fineweb-edu.yaml").source
    assert isinstance(fineweb, HubDataset)
    corpus = built(fineweb.replaced("name", name).replaced("validation_fraction", 0.1), tmp_path)
    assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == sorted(rows)
    assert 5 <= len(texts(corpus, "validation")) <= 40  # 20 expected, standard deviation 4
    assert sorted(path.name for path in (tmp_path / "corpora").iterdir()) == sorted([corpus.digest, "keys"])


@pytest.mark.usefixtures("no_network")
def test_max_documents_takes_the_first_rows(tmp_path: Path) -> None:
    rows = [f"page {number}" for number in range(200)]
    name = str(stand_in(tmp_path / "hub", rows))
    source = HubDataset(name=name, revision=COMMIT, max_documents=50, validation_fraction=0.2)
    corpus = built(source, tmp_path)
    assert sorted(texts(corpus, "train") + texts(corpus, "validation")) == sorted(rows[:100:2])


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subset": "sample-1BT"}, "Available: .*sample-10BT"),
        ({"split": "test"}, "Available splits: .*train"),
        ({"text_column": "content"}, "source.text_column: no column 'content'; write one of id, text"),
        ({"name": "nobody/nothing"}, "nobody/nothing.* without a network, fetch it elsewhere with `hf download"),
    ],
)
def test_what_the_hub_does_not_have_is_named(tmp_path: Path, change: dict[str, str], message: str) -> None:
    options = {"name": str(stand_in(tmp_path / "hub", ["a", "b"])), "revision": COMMIT} | change
    with pytest.raises(InputError, match=message):
        built(HubDataset.model_validate(options), tmp_path)


@pytest.mark.usefixtures("no_network")
def test_formats_of_local_files_give_the_same_corpus(tmp_path: Path) -> None:
    train, held_out = ["one\nline", "zwei Zeilen é"], ["three"]
    digests = set()
    for name, members in {"train": train, "held_out": held_out}.items():
        pandas.DataFrame({"text": members, "number": 1}).to_parquet(tmp_path / f"{name}.parquet")
        lines = [json.dumps({"text": text, "extra": {"deep": 1}}) for text in members]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        for number, text in enumerate(members):
            (tmp_path / f"{name}-{number}.txt").write_bytes(text.encode())
    for file_format, pattern in (("parquet", "{}.parquet"), ("jsonl", "{}.jsonl"), ("text", "{}-*.txt")):
        patterns = {name: (str(tmp_path / pattern.format(name)),) for name in ("train", "held_out")}
        options = {"format": file_format, "train": patterns["train"], "validation": patterns["held_out"]}
        source = LocalFiles.model_validate(options)
        digests.add(built(source, tmp_path).digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": no}', r"bad\.jsonl, line 3: Expecting value"),
        ("[1]", r"bad\.jsonl, line 3: JSON, but not an object"),
        ('{"text": "\\ud800"}', r"bad\.jsonl, line 3: .*surrogate"),
        ('{"text": null}', r"bad\.jsonl: row 2 holds None in column 'text', which is not text"),
        ('{"body": "words"}', r"bad\.jsonl: row 2 holds None in column 'text', which is not text"),
    ],
)
def test_unreadable_line_of_jsonl_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{"text": "fine"}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        built(LocalFiles(format="jsonl", train=(str(tmp_path / "bad.jsonl"),)), tmp_path)


@pytest.mark.parametrize(("file_format", "content"), [("parquet", b"PAR?"), ("text", b"\xff\xfe"), ("jsonl", b"\xff")])
def test_unreadable_file_is_named(tmp_path: Path, file_format: str, content: bytes) -> None:
    (tmp_path / "good").write_bytes(b"")
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(InputError, match=r"bad: .*; mend or remove it"):
        built(LocalFiles.model_validate({"format": file_format, "train": [str(tmp_path / "bad")]}), tmp_path)


@pytest.mark.parametrize(
    ("file_format", "message"),
    [
        ("jsonl", r"empty\.jsonl: no rows; add some, or leave the file out of the recipe"),
        ("parquet", r"empty\.parquet: cannot be read: .*empty\.parquet: no rows; mend or remove it"),
        ("text", r"the train set of this files source is empty \(documents dropped: 2 empty\)"),
    ],
)
def test_file_without_rows_is_named(tmp_path: Path, file_format: str, message: str) -> None:
    path = tmp_path / f"empty.{file_format}"
    path.touch()
    if file_format == "parquet":
        pandas.DataFrame({"text": pandas.Series([], dtype="str")}).to_parquet(path)
    with pytest.raises(InputError, match=message):
        built(LocalFiles(format=file_format, train=(str(path),), validation=(str(path),)), tmp_path)


def test_wrong_text_column_names_the_columns(tmp_path: Path) -> None:
    pandas.DataFrame({"body": ["a"], "id": [1]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: source\.text_column: no column 'text'; write one of body, id"):
        built(LocalFiles(format="parquet", train=(str(tmp_path / "a.parquet"),)), tmp_path)


@pytest.mark.parametrize("field", ["train", "validation", "out_of_distribution"])
def test_glob_that_matches_nothing_is_named(tmp_path: Path, field: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    patterns = {"train": [str(tmp_path / "*.txt")]} | {field: [str(tmp_path / "*.text")]}
    with pytest.raises(InputError, match=rf"source\.{field}: no file matches '.*\*\.text'"):
        built(LocalFiles.model_validate({"format": "text"} | patterns), tmp_path)


def test_fingerprint_follows_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    source = LocalFiles(format="text", train=(str(tmp_path / "*.txt"),))
    before = fingerprint(source)
    assert fingerprint(source) == before
    (tmp_path / "b.txt").write_text("b")
    assert fingerprint(source) != before


def test_settings_of_the_library_are_put_back() -> None:
    def settings() -> tuple[bool, int, bool]:
        library = datasets
        bars, verbosity = library.are_progress_bars_disabled(), library.logging.get_verbosity()
        return bars, verbosity, library.config.HF_UPDATE_DOWNLOAD_COUNTS

    before = settings()
    with sources.quiet():
        assert settings() == (True, datasets.logging.CRITICAL, False)
    assert settings() == before


def test_rules_choose_training_text_and_leave_what_is_held_out(
    packages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages |= {
        "core/tests/check.py": "assert True\n",
        "near/tests/check.py": "assert near\n",
        "core/again.py": "c = 3\n",
        "core/_vendor/told.py": '"""Told."""\n',
        "core/told.py": '"""Told as well."""\n',
    }
    for name, text in packages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources, "python_files", lambda: [PythonFile(name, tmp_path / name) for name in packages])

    def with_rules(rules: PythonRules) -> Corpus:
        return built(PythonSources(validation=("near",), out_of_distribution=("algebra",), rules=rules), tmp_path)

    plain = with_rules(PythonRules())
    raw = with_rules(PythonRules(tests="keep", copies=True))
    curated = with_rules(PythonRules(tests="drop", vendored=False, generated=False, least_documented=0.5))
    for held_out in ("validation", "out_of_distribution"):
        assert len({corpus.content(held_out) for corpus in (plain, raw, curated)}) == 1
    assert "assert near\n" not in texts(raw, "train") + texts(raw, "validation")  # tests of held-out code: nowhere
    assert sorted(texts(raw, "train")) == sorted([
        "alone = True\n", "c = 3\n", "c = 3\n", "assert True\n", '"""Told."""\n', '"""Told as well."""\n',
    ])  # fmt: skip
    assert texts(curated, "train") == ['"""Told as well."""\n']
    assert curated.facts.dropped == {"test": 2, "undocumented": 4, "vendored": 1}
    assert plain.facts.dropped == {"duplicate": 2, "test": 2}


def test_curated_and_raw_python_hold_out_what_python_does() -> None:
    held_out = set()
    for name in ("python", "python-raw", "python-curated"):
        recipe = parse(DataRecipe, read_yaml(RECIPES / f"{name}.yaml"), name)
        assert isinstance(recipe.source, PythonSources)
        held_out.add((recipe.source.validation, recipe.source.out_of_distribution, recipe.tokenizer))
    assert len(held_out) == 1

"""Where do documents come from? Each source of a recipe becomes named sets of texts, read through `datasets`.

Nothing here tokenizes or removes duplicates; that is `packing`. `fingerprint` says what a source would read without
reading it, so that a corpus built before is recognised in milliseconds; it does not import `datasets`.
"""

import difflib
import glob
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate.config import InputError, Tree
from k3ablate.records import PUBLISHED_SET
from k3ablate.training.curation import PythonRules, name_refused, text_refused
from k3ablate.training.python_sources import OURSELVES, PythonFile, environment, python_files
from k3ablate.training.spec import HubDataset, LocalFiles, PythonSources, SourceConfig

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

TRAIN_SET = "train"
OUT_OF_DISTRIBUTION_SET = "out_of_distribution"

HELD_OUT_RULES = PythonRules()  # whatever the recipe's are

# Held-out sets are read first, so that a text that sits in several sets stays out of the training set.
READING_ORDER = (PUBLISHED_SET, OUT_OF_DISTRIBUTION_SET, TRAIN_SET)


@dataclass(frozen=True)
class Texts:
    """The text column of a dataset, row by row; can be read any number of times. Unreadable input is an InputError."""

    dataset: "Dataset | IterableDataset"
    column: str
    origin: str  # how messages call it
    explain: Callable[[], str] | None = None  # finds the row that the library could not read

    def __iter__(self) -> Iterator[str]:
        with _reading(self.origin, self.explain):
            for number, row in enumerate(self.dataset):
                yield self._text(row, number)

    def _text(self, row: Mapping[str, object], number: int) -> str:
        if self.column not in row:
            raise InputError(
                f"{self.origin}: source.text_column: no column {self.column!r}; write one of {', '.join(sorted(row))}"
            )
        text = row[self.column]
        if not isinstance(text, str):
            raise InputError(
                f"{self.origin}: row {number} holds {text!r} in column {self.column!r}, which is not text; "
                "remove the row or name another source.text_column"
            )
        return text


@dataclass(frozen=True)
class Documents:
    """What a source offers, before anything is dropped: texts by set name, and how the sets are cut."""

    sets: Mapping[str, Iterable[str]]
    held_out_fraction: float = 0.0  # of the training texts, chosen by a hash, for a source without a validation set
    max_bytes: int | None = None  # of training text
    refused: Callable[[str], str | None] | None = None  # why a training text is left out; None if it is kept
    keeps_copies: bool = False  # of training texts within the training set
    left_out: Mapping[str, int] = field(default_factory=dict)  # documents that are not offered, by reason


def documents(source: SourceConfig, cache: Path) -> Documents:
    """The texts of `source`; `datasets` keeps its files below `cache`, which must outlive the reading.

    The Hub client alone keeps a dataset's card in its own cache. Missing packages, files, columns or datasets are
    InputErrors, here or when the texts are read.
    """
    match source:
        case PythonSources():
            return _python_documents(source, cache)
        case HubDataset():
            return _hub_documents(source, cache)
        case LocalFiles():
            return _file_documents(source, cache)


def fingerprint(source: SourceConfig) -> Tree:
    """What the content of `source` depends on beyond the recipe, found without reading a document."""
    match source:
        case PythonSources():
            return environment()
        case HubDataset():  # the revision is in the recipe; a folder in place of a name has none
            return _stamps(sorted(path for path in Path(source.name).rglob("*") if path.is_file()))
        case LocalFiles():
            return [_stamps(_matching(field, getattr(source, field))) for field in _FILE_SETS]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep `datasets` from drawing progress bars, logging, and counting each load of local files on a server."""
    import datasets  # takes most of a second, and looking up a built corpus does without

    bars_were_off, verbosity = datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    counted = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    try:
        yield
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counted
        datasets.logging.set_verbosity(verbosity)
        if not bars_were_off:
            datasets.enable_progress_bars()


def _python_documents(source: PythonSources, cache: Path) -> Documents:
    rules = source.rules
    files = python_files()
    held_out = _held_out_packages(source, {file.package for file in files})
    chosen: dict[str, list[PythonFile]] = {name: [] for name in (TRAIN_SET, *held_out.values())}
    left_out: Counter[str] = Counter()
    for file in files:
        set_name = held_out.get(file.package, TRAIN_SET)
        reason = name_refused(file.name, rules if set_name == TRAIN_SET else HELD_OUT_RULES)
        if reason is None:
            chosen[set_name].append(file)
        else:
            left_out[reason] += 1
    sets = {name: Texts(_read_python(members, cache), "text", "python sources") for name, members in chosen.items()}
    return Documents(
        sets,
        max_bytes=source.max_bytes,
        refused=lambda text: text_refused(text, rules),
        keeps_copies=rules.copies,
        left_out=left_out,
    )


def _held_out_packages(source: PythonSources, installed: set[str]) -> dict[str, str]:
    """The set of each package that is held out; one that is not installed or named twice is an InputError."""
    held_out: dict[str, str] = {}
    for set_name in (PUBLISHED_SET, OUT_OF_DISTRIBUTION_SET):
        for package in getattr(source, set_name):
            if package not in installed or package == OURSELVES:
                near = difflib.get_close_matches(package, installed, n=3)
                hint = f"did you mean {' or '.join(near)}?" if near else "install it or remove it from the list"
                raise InputError(f"source.{set_name}: {package!r} is not a package of this environment; {hint}")
            if package in held_out:
                raise InputError(f"source.{set_name}: {package!r} is named twice; name it in one held-out set")
            held_out[package] = set_name
    return held_out


def _read_python(files: list[PythonFile], cache: Path) -> "Dataset":
    from datasets import Dataset, Features, Value
    from datasets.exceptions import DatasetGenerationError

    try:
        return Dataset.from_generator(
            _python_rows,
            features=Features({"text": Value("string")}),
            gen_kwargs={"paths": tuple(str(file.path) for file in files)},
            cache_dir=str(cache),
        )
    except DatasetGenerationError as error:  # the library's wrapper hides a full disk
        raise error.__cause__ or error from error


def _python_rows(paths: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The files that are UTF-8; a few of thousands are in another encoding, listed but gone, or not ours to read."""
    for path in map(Path, paths):
        try:
            yield {"text": path.read_bytes().decode("utf-8")}
        except (UnicodeDecodeError, FileNotFoundError, PermissionError):
            continue


def _hub_documents(source: HubDataset, cache: Path) -> Documents:
    """Streamed, so that a capped corpus downloads only the rows it keeps."""
    from datasets import load_dataset

    with _reading(source.name, lambda: _hub_advice(source)):
        dataset = load_dataset(
            source.name,
            source.subset,
            split=source.split,
            revision=source.revision,
            cache_dir=str(cache),
            streaming=True,
        )
    if source.max_documents is not None:
        dataset = dataset.take(source.max_documents)
    texts = Texts(dataset, source.text_column, source.name, lambda: _hub_advice(source))
    return Documents({TRAIN_SET: texts}, held_out_fraction=source.validation_fraction)


def _hub_advice(source: HubDataset) -> str:
    return (
        f"source.name {source.name!r}, subset {source.subset!r}, split {source.split!r} and revision "
        f"{source.revision!r} must exist on the Hub; without a network, fetch it elsewhere with "
        f"`hf download --repo-type dataset {source.name} --revision {source.revision} --local-dir FOLDER` "
        "and write source.name: FOLDER"
    )


_FILE_SETS = (TRAIN_SET, PUBLISHED_SET, OUT_OF_DISTRIBUTION_SET)
_BUILDERS = {"parquet": "parquet", "jsonl": "json", "text": "text"}  # our name of a format -> that of `datasets`


def _file_documents(source: LocalFiles, cache: Path) -> Documents:
    paths = {name: _matching(name, getattr(source, name)) for name in _FILE_SETS}
    sets = {name: _read_files(source, members, cache) for name, members in paths.items() if members}
    return Documents(sets, held_out_fraction=0.0 if source.validation else source.validation_fraction)


def _read_files(source: LocalFiles, paths: list[Path], cache: Path) -> Texts:
    from datasets import load_dataset

    origin = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    # A text file is one document: its lines are not.
    options = {"sample_by": "document"} if source.format == "text" else {}

    def explain() -> str:
        return _first_unreadable(source.format, paths)

    with _reading(origin, explain):
        dataset = load_dataset(
            _BUILDERS[source.format],
            data_files=[str(path) for path in paths],
            split="train",  # what `datasets` calls files without named splits
            cache_dir=str(cache),
            streaming=True,
            **options,
        )
    return Texts(dataset, "text" if source.format == "text" else source.text_column, origin, explain)


def _matching(field: str, patterns: tuple[str, ...]) -> list[Path]:
    """The files of glob `patterns`, each once, sorted within a pattern; one that matches nothing is an InputError."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        files = [path for path in map(Path, sorted(glob.glob(pattern, recursive=True))) if path.is_file()]
        if not files:
            raise InputError(f"source.{field}: no file matches {pattern!r} (seen from {Path.cwd()}); correct the path")
        found.update(dict.fromkeys(files))
    return list(found)


def _stamps(paths: list[Path]) -> Tree:
    """Path, size in bytes and time of change of each file."""
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


@contextmanager
def _reading(origin: str, explain: Callable[[], str] | None) -> Iterator[None]:
    """Turn what libraries raise about unreadable input into one InputError; pyarrow's errors are ValueErrors."""
    try:
        yield
    except InputError:
        raise
    except StopIteration as error:  # out of `datasets`, which looks for columns in a first row
        raise InputError(f"{origin}: no rows; add some, or leave the file out of the recipe") from error
    except (OSError, ValueError) as error:
        advice = f"; {explain()}" if explain is not None else ""
        raise InputError(f"{origin}: cannot be read: {' '.join(str(error).split())}{advice}") from error


def _first_unreadable(file_format: str, paths: list[Path]) -> str:
    """Which file, and which line of a JSONL file, is not in `file_format`."""
    for path in paths:
        place = [str(path)]
        try:
            _read_strictly(file_format, path, place)
        except (OSError, ValueError) as error:
            return f"{', '.join(place)}: {error}; mend or remove it"
    return f"check that every file is in the format {file_format!r}"


def _read_strictly(file_format: str, path: Path, place: list[str]) -> None:
    """Raise on the first part of a file that cannot be read; `place` then says where it is."""
    if file_format == "parquet":
        import pyarrow.parquet

        if pyarrow.parquet.read_table(path).num_rows == 0:
            raise ValueError("no rows")
        return
    text = path.read_text(encoding="utf-8")
    if file_format == "jsonl":
        for number, line in enumerate(text.split("\n"), start=1):
            place[1:] = [f"line {number}"]
            row = json.loads(line) if line.strip() else {}
            if not isinstance(row, dict):
                raise ValueError("JSON, but not an object")  # noqa: TRY004 - caught beside the other bad values
            json.dumps(row, ensure_ascii=False).encode()  # fails on half a surrogate pair, which JSON lets pass

"""Which rows of a table of records may be compared, and which are left out, and why?

Takes the columns of `records.COLUMNS` or anybody's table that `columns.canonical` has read; `status`, `reason` and
`digest` are used where they are there, and so are columns of which a table may hold one value only: validation sets,
tokenizers, metrics and units, under any name of `SINGLE_VALUED`, and `corpus`, of which several may share one
`validation_content`. Other text columns that are constant within every arm are taken as components' levels. Nothing is
fitted here, and no row is dropped without an entry in `excluded`.
"""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas

from k3ablate.config import InputError
from k3ablate.fits.columns import OURS, row_name
from k3ablate.fits.paired import Point
from k3ablate.records import COLUMNS, Status

LABELS = ("arm", "size", "seed")
ROLES = {ours: role for role, ours in OURS.items()}
VALIDATION_SETS = "(val|valid|validation|eval|evaluation|test|held_?out)_?(set|data|data_?set|corpus|split)"
TOKENIZERS = "tokeni[sz]er|vocab(ulary)?"
LABELS_OF_LOSSES = rf"corpus|validation|({VALIDATION_SETS}|{TOKENIZERS})(_?(name|id))?|metric|flops_convention"
# Losses that differ in one of these words do not compare; matched in small letters, with _ for spaces and hyphens.
SINGLE_VALUED = re.compile(rf"{LABELS_OF_LOSSES}|(.*_)?units?(_.*)?")
# Whole numbers of these names are labels too; of others, such as hidden_units, they count something.
LABELLED = re.compile(rf"{LABELS_OF_LOSSES}|units?|(loss|flops|compute)_units?")
BETWEEN_WORDS = re.compile(r"[\s_.-]+")
MAX_NAMED = 6  # rows of one digest


@dataclass(frozen=True)
class Excluded:
    """A run that is in no fit, with the reason."""

    arm: str
    size: str
    seed: int
    status: str
    reason: str


@dataclass(frozen=True)
class Observations:
    """Finished runs by arm (in the table's order, ascending compute), what was left out, and the arms' levels.

    An arm of which no run finished has no points, and neither has any arm of a table without a finished run.
    """

    points: Mapping[str, tuple[Point, ...]]
    excluded: tuple[Excluded, ...]
    levels: Mapping[str, Mapping[str, str]]  # arm -> component -> level

    def by_name(self) -> "Observations":
        """The same with the arms by name, in which nothing drawn depends on the order of the table."""
        return replace(self, points=dict(sorted(self.points.items())))


@dataclass(frozen=True)
class Usable:
    """The finished rows of a table, with text arms and sizes; every arm of it; and the rows that are in no fit.

    Arms are in the table's order, rows of an arm by what was trained, size and seed.
    """

    finished: pandas.DataFrame
    arms: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    levels: Mapping[str, Mapping[str, str]]  # arm -> component -> level


def observations(table: pandas.DataFrame) -> Observations:
    """Points of loss against compute; InputError for a table whose losses cannot be compared."""
    return of_compute(usable(table, ("loss", "flops")))


def of_compute(found: Usable) -> Observations:
    """Points of loss against compute, from rows that have both."""
    rows = found.finished
    points = {arm: _points(rows[rows["arm"] == arm]) for arm in found.arms}
    return Observations(points, found.excluded, found.levels)


def usable(table: pandas.DataFrame, numbers: Sequence[str], names: Mapping[str, str] = MappingProxyType({})) -> Usable:
    """The rows that may be fitted, whose `numbers` are all positive and finite (statistics.md, section 6).

    InputError for a table whose losses cannot be compared; it calls a column as `names` does, where that has it.
    """
    missing = [names.get(column, column) for column in (*LABELS, *numbers) if column not in table]
    if missing:
        raise InputError(f"table: no column {', '.join(missing)}; it has {', '.join(map(str, table.columns))}")
    if table.empty:
        raise InputError("table: no rows; write one per run below the header, or run the experiment first")
    _refuse_missing_labels(table)
    labels = table[["arm", "size"]].astype(str).assign(arm=lambda rows: rows["arm"].str.strip())
    rows = table.assign(arm=labels["arm"], size=labels["size"], seed=table["seed"].astype(int), status=_statuses(table))
    _refuse_duplicates(rows)
    _refuse_mixtures(rows)
    finished = rows[rows["status"] == Status.FINISHED]
    _refuse_unusable_numbers(finished, {column: names.get(column, column) for column in numbers})
    rows = _in_order(rows, [column for column in numbers if column != "loss"])
    finished = rows[rows["status"] == Status.FINISHED]
    excluded = tuple(_excluded(row) for _, row in rows[rows["status"] != Status.FINISHED].iterrows())
    numeric = finished.assign(**{column: finished[column].astype(np.float64) for column in numbers})
    return Usable(numeric, tuple(dict.fromkeys(rows["arm"])), excluded, _levels(rows))


def check_arm(name: str, known: Mapping[str, object], what: str = "baseline") -> None:
    """InputError with the arms there are, and the nearest, where `name`, asked for as `what`, is not in the table."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = (f"did you mean {near[0]!r}? " if near else "") + f"write one of {', '.join(known)}"
        raise InputError(f"{what}: no arm {name!r} in the table; {advice}")


def must_not_differ(column: str) -> bool:
    """Whether losses that differ in this column do not compare, going by its name."""
    return SINGLE_VALUED.fullmatch(_plain(column)) is not None


def _statuses(table: pandas.DataFrame) -> list[str]:
    """Status of each row; a table without the column holds finished runs only."""
    if "status" not in table:
        return [Status.FINISHED] * len(table)
    known = {str(status) for status in Status}
    for index, value in table["status"].items():
        if str(value) not in known:
            raise InputError(
                f"table: {row_name(index)}: status {value!r}; write one of {', '.join(sorted(known))}, or say which "
                f"runs count (--where status={value})"
            )
    return [str(value) for value in table["status"]]


def _refuse_missing_labels(table: pandas.DataFrame) -> None:
    for column in ("arm", "size", "seed"):
        empty = table.index[table[column].isna() | (table[column].astype(str).str.strip() == "")]
        if len(empty):
            raise InputError(f"table: {row_name(empty[0])}: no {column}; every run needs one")
    seeds = pandas.to_numeric(table["seed"], errors="coerce")
    wrong = table.index[seeds.isna() | (seeds % 1 != 0)]
    if len(wrong):
        raise InputError(f"table: {row_name(wrong[0])}: seed {table.loc[wrong[0], 'seed']}; write a whole number")


def _refuse_duplicates(rows: pandas.DataFrame) -> None:
    """One row per run: a digest twice, or an arm, size and seed twice, would count one run as two."""
    if "digest" in rows:
        digests = rows["digest"].dropna()
        repeated = digests[digests.duplicated(keep=False)]
        if len(repeated):
            where = rows.loc[repeated.index[repeated == repeated.iloc[0]], ["arm", "size", "seed"]]
            named = [f"{row.arm} {row.size} seed {row.seed}" for row in where.head(MAX_NAMED).itertuples()]
            labels = " and ".join(named) + (" ..." if len(where) > MAX_NAMED else "")
            raise InputError(
                f"table: digest {repeated.iloc[0]} stands {len(where)} times ({labels}); keep one row per run "
                "and one experiment per table"
            )
    cells = rows[["arm", "size", "seed"]]
    repeated_cells = cells[cells.duplicated()]
    if len(repeated_cells):
        arm, size, seed = repeated_cells.iloc[0]
        raise InputError(f"table: arm {arm}, size {size}, seed {seed} stands more than once; keep one row per run")


def _refuse_mixtures(rows: pandas.DataFrame) -> None:
    finished = rows["status"] == Status.FINISHED
    for column in rows:
        if not must_not_differ(str(column)) or _measures(_plain(column), rows[column]):
            continue
        if column == "corpus" and _share_validation(rows[finished]):
            continue
        empty = rows[column].isna() | (rows[column].map(lambda cell: str(cell).strip()) == "")
        values = sorted(map(str, rows[column][~empty].unique()))
        rule = shlex.quote(f"{column}={values[0]}") if values else ""
        if len(values) > 1:
            raise InputError(
                f"table: {len(values)} values of {column} ({', '.join(values)}); losses of more than one {column} do "
                f"not compare: keep the rows of one (--where {rule})"
            )
        unknown = rows.index[empty & finished]
        if values and len(unknown):
            raise InputError(
                f"table: {row_name(unknown[0])}: no {column}, which is {values[0]} on others ({len(unknown)} of "
                f"{int(finished.sum())} finished rows have none); write it on every row, or keep the rows that have it "
                f"(--where {rule})"
            )


def _plain(column: object) -> str:
    """The name of a column as `SINGLE_VALUED` has it: Val-Set and 'val set' are val_set."""
    return BETWEEN_WORDS.sub("_", str(column).strip().lower())


def _share_validation(finished: pandas.DataFrame) -> bool:
    """Whether runs of several corpora, as data recipes make them, were evaluated on one set, by its content."""
    contents = finished["validation_content"] if "validation_content" in finished else pandas.Series(dtype=object)
    return len(contents) > 0 and bool(contents.notna().all()) and contents.nunique() == 1


def _measures(name: str, column: pandas.Series) -> bool:
    """Whether a column holds numbers that are no labels, such as hidden units, or losses on a validation set."""
    if not pandas.api.types.is_numeric_dtype(column) or pandas.api.types.is_bool_dtype(column):
        return False
    return not LABELLED.fullmatch(name) or bool((column.dropna() % 1 != 0).any())


def _refuse_unusable_numbers(finished: pandas.DataFrame, columns: Mapping[str, str]) -> None:
    """Finished runs have a positive, finite loss and compute; anything else is an error in the table."""
    for column, name in columns.items():
        numbers = pandas.to_numeric(finished[column], errors="coerce").to_numpy(dtype=np.float64)
        bad = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
        if len(bad):
            row = finished.iloc[int(bad[0])]
            needed = name if name == column else f"number in the {ROLES[column]} column {name}"
            raise InputError(
                f"table: {row_name(finished.index[int(bad[0])])}: {row['arm']} {row['size']} seed {row['seed']}: "
                f"finished with {name} {row[column]}; a positive, finite {needed} is needed, or a column status that "
                "says why there is none (diverged, failed, out_of_time); --where keeps other rows"
            )


def _in_order(rows: pandas.DataFrame, trained: Sequence[str]) -> pandas.DataFrame:
    """Rows by arm, what was trained, size and seed, so that sums and draws do not depend on the order of the table."""
    positions = {arm: index for index, arm in enumerate(dict.fromkeys(rows["arm"]))}
    numbers = {name: pandas.to_numeric(rows[name], errors="coerce") for name in trained}
    keys = rows.assign(arm=rows["arm"].map(positions), **numbers).reset_index(drop=True)
    return rows.iloc[keys.sort_values(["arm", *trained, "size", "seed"], kind="stable").index]


def _excluded(row: pandas.Series) -> Excluded:
    reason = row.get("reason")
    text = str(reason) if isinstance(reason, str) and reason else "no reason recorded"
    return Excluded(str(row["arm"]), str(row["size"]), int(row["seed"]), str(row["status"]), text)


def _points(rows: pandas.DataFrame) -> tuple[Point, ...]:
    columns = (rows[name] for name in ("size", "seed", "flops", "loss"))
    points = [
        Point(str(size), int(seed), float(flops), float(loss)) for size, seed, flops, loss in zip(*columns, strict=True)
    ]
    return tuple(sorted(points, key=lambda point: (point.compute, point.seed)))


def _levels(rows: pandas.DataFrame) -> dict[str, dict[str, str]]:
    """Level of every component per arm, from the text columns that records do not have by themselves."""
    names = [str(column) for column in rows if column not in COLUMNS]
    own = [name for name in names if not name.startswith(("loss:", "bits_per_byte:"))]
    per_arm = rows.groupby("arm", sort=False)
    constant = [column for column in own if (per_arm[column].nunique(dropna=False) == 1).all()]
    components = [column for column in constant if rows[column].map(lambda value: isinstance(value, str)).all()]
    first = per_arm[components].first() if components else pandas.DataFrame(index=pandas.Index(rows["arm"].unique()))
    return {str(arm): {str(name): str(level) for name, level in row.items()} for arm, row in first.iterrows()}

"""Which columns of anybody's table hold what, and which of its rows were asked for?

`canonical` gives a table our column names (those of `records.COLUMNS`), keeps the rows that rules such as `used=1` or
`tokens>=1e9` name, and makes up the labels that a table of runs may lack: one arm, sizes from what was trained, seeds
by counting. Runs that share their labels and were trained on other tokens, say, are of different sizes. Spaces around
the name of an arm are no part of it. Whether the rows can be compared or fitted is not asked here; see `observations`
and `fitting`.
"""

import dataclasses
import difflib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas

from k3ablate.config import InputError

ONLY_ARM = "all"
RULE = re.compile(r"\s*(?P<column>[^=!<>]+?)\s*(?P<comparison>==|!=|<=|>=|=|<|>)\s*(?P<value>.*?)\s*")
COMPARISONS: dict[str, Callable[[pandas.Series, float], pandas.Series]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what; the defaults are those of `records.COLUMNS`."""

    arm: str = "arm"
    size: str = "size"
    seed: str = "seed"
    compute: str = "flops"
    loss: str = "loss"
    params: str = "active_params"
    tokens: str = "tokens"


# Role -> our name of its column.
OURS: dict[str, str] = dataclasses.asdict(Columns())


def canonical(
    table: pandas.DataFrame, columns: Columns, where: Sequence[str] = ()
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """The table with our column names and the rows that `where` keeps (column=value, also != < <= > >=).

    Row labels stay those of the table. Beside it one sentence per rule, with the number of rows it left out. A rule
    about `status` decides which runs count, whatever the words of that column. InputError for a column that is not
    there, a rule that keeps nothing, and what cannot be read as a rule.
    """
    _refuse_one_column_for_two(columns)
    _refuse_repeated_columns(table)
    kept, sentences = _kept(table, where)
    theirs = {ours: getattr(columns, role) for role, ours in OURS.items()}
    for role, ours in OURS.items():
        if theirs[ours] not in kept and (theirs[ours] != ours or role == "loss"):
            raise InputError(f"table: no column {theirs[ours]!r} for {role}; {_known(theirs[ours], kept)}")
    if columns.seed not in kept:
        _refuse_copies(kept, columns.loss)
    replaced = set(theirs.values()) - set(OURS.values())
    if any(_parsed(rule)[0] == "status" for rule in where):
        replaced.add("status")
    named = kept.drop(columns=[name for name in kept if name in replaced])
    present = {ours: kept[name] for ours, name in theirs.items() if name in kept}
    if "arm" in present:
        present["arm"] = present["arm"].map(stripped)
    return _labelled(named.assign(**present)), sentences


def stripped(cell: object) -> object:
    """A cell without the spaces around its text."""
    return cell.strip() if isinstance(cell, str) else cell


def row_name(label: object) -> str:
    """A row as people count: 'row 1 of the data' is the first below the header; other labels are its name."""
    return f"row {label + 1} of the data" if isinstance(label, int | np.integer) else f"row {label!r}"


def _kept(table: pandas.DataFrame, where: Sequence[str]) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    sentences = []
    for rule in where:
        keeps = _selected(table, rule)
        if not keeps.any():
            raise InputError(f"--where {rule}: keeps none of {len(table)} rows; {_values_of(table, rule)}")
        sentences.append(f"{rule}: {len(table) - int(keeps.sum())} of {len(table)} rows left out")
        table = table[keeps]
    return table, tuple(sentences)


def _selected(table: pandas.DataFrame, rule: str) -> pandas.Series:
    """Whether each row obeys `rule`; an empty cell obeys only !=."""
    column, comparison, value = _parsed(rule)
    if column not in table:
        raise InputError(f"--where {rule}: no column {column!r}; {_known(column, table)}")
    cells = table[column]
    if pandas.api.types.is_numeric_dtype(cells) and not pandas.api.types.is_bool_dtype(cells):
        return COMPARISONS[comparison](cells, _as_number(value, rule)).astype(bool)
    if comparison not in {"=", "!="}:
        raise InputError(f"--where {rule}: column {column} holds text, which has no order; write {column}=value")
    equal = cells.map(lambda cell: _text(cell) == _text(value)) & cells.notna()
    return equal if comparison == "=" else ~equal


def _parsed(rule: str) -> tuple[str, str, str]:
    found = RULE.fullmatch(rule)
    if found is None or not found["value"]:
        raise InputError(f"--where {rule}: write column=value, or one of != < <= > >= between them")
    return found["column"], {"==": "="}.get(found["comparison"], found["comparison"]), found["value"]


def _as_number(value: str, rule: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"--where {rule}: its column holds numbers and {value!r} is none; write a number") from None


def _text(cell: object) -> str:
    """A cell as it is compared: true and True are one word."""
    text = str(cell).strip()
    return text.lower() if text.lower() in {"true", "false"} else text


def _values_of(table: pandas.DataFrame, rule: str) -> str:
    column = _parsed(rule)[0]
    found = [str(value) for value in table[column].dropna().unique()]
    return f"{column} is {', '.join(found[:6])}{', ...' if len(found) > 6 else ''}" if found else f"{column} is empty"


def _known(name: str, table: pandas.DataFrame) -> str:
    """Advice about a column that is not there."""
    near = difflib.get_close_matches(name, map(str, table.columns), n=1, cutoff=0.7)
    return f"it has {', '.join(map(str, table.columns))}" + (f"; did you mean {near[0]!r}?" if near else "")


def _refuse_one_column_for_two(columns: Columns) -> None:
    """Two roles that were named, or the loss and any other, do not lie in one column."""
    roles = {columns.loss: "loss"}
    for role, ours in OURS.items():
        name = getattr(columns, role)
        if role != "loss" and name != ours and roles.setdefault(name, role) != role:
            raise InputError(
                f"table: column {name!r} is named for {roles[name]} and for {role}; name one column for each"
            )


def _refuse_repeated_columns(table: pandas.DataFrame) -> None:
    repeated = table.columns[table.columns.duplicated()]
    if len(repeated):
        raise InputError(f"table: more than one column {str(repeated[0])!r}; give every column a name of its own")


def _labelled(table: pandas.DataFrame) -> pandas.DataFrame:
    """The table with an arm, a size and a seed on every row."""
    trained = [name for name in ("tokens", "active_params", "flops") if name in table]
    if "arm" not in table:
        table = table.assign(arm=ONLY_ARM)
    if "size" not in table and not trained:
        raise InputError(
            f"table: no column tells the size of a run: name its compute, or its parameters and tokens; "
            f"it has {', '.join(map(str, table.columns))}"
        )
    if "size" not in table:
        table = table.assign(size=_joined([table[name] for name in reversed(trained)]))
    run = ["arm", "size", *(["seed"] if "seed" in table else [])]
    for name in trained:
        # runs of one label that differ in this are of different sizes; columns that follow from it then differ no more
        if (table.groupby(run, dropna=False)[name].nunique() > 1).any():
            table = table.assign(size=_joined([table["size"], table[name]]))
    if "seed" not in table:
        table = table.assign(seed=table.groupby(["arm", "size"], sort=False, dropna=False).cumcount())
    return table


def _refuse_copies(table: pandas.DataFrame, loss: str) -> None:
    """Without a column of seeds a row that repeats another would count as a second seed."""
    measured = table[table[loss].notna()].astype(object)
    copies = measured.duplicated().to_numpy().nonzero()[0]
    if len(copies):
        copy = measured.iloc[copies[0]]
        same = (measured.eq(copy) | (measured.isna() & copy.isna())).all(axis=1)
        raise InputError(
            f"table: {row_name(measured.index[copies[0]])} repeats {row_name(measured.index[same][0])} in every "
            "column; remove it, or write a column seed if it is another run"
        )


def _joined(columns: Sequence[pandas.Series]) -> pandas.Series:
    """One label out of several cells of a row."""
    cells = [[_size(cell) for cell in column] for column in columns]
    return pandas.Series([" ".join(parts) for parts in zip(*cells, strict=True)], index=columns[0].index, dtype=object)


def _size(cell: object) -> str:
    """Twelve digits: less is rounding of one compute, as tables with one column computed from another have it."""
    return f"{cell:.12g}" if isinstance(cell, float | int) else str(cell)

"""Is this file a table, and if not, what is wrong with it? Anybody's CSV or parquet file, read whole.

Every refusal is an InputError that names the file, what is wrong and what to write. Columns are not looked at here;
see `fits.columns`. A CSV is UTF-8 with commas between its cells; where its header is one cell by commas and holds
semicolons, or else tabs, those stand between the cells. Numbers have a decimal point.
"""

import csv
import re
from io import BytesIO, StringIO
from pathlib import Path

import pandas

from k3ablate.config import InputError

TABLE_SUFFIXES = (".csv", ".parquet")
PARQUET_MAGIC = b"PAR1"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
OTHER_SEPARATORS = (";", "\t")
WITH_COMMA = re.compile(r"\s*[+-]?\d+,\d+([eE][+-]?\d+)?\s*")
NUMBER = re.compile(r"\s*[+-]?\d+([.,]\d+)?([eE][+-]?\d+)?\s*")


def read_csv(path: Path) -> pandas.DataFrame:
    """The table in a file of comma-, semicolon- or tab-separated text."""
    content = _content(path)
    if content.startswith(PARQUET_MAGIC):
        raise InputError(f"{path}: is a parquet file; name it {path.stem}.parquet")
    text = _text(path, content)
    separator = _separator(path, text)
    _refuse_repeated_columns(path, text, separator)
    try:
        table = pandas.read_csv(BytesIO(content), sep=separator, encoding="utf-8-sig")
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise InputError(f"{path}: not a table ({_reason(error)}); {_remedy(error)}") from None
    if not isinstance(table.index, pandas.RangeIndex):  # pandas takes cells beyond the header for labels of rows
        raise InputError(f"{path}: not a table (rows have more cells than the header); give every column a name")
    if separator != ",":
        _refuse_decimal_commas(path, table)
    return table


def read_parquet(path: Path) -> pandas.DataFrame:
    """The table in a parquet file."""
    content = _content(path)
    if not content.startswith(PARQUET_MAGIC):
        raise InputError(f"{path}: not a parquet file (it does not begin with PAR1); name a table of text .csv")
    try:
        return pandas.read_parquet(BytesIO(content))
    except (OSError, ValueError) as error:  # pyarrow's errors are these
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{path}: a damaged parquet file ({reason}); write it again") from None


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the table in it, a .csv or .parquet file")
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be read ({reason}); name a file that can") from None
    if not content.strip():
        raise InputError(f"{path}: is empty; write a header with the names of the columns, and a row per run")
    return content


def _text(path: Path, content: bytes) -> str:
    if content.startswith(UTF_16_MARKS):
        raise InputError(f"{path}: is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise InputError(f"{path}: not text (a zero byte on line {line}); write a table of UTF-8 text, or of parquet")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{path}: not UTF-8 (byte 0x{content[error.start]:02x} on line {line}); save it as UTF-8, from Latin-1 by "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None


def _separator(path: Path, text: str) -> str:
    """A comma, or what the header shows plainly."""
    header = text.lstrip("\r\n").splitlines()[0]
    if len(next(csv.reader([header]))) > 1:
        return ","
    found = [separator for separator in OTHER_SEPARATORS if separator in header]
    if len(found) > 1:
        raise InputError(f"{path}: semicolons and tabs in one header; write commas between the cells")
    return found[0] if found else ","


def _refuse_repeated_columns(path: Path, text: str, separator: str) -> None:
    """pandas would rename the later ones, and the first would be taken without a word."""
    header = [name.strip() for name in next(csv.reader(StringIO(text.lstrip("\r\n")), delimiter=separator))]
    repeated = [name for name in dict.fromkeys(header) if name and header.count(name) > 1]
    if repeated:
        raise InputError(
            f"{path}: the header has {header.count(repeated[0])} columns {repeated[0]!r}; give every column a name of "
            "its own, or remove those that are not meant"
        )


def _refuse_decimal_commas(path: Path, table: pandas.DataFrame) -> None:
    for name in table:
        cells = [str(cell) for cell in table[name].dropna()]
        with_comma = next((cell for cell in cells if WITH_COMMA.fullmatch(cell)), None)
        if with_comma and all(NUMBER.fullmatch(cell) for cell in cells):
            mended = with_comma.replace(",", ".")
            raise InputError(f"{path}: column {name} has decimal commas ({with_comma}); write points ({mended})")


def _reason(error: Exception) -> str:
    """What pandas found, without the name of its parser."""
    return str(error).strip().removeprefix("Error tokenizing data. C error: ")


def _remedy(error: Exception) -> str:
    if "EOF inside string" in str(error):
        return "a quotation mark that opens there is not closed: close or remove it"
    return (
        'write as many cells on every line as in the header, and a cell that holds a comma in quotation marks ("a,b")'
    )

"""Whatever stands in a table is shown as it is, in each of the four files, and pdflatex reads what is written."""

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.fits.analysis import Analysis
from k3ablate.fits.observations import Excluded
from k3ablate.report import html, latex, latex_text, markdown, writing
from k3ablate.report.sheet import Grid, Sheet, render_csv, tied, visible
from k3ablate.report.tables import Provenance
from k3ablate.report.tables import sheet as published

HOSTILE = (
    "</script><script>alert(1)</script>", "&_%$#{}~^\\", "a|b`c`*d*[e](f)<g>", "'single' \"double\" ``ticks''",
    "émoji 🚀👩‍🔬", "注意力残差", "n" * 90, "a-very-long-name-of-ninety-characters_" * 3, "--?`!`,,<<>>",
    "naïve ß Ωλ ± × ² ½", "\u202eright to left", "tab\tand\nline\x00end", "\\input{/etc/passwd}", "- a list",
    "1. another", "# heading", "=1+1",
)  # fmt: skip
DOCUMENT = r"""\documentclass{options}{{article}}
\usepackage{{booktabs,longtable,array}}
\begin{{document}}
text{inputs}
\end{{document}}
"""
OVERFULL = re.compile(r"Overfull \\hbox \((\d+\.\d+)pt too wide\)")
NEEDS = "apt-get install texlive-latex-base texlive-latex-recommended"


def sheet_of(names: tuple[str, ...], name: str = "table") -> Sheet:
    rows = tuple((text, "3.79 (2.53 to 7.03)", text, "measured") for text in names)
    return Sheet(
        name=name,
        title=f"Arms of {names[0]}",
        grids=(Grid("Arms", ("arm", "multiplier (95 %)", "changes", "range"), rows),),
        notes=tuple(f"{text}: note" for text in names),
        provenance=f"command: k3ablate report {names[0]}",
        records=tuple({"arm": text, "multiplier": 3.79} for text in names),
        excluded=tuple(Excluded(text, "s", 0, "diverged", f"loss of {text}") for text in names),
    )


class Reader(HTMLParser):
    """Elements, their attributes, and the text of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th", "caption"):
            self.cells[-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def compiled(folder: Path, *sheets: Sheet, options: str = "") -> str:
    """The log of pdflatex over a document that reads the sheets."""
    program = shutil.which("pdflatex")
    if program is None and os.environ.get("K3ABLATE_REQUIRE_LATEX", "0") != "0":
        pytest.fail(f"no pdflatex here; {NEEDS}")
    if program is None:
        pytest.skip(f"no pdflatex here; {NEEDS}")
    for sheet in sheets:
        (folder / f"{sheet.name}.tex").write_text(latex.render(sheet), encoding="ascii")
    inputs = "".join(rf"\input{{{sheet.name}.tex}}" for sheet in sheets)
    (folder / "paper.tex").write_text(DOCUMENT.format(options=options, inputs=inputs))
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    for _ in range(2):  # references
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=120)
    log = (folder / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, log[-3000:]
    return log


def assert_sound(log: str) -> None:
    assert "Missing character" not in log
    assert "undefined" not in log
    assert "multiply defined" not in log
    assert max(map(float, OVERFULL.findall(log)), default=0.0) < 4.0


def test_hostile_names_compile(tmp_path: Path) -> None:
    sheets = [sheet_of((text,), f"table-{index}") for index, text in enumerate(HOSTILE)]
    assert_sound(compiled(tmp_path, sheet_of(HOSTILE, "all"), *sheets))


def test_forty_arms_go_on_over_pages(tmp_path: Path) -> None:
    many = sheet_of(tuple(f"arm-{index:02d}" for index in range(40)))
    assert_sound(compiled(tmp_path, many, sheet_of(("k2", "k3"), "few")))
    assert "longtable" in latex.render(many).split("\n", 1)[1]
    assert "longtable" not in latex.render(sheet_of(("k2", "k3"))).split("\n", 1)[1]


def test_a_short_table_stands_in_two_columns(tmp_path: Path) -> None:
    assert_sound(compiled(tmp_path, sheet_of(("k2", "k3", "a_b")), options="[twocolumn]"))


def test_the_published_table_compiles(
    analyses: Callable[..., Analysis], provenance: Provenance, tmp_path: Path
) -> None:
    strange = analyses(renamed={"kda": HOSTILE[0], "again": HOSTILE[5]})
    unfinished = analyses(unfinished=["k2", "k3", "kda", "again"])
    sheets = [published(analysis, provenance, f"t{index}") for index, analysis in enumerate((strange, unfinished))]
    assert_sound(compiled(tmp_path, *sheets))


def test_a_grid_too_wide_for_a_line_is_folded_with_its_first_column_repeated() -> None:
    cells = tuple("0123456789 (0.1234 to 5.6789)" for _ in range(7))
    wide = Grid("Wide", ("arm", *map(str, range(7))), (("k3", *cells),), fold=4)
    first, second = latex.folded(wide)
    assert (first.headings, second.headings) == (("arm", "0", "1", "2"), ("arm", "3", "4", "5", "6"))
    assert first.rows[0] + second.rows[0][1:] == wide.rows[0]
    narrow = replace(wide, rows=(("k3", *"1234567"),))
    assert latex.folded(narrow) == [narrow]


@given(st.text(max_size=120))
def test_any_text_becomes_ascii_with_balanced_braces_and_no_command_of_its_own(text: str) -> None:
    escaped = latex_text.escaped(text)
    assert escaped.isascii()
    assert "\n" not in escaped
    bare = re.sub(r"\\([a-zA-Z]+|.)", lambda found: "" if found[1] in "{}$&#%_" else found[0], escaped)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[&#%_]", bare)
    allowed = {"penalty", "char", "texttt"} | {
        name
        for command in (*latex_text.ASCII.values(), *latex_text.SIGNS.values(), *map(latex_text.command, "αΩéñ"))
        for name in re.findall(r"\\([a-zA-Z]+)", command)
    }
    greek = {name.replace("lamda", "lambda") for name in latex_text.SMALL | latex_text.CAPITALS}
    assert set(re.findall(r"\\([a-zA-Z]+)", escaped)) <= allowed | greek | set(latex_text.ACCENTS.values()) | {"i", "j"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b & 5%", r"a\_b \& 5\%"),
        ("0.60 (0.24 to 1.14)", "0.60 (0.24~to~1.14)"),
        ("2.39 ± 0.03", r"2.39 $\pm$~0.03"),
        ("é", r"\'{e}"),
        ("λ", r"$\lambda$"),
        ("中", r"\textless{}U+4E2D\textgreater{}"),
        ("[bold] -- x", "{[}bold{]} {-}- x"),
    ],
)
def test_known_texts_in_latex(text: str, shown: str) -> None:
    assert latex_text.escaped(text) == shown


def test_long_words_may_be_broken_and_short_ones_and_numbers_may_not() -> None:
    assert latex_text.pieces("feed_forward") == ["feed_forward"]
    assert latex_text.pieces("feed_forward=k3") == ["feed_", "forward=", "k3"]
    assert latex_text.pieces("1234567890.123456") == ["12345678", "90.12345", "6"]
    assert latex_text.pieces("-0.123456789e-05") == ["-0.123456789e-05"]
    assert "".join(latex_text.pieces("n" * 90)) == "n" * 90
    assert max(map(len, latex_text.pieces("n" * 90))) == 8


def test_html_shows_every_cell_as_it_is_and_has_no_script() -> None:
    sheet = sheet_of(HOSTILE)
    text = html.page(sheet)
    reader = read(text)
    wanted = [tied(visible(cell)) for row in sheet.grids[0].rows for cell in row]
    assert [cell for cell in reader.cells if cell in wanted][: len(wanted)] == wanted
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "img", "iframe", "link", "a"}
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert text.splitlines()[1] == '<html lang="en">'


def test_html_tables_have_captions_and_headers_of_columns_and_rows() -> None:
    sheet = sheet_of(("k2", "k3"))
    tags = read(html.fragment(sheet)).tags
    count = [tag for tag, _ in tags].count
    assert (count("table"), count("caption"), count("tbody")) == (2, 2, 2)
    scopes = [attributes.get("scope") for tag, attributes in tags if tag == "th"]
    assert (scopes.count("col"), scopes.count("row"), scopes.count(None)) == (4 + 5, 2 + 2, 0)
    identities = [attributes["id"] for _, attributes in tags if "id" in attributes]
    regions = [attributes["aria-labelledby"] for tag, attributes in tags if tag == "div"]
    assert identities == regions == ["table-1", "table-excluded"]
    assert all(attributes["tabindex"] == "0" for tag, attributes in tags if tag == "div")


def test_every_file_holds_the_numbers_the_runs_left_out_and_the_provenance(tmp_path: Path) -> None:
    sheet = sheet_of(("k2", "k3"))
    for path in writing.write(sheet, tmp_path)[2:]:
        text = path.read_text().replace("~", " ").replace("\u00a0", " ")
        for told in ("3.79 (2.53 to 7.03)", "loss of k3", "Provenance: command: k3ablate report k2", "k3: note"):
            assert told in text
        assert "Runs in no fit: 2" in text
    assert list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))[1]["arm"] == "k3"
    none = replace(sheet, excluded=())
    for text in (markdown.render(none), latex.render(none), html.page(none)):
        assert "Runs in no fit: none" in text
    for text in (markdown.render(replace(sheet, excluded=None)), html.page(replace(sheet, excluded=None))):
        assert "Runs in no fit" not in text


def test_files_are_taken_away_together(tmp_path: Path) -> None:
    paths = writing.write(sheet_of(("k2",)), tmp_path)
    writing.remove(tmp_path, "table")
    assert [path.name for path in paths] == ["table.md", "table.csv", "table.tex", "table.html"]
    assert not list(tmp_path.iterdir())
    writing.remove(tmp_path, "table")


def test_csv_keeps_names_as_they_are() -> None:
    found = list(csv.DictReader(io.StringIO(render_csv(sheet_of(HOSTILE).records))))
    assert [row["arm"] for row in found] == list(HOSTILE)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- a", r"\- a"),
        ("1. a", r"1\. a"),
        ("# a", r"\# a"),
        ("+attention", "+attention"),
        ("$x$ ~~y~~", r"\$x\$ \~\~y\~\~"),
    ],
)
def test_markdown_begins_no_block_and_no_formula(text: str, shown: str) -> None:
    assert markdown.escaped(text) == shown

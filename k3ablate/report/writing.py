"""Which files does a published table become? Markdown, CSV, LaTeX and HTML, each replaced in one step.

The same sheet gives the same bytes.
"""

from pathlib import Path

from k3ablate.report import html, latex, markdown
from k3ablate.report.sheet import Sheet, render_csv
from k3ablate.storage import write_atomic

SUFFIXES = ("md", "csv", "tex", "html")


def write(sheet: Sheet, folder: Path) -> list[Path]:
    """Write `<name>.md`, `.csv`, `.tex` and `.html` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "md": markdown.render(sheet),
        "csv": render_csv(sheet.records),
        "tex": latex.render(sheet),
        "html": html.page(sheet),
    }
    paths = files(folder, sheet.name)
    for suffix, path in zip(SUFFIXES, paths, strict=True):
        write_atomic(path, contents[suffix])
    return paths


def remove(folder: Path, name: str) -> None:
    """Take away the files of the sheet called `name`, where an earlier report left some."""
    for path in files(folder, name):
        path.unlink(missing_ok=True)


def files(folder: Path, name: str) -> list[Path]:
    """Where the sheet called `name` lies in `folder`."""
    return [folder / f"{name}.{suffix}" for suffix in SUFFIXES]

"""From content to files: `write_site`. Every text goes through the escaping of the templates."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from k3ablate.report.exhibits import Exhibits, Links
from k3ablate.report.pictures import Picture
from k3ablate.report.site import cells, charts, payloads, stack
from k3ablate.report.site.charts import Json
from k3ablate.report.site.content import PAGES, Page, SiteContent, SiteTable
from k3ablate.report.site.images import ThemedImage, themed_images
from k3ablate.report.style import DARK, LIGHT
from k3ablate.storage import write_atomic

HERE = Path(__file__).parent
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
FIGURES, TABLES, ASSETS = "figures", "tables", "assets"


@dataclass(frozen=True)
class Shown:
    """A picture as a page shows it."""

    picture: Picture
    images: tuple[ThemedImage, ...]
    data: cells.Cells
    csv: str


def write_site(content: SiteContent, folder: Path) -> list[Path]:
    """Write the site into `folder` and give its files, `index.html` first; the same content gives the same bytes."""
    files = dict(_files(content))
    for name, written in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, written)
    return [folder / name for name in files]


def _files(content: SiteContent) -> Iterator[tuple[str, bytes | str]]:
    shown = {page.key: tuple(map(_shown, content.pictures.get(page.key, ()))) for page in PAGES}
    templates = _templates()
    for page in PAGES:
        yield page.file, _page(page, content, shown[page.key], templates)
    for picture in (picture for pictures in shown.values() for picture in pictures):
        for image in picture.images:
            yield f"{FIGURES}/{image.file}", image.content
        yield picture.csv, picture.picture.table
    for table in (table for tables in content.tables.values() for table in tables if table.csv):
        yield _csv_of(table), table.csv
    yield f"{ASSETS}/colours.css", _colours()
    for source in sorted([*(HERE / "assets").iterdir(), *(HERE / "vendor").iterdir()]):
        yield f"{ASSETS}/{source.name}", source.read_bytes()


def _page(page: Page, content: SiteContent, shown: tuple[Shown, ...], templates: Environment) -> str:
    tables, notes = content.tables.get(page.key, ()), content.notes.get(page.key, ())
    return templates.get_template(page.template).render(
        page=page, pages=PAGES, content=content, shown=shown, tables=tables, notes=notes, exhibits=content.exhibits,
        is_empty=not (shown or tables or notes), payloads=_payloads(page, content.exhibits),
    )  # fmt: skip


def _payloads(page: Page, exhibits: Exhibits) -> Mapping[str, Json]:
    readers = {"architecture": payloads.architecture, "standing": payloads.standing}
    return readers[page.key](exhibits) if page.key in readers else {}


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {
        "cells": cells,
        "charts": charts,
        "stacks": stack,
        "csv_of": _csv_of,
        "options_of": _options,
        "consumers_of": _consumers,
    }
    environment.filters["embedded"] = payloads.embedded
    return environment


def _options(names: Sequence[str]) -> list[tuple[str, str]]:
    """Value and label of every button of a choice."""
    return [(name, name) for name in names]


def _consumers(found: Links) -> list[tuple[str, str]]:
    return [(str(index), grid.consumer) for index, grid in enumerate(found.grids)]


def _shown(picture: Picture) -> Shown:
    _check(picture.name)
    return Shown(picture, themed_images(picture), cells.of_picture(picture), f"{FIGURES}/{picture.name}.csv")


def _csv_of(table: SiteTable) -> str:
    """Where the numbers of a table lie in the folder."""
    _check(table.name)
    return f"{TABLES}/{table.name}.csv"


def _check(name: str) -> None:
    assert SAFE_NAME.fullmatch(name), f"{name!r} is no name of a file; what people write stays out of file names"


def _colours() -> str:
    """The pictures' own colours, so that page and pictures are one."""
    pairs = {name: (getattr(LIGHT, name), getattr(DARK, name)) for name in ("paper", "ink", "muted", "faint")}
    pairs |= {f"series-{index}": pair for index, pair in enumerate(zip(LIGHT.colours, DARK.colours, strict=True))}
    lines = [f"  --{name}: light-dark({light}, {dark});" for name, (light, dark) in pairs.items()]
    return "\n".join([":root {", *lines, "}", ""])

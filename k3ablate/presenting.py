"""What does a report put together? Every picture, table and page of one experiment, and the files they become.

`publishing.report` reads and analyses; here its findings become figures, tables, the evidence board and the site. What
each of them is lies in `report`, what runs and models show beside it is gathered in `histories`, `run_exhibits` and
`model_exhibits`. The same findings give the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas

from k3ablate import histories
from k3ablate.experiment import Experiment
from k3ablate.fits.analysis import Analysis
from k3ablate.model_exhibits import model_exhibits
from k3ablate.plan import PlanRow
from k3ablate.recipes import published_folder
from k3ablate.records import RunRecord
from k3ablate.report import board, html, pictures, split_table, tables, writing
from k3ablate.report.curve_figures import curve_pictures
from k3ablate.report.evidence import claims
from k3ablate.report.exhibits import Exhibits
from k3ablate.report.figures import loss_picture
from k3ablate.report.forest import forest_picture
from k3ablate.report.headline import k2_vs_k3
from k3ablate.report.isoflop_figures import isoflop_pictures
from k3ablate.report.pictures import Picture
from k3ablate.report.plain_words import verdict
from k3ablate.report.sheet import Sheet, render_csv
from k3ablate.report.site import SiteContent, SiteTable, write_site
from k3ablate.report.split_figures import claims_picture, split_pictures
from k3ablate.report.tables import Provenance
from k3ablate.report.training_figures import training_pictures
from k3ablate.report.tuning_figures import tuning_pictures
from k3ablate.run_exhibits import joined, run_exhibits
from k3ablate.splitting import SplitAnswer

TABLE, SPLIT, EVIDENCE = "table", "split", "evidence"
FIGURES_FOLDER, SITE_FOLDER = "figures", "site"
Pages = Mapping[str, tuple[Picture, ...]]


@dataclass(frozen=True)
class Findings:
    """What is known of an experiment when its records have been analysed; `no_split` is why there is no split."""

    experiment: Experiment
    rows: Sequence[PlanRow]
    records: Mapping[str, RunRecord]
    root: Path
    runs: pandas.DataFrame
    analysis: Analysis
    split: SplitAnswer | None
    no_split: str
    provenance: Provenance

    @property
    def arm_in_question(self) -> str:
        """The one that changes most, the last of several; the baseline's name where there is no other."""
        arms = [arm for arm in self.analysis.arms if arm.arm != self.analysis.baseline]
        return max(reversed(arms), key=lambda arm: len(arm.changed)).arm if arms else self.analysis.baseline


@dataclass(frozen=True)
class Presented:
    """What was written: what a reader opens, and what the site's first page brings with it."""

    opened: Sequence[Path]
    site: Sequence[Path]


def present(found: Findings, folder: Path) -> Presented:
    """Write every figure, table and page below `folder`; a split's files go where there is none."""
    pages, sheets = _pages(found), _sheets(found)
    files = [path for sheet in sheets for path in writing.write(sheet, folder)]
    if found.split is None:
        writing.remove(folder, SPLIT)
    drawn = {picture.name: picture for shown in pages.values() for picture in shown}
    for picture in drawn.values():
        files += pictures.write(picture, folder / FIGURES_FOLDER)
    content = _content(found, pages, sheets)
    index, *site = write_site(content, folder / SITE_FOLDER)
    return Presented([*files, index], site)


def _pages(found: Findings) -> Pages:
    """Pictures by the page they stand on."""
    analysis = found.analysis
    split = [] if found.split is None else split_pictures(found.split)
    shown = {
        "overview": [_headline(found)],
        "split": [*split, forest_picture(analysis), claims_picture()],
        "curves": [loss_picture(analysis), *curve_pictures(analysis, found.runs)],
        "training": _training(found),
        "tuning": _tuning(found),
    }
    return {page: tuple(drawn) for page, drawn in shown.items()}


def _headline(found: Findings) -> Picture:
    """The published figure beside ours where ours too is about several components at once."""
    if max((len(arm.changed) for arm in found.analysis.arms), default=0) < 2:
        return loss_picture(found.analysis)
    return k2_vs_k3(
        published_folder(), found.analysis, found.arm_in_question, found.experiment.name, found.provenance.line()
    )


def _training(found: Findings) -> list[Picture]:
    traces = histories.traces((row.label for row in found.rows), found.records, found.root)
    return list(training_pictures(traces, found.analysis.baseline))


def _tuning(found: Findings) -> list[Picture]:
    order = [arm.arm for arm in found.analysis.arms]
    tuned = histories.tuned(found.experiment)
    studies = [] if tuned is None else list(tuning_pictures(*tuned, order))
    sweeps = histories.sweeps(found.experiment, found.runs)
    return [*studies, *isoflop_pictures(*sweeps, found.analysis.baseline)]


def _sheets(found: Findings) -> list[Sheet]:
    """The table, the split where there is one, the evidence board."""
    line = found.provenance.line()
    sheets = [tables.sheet(found.analysis, found.provenance, TABLE)]
    if found.split is not None:
        sheets.append(split_table.sheet(found.split, found.split.remarks(), line, SPLIT))
    return [*sheets, board.sheet(board.board(claims(), found.analysis, found.split), line, EVIDENCE)]


def _content(found: Findings, pages: Pages, sheets: Sequence[Sheet]) -> SiteContent:
    told = {sheet.name: SiteTable(sheet.name, sheet.title, html.fragment(sheet), render_csv(sheet.records))
            for sheet in sheets}  # fmt: skip
    return SiteContent(
        title=found.experiment.name,
        question=found.experiment.question,
        verdict=verdict(found.analysis, found.split),
        provenance=found.provenance,
        pictures=pages,
        tables={
            "tables": tuple(table for name, table in told.items() if name != EVIDENCE),
            "evidence": (told[EVIDENCE],),
        },
        notes={"split": (f"No split: {found.no_split}",) if found.split is None else ()},
        exhibits=_exhibits(found),
    )


def _exhibits(found: Findings) -> Exhibits:
    arms = dict.fromkeys((found.arm_in_question, found.analysis.baseline))
    return joined(run_exhibits(found.rows, found.root, arms), model_exhibits())

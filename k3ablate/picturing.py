"""Which picture stands by itself, without a report around it? The verb `figure`, over published data and any runs.

Takes a frame of runs, gives it our column names, analyses it and writes the picture; what is drawn is decided in
`report`, the fitting is in `fits`. It reaches no training library. The pictures of one experiment, all of them, are
made by `publishing.report`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

import k3ablate
from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.columns import Columns, canonical
from k3ablate.fits.observations import observations
from k3ablate.recipes import published_path
from k3ablate.report import headline, pictures
from k3ablate.report.evidence import CLAIMS

K2_VS_K3 = "k2-vs-k3"
FIGURES = {K2_VS_K3: "the published figure of K3 over K2, and two arms of a table beside it"}
FOLDER = "figures"  # below the folder of runs, unless another one is asked for
DRAWS_SEED = 0  # the same table gives the same intervals


@dataclass(frozen=True)
class Runs:
    """A table of runs as it was named; `baseline` and `flops_convention` where they are known."""

    name: str
    frame: pandas.DataFrame
    baseline: str | None
    flops_convention: str | None


@dataclass(frozen=True)
class Pictured:
    """`figure`: what the picture says, where it lies, and every number in it."""

    figure: str
    title: str
    says: Sequence[str]  # lines
    files: Sequence[str]
    data: Sequence[Mapping[str, str | int | float | None]]  # a row per run, point of a curve, arrow

    def text(self) -> str:
        """What it says, then the files."""
        return "\n".join([self.title, *self.says, "", *self.files])


def figure(
    name: str, folder: Path, runs: Runs | None = None, *, baseline: str | None = None, arm: str | None = None
) -> Pictured:
    """Write the figure called `name` into `folder`, as PNG, SVG, PDF and CSV.

    `baseline` stands for K2 (default: the table's, or its first arm), `arm` for K3 (default: the last one that changes
    most components). InputError for an unknown figure and for what the table cannot answer.
    """
    if name not in FIGURES:
        known = "; ".join(f"{known} ({what})" for known, what in FIGURES.items())
        raise InputError(f"figure {name}: no such figure; write one of: {known}")
    if runs is None and (baseline or arm):
        asked = f"--baseline {baseline}" if baseline else f"--arm {arm}"
        raise InputError(f"figure {name}: {asked} names an arm of a table; name the table by --table too")
    claims = published_path(CLAIMS)
    if claims is None:
        raise InputError("analysis/published/claims.yaml: no such file; it comes with the repository")
    if runs is None:
        picture = headline.k2_vs_k3(claims.parent)
    else:
        analysis = _analysis(runs, baseline, arm)
        picture = headline.k2_vs_k3(
            claims.parent, analysis, arm, Path(runs.name).name, _provenance(runs, baseline, arm)
        )
    return Pictured(
        figure=name,
        title=picture.title,
        says=_says(picture.data),
        files=[str(path) for path in pictures.write(picture, folder)],
        data=[{str(key): None if pandas.isna(value) else value for key, value in row.items()}
              for row in picture.data.to_dict("records")],
    )  # fmt: skip


def _analysis(runs: Runs, baseline: str | None, arm: str | None) -> Analysis:
    table, _ = canonical(runs.frame.reset_index(drop=True), Columns())
    if table.empty:
        raise InputError(f"{runs.name}: no rows; write one per run below the header")
    first = baseline or runs.baseline or str(table["arm"].iloc[0])
    others = [name for name in observations(table).points if name != first]
    analysis = analyse(table, first, None, np.random.default_rng(DRAWS_SEED))
    if arm is None and len(others) > 1 and not analysis.has_levels:
        raise InputError(
            f"{runs.name}: no column tells which arm changes what; name the one that stands for K3 by --arm: "
            f"{', '.join(others)}"
        )
    return analysis


def _says(data: pandas.DataFrame) -> list[str]:
    """The number of each panel, and below it the lines that explain it."""
    said = []
    for panel, rows in data.groupby("panel", sort=False):
        first, *others = [note for kind in ("number", "line") for note in rows.loc[rows["kind"] == kind, "note"]]
        said += [f"{panel}: {first}", *(f"  {line}" for line in others)]
    return said


def _provenance(runs: Runs, baseline: str | None, arm: str | None) -> str:
    options = {"table": runs.name, "baseline": baseline, "arm": arm}
    asked = " ".join(f"--{name} {value}" for name, value in options.items() if value is not None)
    corpora = sorted(set(runs.frame["corpus"].dropna().map(str))) if "corpus" in runs.frame else []
    parts = [
        f"{len(runs.frame)} runs of {runs.name}",
        f"corpus {', '.join(corpora) or 'not recorded'}",
        f"FLOPs: {runs.flops_convention or 'column flops of the table'}",
        f"k3ablate {k3ablate.__version__}",
        f"command: k3ablate figure {K2_VS_K3} {asked}",
    ]
    return "; ".join(parts)

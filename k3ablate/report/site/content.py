"""What is handed in to make a site of, and which pages does it have?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from k3ablate.report.exhibits import Exhibits
from k3ablate.report.pictures import Picture
from k3ablate.report.tables import Provenance


class Page(NamedTuple):
    """`absent` is what the page says when it has nothing to show: how to get it."""

    key: str
    title: str
    introduction: str
    absent: str
    template: str = "plain.html"

    @property
    def file(self) -> str:
        """Its file in the folder of the site."""
        return "index.html" if self.key == "overview" else f"{self.key}.html"


PAGES = (
    Page(
        "overview", "Overview", "", "No figure yet: `k3ablate report` draws one as soon as a run has finished.",
        "overview.html",
    ),
    Page(
        "split", "Split",
        "How the multiplier of the whole divides among its components, and every arm against the baseline.",
        "No split: it needs arms that change one component and arms that change several, all with a multiplier.",
    ),
    Page(
        "curves", "Curves", "Loss against what it costs, the fitted curves with their intervals, and what they leave.",
        "No curves: a curve needs finished runs of at least two sizes.",
    ),
    Page(
        "training", "Training", "What happened while the runs trained: loss, spikes, divergences, routing load.",
        "No training curves: they are read from the folders of runs, which are on the machine that trained them.",
    ),
    Page(
        "tuning", "Tuning", "Whether every arm stands at its own optimum.",
        "No tuning curves: `k3ablate tune` tries every arm equally often and writes what it found.",
    ),
    Page(
        "tables", "Tables", "Every number at the point where it is read, with its interval and what was left out.",
        "No tables: they need at least one run that has ended.",
    ),
    Page(
        "evidence", "Evidence",
        "What is claimed for each component, who else has checked it, and what it was worth at our scale.",
        "No evidence board: analysis/published/claims.yaml has the claims; it comes with the repository.",
    ),
    Page(
        "architecture", "Architecture",
        "From Kimi K2 to Kimi K3 in numbers to turn. Sizes come from our counter, weights and loads from runs.",
        "", "architecture.html",
    ),
    Page(
        "standing", "Standing", "Where the vendor places its model among others.", "", "standing.html",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class SiteTable:
    """A table that is HTML already, its text escaped by who made it."""

    name: str  # stem of its files
    title: str
    html: str
    csv: str = ""  # the same numbers at full precision; empty where there is no file to offer


@dataclass(frozen=True)
class SiteContent:
    """All that a site shows; pictures, tables and notes by the key of their page."""

    title: str  # of the experiment
    question: str
    verdict: tuple[str, ...]  # sentences, the most important first
    provenance: Provenance
    pictures: Mapping[str, tuple[Picture, ...]] = field(default_factory=dict)
    tables: Mapping[str, tuple[SiteTable, ...]] = field(default_factory=dict)
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exhibits: Exhibits = field(default_factory=Exhibits)

    def __post_init__(self) -> None:
        known = {page.key for page in PAGES}
        unknown = {*self.pictures, *self.tables, *self.notes} - known
        assert not unknown, f"no such page: {sorted(unknown)}"

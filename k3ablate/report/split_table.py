"""What does a published split say?

One row per component with first in, last in and its part, then what is left over and the whole; the matrix of
interactions; then the sentences of `split_notes`. Printed logarithms and shares are rounded so that they add up to the
printed whole to the last digit. `sheet` is for files (`writing`), where its records hold every number at full
precision, `render_text` for a terminal. Nothing is computed here.
"""

from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from k3ablate.fits.attribution import Part, Split
from k3ablate.fits.split import Effect
from k3ablate.fits.split_analysis import AnalysedSplit
from k3ablate.report import writing
from k3ablate.report.sheet import Grid, Sheet
from k3ablate.report.split_notes import NOTHING, cell, heading, range_text, sentences, verdict, whole_name
from k3ablate.report.style import places_of, signed_decimals

LOG_PLACES, SHARE_PLACES = 4, 1  # fewest decimals of ln m; decimals of a share in percent
NUMBERS = ("factor", "factor_low", "factor_high", "log", "log_low", "log_high", "told_from_1")
PART_HEADINGS = {"shapley": "Shapley (95 %)", "pairwise": "pairwise model (95 %)"}


def sheet(found: AnalysedSplit, notes: Sequence[str], provenance: str, name: str = "split") -> Sheet:
    """The published split; `notes` stand after its own sentences, and tell of runs that are in no fit."""
    records = [row | {"provenance": provenance} for split in _splits(found) for row in _records(split, found)]
    matrix = _matrix(found.split)
    return Sheet(
        name=name,
        title=heading(found),
        grids=(_components(found.split, "verdict"), *([matrix] if matrix else [])),
        notes=(*sentences(found), *notes),
        provenance=provenance,
        records=tuple(records),
    )


def write_split(found: AnalysedSplit, notes: Sequence[str], stem: Path) -> list[Path]:
    """Write `<stem>.md`, `.csv`, `.tex` and `.html`; the last of `notes` is the provenance."""
    *remarks, provenance = notes
    return writing.write(sheet(found, remarks, provenance, stem.name), stem.parent)


def render_text(found: AnalysedSplit, notes: Sequence[str]) -> str:
    """The split for a terminal; `notes` stand at its end."""
    matrix = _matrix(found.split)
    grids = [_components(found.split), *([matrix] if matrix else [])]
    shown = [tabulate(grid.rows, grid.headings, "simple", disable_numparse=True) for grid in grids]
    lines = [f"- {line}" for line in (*sentences(found), *notes)]
    return "\n".join(["\n\n".join([heading(found), *shown]), "", *lines])


def _splits(found: AnalysedSplit) -> tuple[Split, ...]:
    return (found.split, *found.other_targets)


def _components(split: Split, verdicts: str = "") -> Grid:
    """Components, what they leave over, and the whole; `verdicts` is the heading of the last column."""
    own = PART_HEADINGS.get(split.method)
    logs, shares = _logs(split), _shares(split)
    ends: dict[str, tuple[Part | None, str, str]] = {
        part.name: (part, log, share) for part, log, share in zip(split.parts, logs, shares, strict=True)
    }
    rows = []
    for row in split.components:
        part, log, share = ends.pop(row.name, (None, NOTHING, NOTHING))
        shown = [cell(row.part)] if own else []
        told = verdict(part.effect if part else None)
        rows.append((row.name, cell(row.first_in), cell(row.last_in), *shown, log, share, told))
    rows += [_left_over(part.name, part.effect, log, share, bool(own)) for part, log, share in ends.values() if part]
    rows += _whole(split, bool(own))
    ln_m = "ln m" if own or split.method == "none" else f"ln m, {split.method}"
    headings = ("component", "first in (95 %)", "last in (95 %)", *([own] if own else []), ln_m, "share", verdicts)
    return Grid("Components", headings, tuple(rows))


def _left_over(name: str, effect: Effect, log: str, share: str, has_part: bool) -> tuple[str, ...]:
    """A row that belongs to no single component."""
    cells = (NOTHING, NOTHING, cell(effect)) if has_part else (cell(effect), NOTHING)
    return (name, *cells, log, share, verdict(effect))


def _whole(split: Split, has_part: bool) -> list[tuple[str, ...]]:
    """What the parts add up to, and the measured arm where that is a claim."""
    if split.whole is None:
        return []
    share = f"{100:+.{SHARE_PLACES}f} %" if all(part.share is not None for part in split.parts) else NOTHING
    rows = [_left_over(f"whole, {whole_name(split)}", split.whole, _log(split, split.whole), share, has_part)]
    if split.whole_from == "claimed" and split.total is not None:
        rows.append(_left_over(f"{split.target}", split.total, _log(split, split.total), NOTHING, has_part))
    return rows


def _log(split: Split, effect: Effect) -> str:
    return f"{effect.log:+.{_log_places(split)}f}"


def _logs(split: Split) -> list[str]:
    if split.whole is None:
        return [_log(split, part.effect) for part in split.parts]
    return signed_decimals([part.effect.log for part in split.parts], split.whole.log, _log_places(split))


def _shares(split: Split) -> list[str]:
    shares = [100 * part.share for part in split.parts if part.share is not None]
    if len(shares) < len(split.parts):
        return [NOTHING] * len(split.parts)
    return [f"{text} %" for text in signed_decimals(shares, 100.0, SHARE_PLACES)]


def _log_places(split: Split) -> int:
    """Two digits of the narrowest interval; one that is only rounding has none to show."""
    intervals = [part.effect.log_interval for part in split.parts if not part.effect.is_nothing]
    widths = [(interval.high - interval.low) / 2 for interval in intervals if interval is not None]
    return places_of(min(widths, default=0.0), LOG_PLACES)


def _matrix(split: Split) -> Grid | None:
    """Interactions of pairs below the diagonal, and of each component with all others; None where none is told."""
    by_pair = {(pair.first, pair.second): pair.effect for pair in split.pairs}
    if not any(by_pair.values()) and not any(row.gap for row in split.components if by_pair):
        return None
    names = [row.name for row in split.components]
    rows = []
    for index, row in enumerate(split.components):
        cells = [cell(by_pair[other, row.name]) for other in names[:index]] + [""] * (len(names) - 1 - index)
        rows.append((row.name, cell(row.gap), *cells))
    return Grid("Interactions", ("interaction (95 %)", "with all others", *names[:-1]), tuple(rows))


def _records(split: Split, found: AnalysedSplit) -> list[dict[str, object]]:
    entries: list[tuple[str, str, Effect | None, float | None]] = []
    for row in split.components:
        kinds = {"first in": row.first_in, "last in": row.last_in, "last in over first in": row.gap}
        entries += [(kind, row.name, effect, None) for kind, effect in kinds.items()]
    entries += [(f"part ({split.method})", part.name, part.effect, part.share) for part in split.parts]
    entries += [("interaction", f"{pair.first} x {pair.second}", pair.effect, None) for pair in split.pairs]
    entries += [("beyond pairs", "", split.beyond_pairs, None), (f"whole ({split.whole_from})", "", split.whole, None)]
    at = {
        "read_at_loss": found.loss, "read_at_compute": found.compute, "range": range_text(found), "form": found.form,
    }  # fmt: skip
    return [
        {
            "target": split.target or "",
            "kind": kind,
            "name": name,
            **_numbers(effect),
            "share": "" if share is None else share,
        }
        | at
        for kind, name, effect, share in entries
    ]


def _numbers(effect: Effect | None) -> dict[str, object]:
    """Full precision; empty where the arms do not tell."""
    if effect is None:
        return dict.fromkeys(NUMBERS, "")
    ends: list[object] = [""] * 4
    if effect.factor_interval is not None and effect.log_interval is not None:
        ends = [
            effect.factor_interval.low,
            effect.factor_interval.high,
            effect.log_interval.low,
            effect.log_interval.high,
        ]
    numbers = (effect.factor, *ends[:2], effect.log, *ends[2:], effect.told_from_one)
    return dict(zip(NUMBERS, numbers, strict=True))

"""How did runs train: loss by tokens with spikes and divergences, and how evenly were tokens routed to experts?

A panel per size, arms by colour and dash, every seed a line. Losses are averaged as `compare` does it, over the last
tenth of the tokens; what was logged lies behind, faint. Of many arms a picture shows some, the baseline always among
them. An axis begins at a thirtieth of the tokens of the smallest size, where losses have begun to tell. Lines have as
many points as the page shows; spikes are looked for in all that was logged (`spikes`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from k3ablate.fits.forms import Array
from k3ablate.fits.spikes import RULE, spikes
from k3ablate.fits.training_curves import DEFAULT_WINDOW, smooth
from k3ablate.report.panels import Entry, Looks, Page, few, lay_out, line_looks, say, scale
from k3ablate.report.pictures import Picture
from k3ablate.report.routing_figures import dead_picture
from k3ablate.report.style import Theme
from k3ablate.report.traces import RunTrace, Series

MOST_ARMS = 7  # of one picture
NUM_BINS = 120  # along a panel, each with its lowest and highest logged value
COLUMNS = ["size", "arm", "seed", "kind", "tokens", "value", "note"]
FAINT, THIN = 0.25, 0.9  # opacity of what was logged, width of what is averaged
BEGINS = 1 / 30  # of the tokens of the smallest size
SHARE_SHOWN = 0.98  # of what was logged; higher peaks leave the panel
DIVERGED_LOOKS: Looks = {"marker": "X", "markersize": 6.5, "linestyle": "none", "markeredgewidth": 0.6}
SPIKE_LOOKS: Looks = {"marker": "v", "markersize": 3.5, "linestyle": "none", "markeredgewidth": 0.6}


@dataclass(frozen=True)
class _Measure:
    """Which series of a run is drawn."""

    stem: str
    title: str
    label: str
    field: str
    has_spikes: bool
    remark: str


LOSS = _Measure("training_curves", "Training curves", "training loss (nats per token)", "loss", has_spikes=True,
                remark=f"Lines: mean over the last {DEFAULT_WINDOW:.0%} of the tokens; faint: as logged.")  # fmt: skip
LOAD = _Measure("routing_load", "Routing load over training", "largest load over mean load", "worst_load",
                has_spikes=False, remark="Load: tokens of a step that the busiest expert got over the mean of all, of "
                f"the worst routed layer; 1 is even. Lines: mean over the last {DEFAULT_WINDOW:.0%} of the tokens; "
                "faint: as logged.")  # fmt: skip


def training_pictures(traces: Sequence[RunTrace], baseline: str, arms: Sequence[str] = (),
                      sizes: Sequence[str] = ()) -> list[Picture]:  # fmt: skip
    """Loss and routing load of some arms and sizes, or of all; no picture of what no run has.

    The order of `traces` is that of arms and sizes; styles are those of all arms, whatever is chosen.
    """
    order = sorted(dict.fromkeys(trace.arm for trace in traces), key=lambda arm: arm != baseline)
    chosen = [
        trace for trace in traces if (not arms or trace.arm in arms) and (not sizes or trace.size in sizes)
    ]  # fmt: skip
    found: list[Picture] = []
    for measure in (LOSS, LOAD):
        shown = [trace for trace in chosen if len(getattr(trace, measure.field).tokens_N) or measure is LOSS]
        pages = _pages([arm for arm in order if any(trace.arm == arm for trace in shown)])
        found += [
            _picture(measure, [trace for trace in shown if trace.arm in page], order, number, len(pages))
            for number, page in enumerate(pages, start=1)
        ]  # fmt: skip
    return [*found, *dead_picture(chosen, order)]


def _pages(arms: Sequence[str]) -> list[list[str]]:
    """The arms of each picture; the first arm stands in all."""
    if not arms:
        return []
    others, most = arms[1:], MOST_ARMS - 1
    return [[arms[0], *others[start : start + most]] for start in range(0, max(len(others), 1), most)]


def _picture(
    measure: _Measure, traces: Sequence[RunTrace], order: Sequence[str], number: int, of: int
) -> Picture:  # fmt: skip
    data = pandas.DataFrame([row for trace in traces for row in _rows(trace, measure)], columns=COLUMNS)
    notes = [measure.remark]
    if measure.has_spikes:
        counted = int((data["kind"] == "spike").sum())
        named = f"{counted or 'No'} {'spike' if counted == 1 else 'spikes'}"
        notes.append(f"{named} ({RULE}); one beyond the panel stands at its edge.")
        notes += data[data["kind"].isin(["diverged", "no log"])]["note"].astype(str).tolist()
    arms = list(dict.fromkeys(trace.arm for trace in traces))
    part = f" ({number} of {of})" if of > 1 else ""
    return Picture(
        name=measure.stem if number == 1 else f"{measure.stem}_{number}",
        title=f"{measure.title}{part}",
        description=f"{measure.label} by training tokens of {', '.join(arms)}, a panel per size, a line per run. "
        f"{' '.join(few(notes))} Lines have at most {2 * NUM_BINS} points.",
        data=data,
        draw=partial(_drawn, measure, traces, data, order, notes),
    )


def _rows(trace: RunTrace, measure: _Measure) -> Iterable[dict[str, object]]:
    series: Series = getattr(trace, measure.field)
    run = {"size": trace.size, "arm": trace.arm, "seed": trace.seed}
    tokens_N, value_N = series.tokens_N, series.value_N
    if len(tokens_N):
        smooth_N = smooth(tokens_N, value_N, DEFAULT_WINDOW)
        marks = spikes(value_N, series.start) if measure.has_spikes else []
        kinds = (
            ("logged", value_N, _outline(tokens_N, value_N)), ("smoothed", smooth_N, _outline(tokens_N, smooth_N, 1)),
            ("spike", value_N, marks),
        )  # fmt: skip
        for kind, values_N, places in kinds:
            pairs = zip(tokens_N[places].tolist(), values_N[places].tolist(), strict=True)
            yield from ({**run, "kind": kind, "tokens": tokens, "value": value} for tokens, value in pairs)
    if not measure.has_spikes:
        return
    if trace.has_diverged:
        text = f"{trace.name} diverged after {trace.num_steps} steps: {trace.reason}"
        last = {"tokens": tokens_N[-1], "value": value_N[-1]} if len(tokens_N) else {}
        yield {**run, "kind": "diverged", **last, "note": text}
    if trace.missing:
        yield {**run, "kind": "no log", "note": f"{trace.name}: no curve: {trace.missing}"}


def _outline(tokens_N: Array, value_N: Array, per_bin: int = 2) -> list[int]:
    """Positions of the lowest and the highest value in each bin of ln tokens, or, `per_bin` 1, of the last one."""
    span = np.log(tokens_N / tokens_N[0])
    bin_N = np.minimum((span / max(float(span[-1]), 1e-9) * NUM_BINS).astype(int), NUM_BINS - 1)
    edges = np.append(np.flatnonzero(np.diff(bin_N, prepend=-1)), len(bin_N))
    kept = {0, len(bin_N) - 1}
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = value_N[first:end]
        kept |= {end - 1} if per_bin == 1 else {first + int(part.argmin()), first + int(part.argmax())}
    return sorted(kept)


def _drawn(
    measure: _Measure, traces: Sequence[RunTrace], data: pandas.DataFrame, order: Sequence[str], notes: Sequence[str],
    theme: Theme,
) -> Figure:  # fmt: skip
    sizes = list(dict.fromkeys(trace.size for trace in traces))
    looks = {arm: line_looks(order.index(arm), theme) for arm in dict.fromkeys(trace.arm for trace in traces)}
    entries = [Entry(f"{arm} (baseline)" if arm == order[0] else arm, look) for arm, look in looks.items()]
    marks = {"spike": SPIKE_LOOKS, "diverged": DIVERGED_LOOKS}
    entries += [
        Entry(kind, {"color": theme.ink, **mark}) for kind, mark in marks.items() if (data["kind"] == kind).any()
    ]  # fmt: skip
    page = Page(sizes, "training tokens", measure.label, entries, few(notes), columns=3, panel_height=1.9)
    figure, panels = lay_out(page, theme)
    limits = _limits(data)
    for size, axes in zip(sizes, panels, strict=True):
        part = data[(data["size"] == size) & data["tokens"].notna()]
        if not len(part):
            say(axes, "no run has logged a loss")
        _faint(axes, part[part["kind"] == "logged"], looks)
        for (arm, _, kind), line in part[part["kind"] != "logged"].groupby(["arm", "seed", "kind"], sort=False):
            _line(axes, str(kind), line, looks[str(arm)], theme, limits[1][1])
    if data["tokens"].notna().any():
        panels[0].set(xlim=limits[0], ylim=limits[1])
        scale(panels[0])
    return figure


def _faint(axes: Axes, logged: pandas.DataFrame, looks: Mapping[str, Looks]) -> None:
    """What was logged, as dots of a page: so many lines would make files of megabytes."""
    lines = logged.groupby(["arm", "seed"], sort=False)
    segments = [line[["tokens", "value"]].to_numpy(dtype=np.float64) for _, line in lines]
    colours = [looks[str(arm)]["color"] for (arm, _), _ in lines]
    axes.add_collection(LineCollection(segments, colors=colours, alpha=FAINT, linewidths=0.4, rasterized=True))


def _line(axes: Axes, kind: str, line: pandas.DataFrame, looks: Looks, theme: Theme, top: float) -> None:
    """What is averaged, or marks; a spike beyond the panel is marked at its upper edge."""
    if kind == "smoothed":
        axes.plot(line["tokens"], line["value"], gid=kind, **{**looks, "linewidth": THIN})
    else:
        marks = {**(SPIKE_LOOKS if kind == "spike" else DIVERGED_LOOKS), "color": looks["color"], "zorder": 3}
        axes.plot(line["tokens"], line["value"].clip(upper=top), markeredgecolor=theme.paper, gid=kind, **marks)


def _limits(data: pandas.DataFrame) -> tuple[tuple[float, float], tuple[float, float]]:
    """From `BEGINS` of the smallest size's tokens; all that is averaged or diverged is inside, but not every peak."""
    last, marks = data.groupby("size")["tokens"].max().min(), data[data["kind"].isin(["spike", "diverged"])]
    begin = min(float(last) * BEGINS, float(marks["tokens"].min()) if len(marks) else np.inf)
    shown = data[data["tokens"] >= begin]
    logged, others = shown[shown["kind"] == "logged"]["value"], shown[shown["kind"].isin(["smoothed", "diverged"])]
    low = float(min(logged.min(), others["value"].min()))
    high = float(max(logged.quantile(SHARE_SHOWN), others["value"].max()))
    margin = max((high / low) ** 0.06, 1.01)
    return (begin / 1.1, 1.1 * float(data["tokens"].max())), (low / margin, high * margin)

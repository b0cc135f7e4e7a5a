"""How do the exhibits read as tables? For readers without a pointer, without eyes or without JavaScript."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas

from k3ablate.report.exhibits import Activations, Growth, Links, Parallel, ReadWeights, Routing, Score, Stack, Standing
from k3ablate.report.pictures import Picture
from k3ablate.report.site.charts import ELO, benchmark_name
from k3ablate.report.style import decimal

MOST_ROWS = 12  # of a picture's data; its CSV has all
MOST_EXPERTS = 16  # the most and the least chosen, together
LINK_DEPTHS = (8, 16, 24, 32, 48, 61, 64, 93, 96, 128)
EMPTY = "–"
NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?( ?[×%])?")


class Cells(NamedTuple):
    """A table as text; the first cell of a row is its heading."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Of every column but the first, whether it holds nothing but numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else ()
        found = [all(cell in ("", EMPTY) or NUMBER.fullmatch(cell) for cell in column) for column in columns]
        return (False, *found[1:]) if found else (False,) * len(self.headings)


def of_picture(picture: Picture) -> Cells:
    """The first rows of what is drawn."""
    head = picture.data.head(MOST_ROWS)
    shown = f"the first {len(head)} of {len(picture.data)} rows" if len(head) < len(picture.data) else "all rows"
    rows = (tuple(_text(value) for value in row) for row in head.itertuples(index=False, name=None))
    return Cells(f"{picture.title}: {shown}", tuple(map(str, picture.data.columns)), tuple(rows))


def of_tokens(found: Routing) -> Cells:
    """Every token with its experts, counted from 1."""
    rows = (
        (str(number), token.text, ", ".join(str(expert + 1) for expert in token.experts))
        for number, token in enumerate(found.tokens, start=1)
    )
    return Cells(f"{found.name}: experts of every token", ("place", "token", "experts, heaviest first"), tuple(rows))


def of_loads(found: Routing) -> Cells:
    """The most and the least chosen experts."""
    mean = sum(found.pairs) / found.num_experts
    order = sorted(range(found.num_experts), key=lambda expert: -found.pairs[expert])
    few = order if len(order) <= MOST_EXPERTS else order[: MOST_EXPERTS // 2] + order[-MOST_EXPERTS // 2 :]
    rows = (
        (str(expert + 1), f"{found.pairs[expert]:,}", decimal(found.pairs[expert] / mean) if mean else EMPTY)
        for expert in few
    )
    shown = "all experts" if len(few) == len(order) else "the most and the least chosen experts"
    return Cells(f"{found.name}: {shown}", ("expert", "tokens", "times the mean"), tuple(rows))


def of_stack(found: Stack) -> Cells:
    """Layer by layer, from 1."""
    rows = (
        (str(number), layer.mixer, layer.feed_forward, EMPTY if layer.block is None else str(layer.block + 1))
        for number, layer in enumerate(found.layers, start=1)
    )
    return Cells(f"{found.name}, layer by layer", ("layer", "mixer", "feed-forward", "block"), tuple(rows))


def of_links(found: Links) -> Cells:
    """At the block size where the sliders start, at some depths."""
    size, deepest = found.layers_per_block, len(found.grids[0].full)
    depths = sorted({depth for depth in (*LINK_DEPTHS, found.num_layers) if depth <= deepest})
    headings = [f"{kind}, by {grid.consumer}" for grid in found.grids for kind in ("full", "block")]
    rows = (
        (str(depth), *(f"{number:,}" for grid in found.grids
                       for number in (grid.full[depth - 1], grid.block[depth - 1][size - 1])))
        for depth in depths
    )  # fmt: skip
    caption = f"Links in blocks of {size} decoder layers, those of the output's own read included"
    return Cells(caption, ("layers", *headings), tuple(rows))


def of_parallel(found: Sequence[Parallel]) -> Cells:
    """One row of each layer."""
    headings = ("layer", "ranks", "pairs that leave", "busiest rank", "bytes at full width", "bytes at routed width")
    rows = (
        (entry.name, str(entry.num_ranks), f"{entry.leaving_share:.2%}", f"{decimal(max(entry.loads))} of the mean",
         f"{entry.full_width_bytes:,.0f} at {entry.full_width:,}",
         f"{entry.routed_width_bytes:,.0f} at {entry.routed_width:,}")
        for entry in found
    )  # fmt: skip
    return Cells("Per token and layer, dispatch and combine together, averaged over tokens", headings, tuple(rows))


def of_growth(found: Growth) -> Cells:
    """Every group, and their sums."""
    sums = ("total", sum(entry.before for entry in found.groups), sum(entry.after for entry in found.groups))
    sizes = [*((entry.group.replace("_", " "), entry.before, entry.after) for entry in found.groups), sums]
    rows = (
        (name, *(f"{size:,}" if size else EMPTY for size in (before, after)),
         f"{decimal(after / before)}×" if before and after else EMPTY)
        for name, before, after in sizes
    )  # fmt: skip
    return Cells("Parameters by group", ("group", found.before, found.after, "growth"), tuple(rows))


def of_read_weights(found: ReadWeights) -> Cells:
    """Reads by sources."""
    rows = (
        (read, *(f"{weight:.3f}" for weight in weights), *([""] * (len(found.sources) - len(weights))))
        for read, weights in zip(found.reads, found.weights, strict=True)
    )
    return Cells(f"{found.name}: mean weights", ("read", *found.sources), tuple(rows))


def of_functions(found: Activations) -> Cells:
    """About twelve points of every function."""
    rows = []
    for curve in found.curves:
        step = max(1, len(curve.x) // MOST_ROWS)
        rows += [(curve.name, decimal(x), decimal(y)) for x, y in zip(curve.x[::step], curve.y[::step], strict=True)]
    return Cells("The functions at some points", ("function", found.x_label, found.y_label), tuple(rows))


def of_histograms(found: Activations) -> Cells:
    """Every run's values, by bins."""
    rows = []
    for entry in found.histograms:
        edges = zip(entry.edges[:-1], entry.edges[1:], strict=True)
        filled = ((low, high, count) for (low, high), count in zip(edges, entry.counts, strict=True) if count)
        rows += [(entry.name, f"{decimal(low)} to {decimal(high)}", f"{count:,}") for low, high, count in filled]
    return Cells(f"{found.measured}, empty bins left out", ("run", "bin", "values"), tuple(rows))


def of_standing(found: Standing, category: str) -> Cells:
    """The scores of a category, a model per column."""
    scores = [score for score in found.scores if score.category == category]
    models = tuple(dict.fromkeys(score.model for score in found.scores))
    by_cell = {(benchmark_name(score), score.model): _score(score) for score in scores}
    names = dict.fromkeys(name for name, _ in by_cell)
    rows = ((name, *(by_cell.get((name, model), EMPTY) for model in models)) for name in names)
    return Cells(category, ("benchmark", *models), tuple(rows))


def _score(score: Score) -> str:
    """As it is printed there: percent with a decimal, Elo without."""
    return f"{score.score:.0f}" if ELO in score.benchmark else f"{score.score:.1f}"


def _text(value: object) -> str:
    if isinstance(value, float):
        return EMPTY if pandas.isna(value) else decimal(value, digits=5)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

"""What do the charts of the site look like? Vega-Lite specifications, plain data; their colours come from the page.

A chart is a mapping from what a reader can choose to a specification, the first of which is shown first; None hides the
chart for that choice. Colours of series are `range` numbers that the page's theme resolves, and every series differs in
shape or dash too.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from k3ablate.report.exhibits import Activations, Growth, ReadWeights, Score, Standing

Json: TypeAlias = object  # anything that JSON holds
Chart = Mapping[str, Json]

ROW = 22  # pixels from one name to the next
MOST_HEAT = 620  # pixels a heat map is high at most
TITLED, UNTITLED = 30, 14  # pixels between a legend and its chart
ELO = "(Elo)"
ALL = "All"
SHAPES = ("diamond", "circle", "square", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))


def growth(found: Growth) -> Chart:
    """A line per group from one model's parameters to the other's, on either scale."""
    return {scale: _growth(found, scale) for scale in ("log", "linear")}


def _growth(found: Growth, scale: str) -> Json:
    rows = [
        {"group": _words(entry.group), "model": model, "parameters": size, "order": entry.after}
        for entry in sorted(found.groups, key=lambda entry: -entry.after)
        for model, size in ((found.before, entry.before), (found.after, entry.after))
        if size or scale == "linear"
    ]
    names = list(dict.fromkeys(str(row["group"]) for row in rows))
    y = {"field": "group", "type": "nominal", "sort": names, "title": None, "axis": {"grid": True}}
    axis = {"title": "parameters", "format": "~s", "tickCount": 6}
    x = {"field": "parameters", "type": "quantitative", "scale": {"type": scale}, "axis": axis}
    models = [found.before, found.after]
    return _chart(
        f"Parameters by group of {found.before} and {found.after} on a {scale} scale",
        rows, len(names) * (ROW + 4),
        {"mark": {"type": "line", "strokeWidth": 1.5, "style": "faint"},
         "encoding": {"x": x, "y": y, "detail": {"field": "group"}}},
        {"mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
         "encoding": {"x": x, "y": y, **_series("model", models, shape=True),
                      "tooltip": _tooltip("group", "model", "parameters", parameters=",")}},
    )  # fmt: skip


def links() -> Json:
    """Links by depth on a log scale; the page feeds `links`, the lines, and `chosen`, the depth that is read."""
    x = {"field": "layers", "type": "quantitative", "title": "decoder layers", "scale": {"domain": [1, 128]}}
    powers = {"values": [10**power for power in range(6)], "format": ","}
    y = {
        "field": "links",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "links over depth",
        "axis": powers,
    }
    series = _series("form", ["full", "block"], dash=True)
    return {
        **_head("Links over depth against decoder layers, full and block, on a log scale"),
        "height": 300,
        "datasets": {"links": [], "chosen": []},
        "layer": [
            {"data": {"name": "links"}, "mark": {"type": "line", "strokeWidth": 2},
             "encoding": {"x": x, "y": y, **series}},
            {"data": {"name": "chosen"}, "mark": {"type": "rule", "style": "faint"}, "encoding": {"x": x}},
            {"data": {"name": "chosen"}, "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
             "encoding": {"x": x, "y": y, "color": series["color"]}},
            {"data": {"name": "chosen"}, "mark": {"type": "text", "align": "right", "dx": -8, "dy": -8},
             "encoding": {"x": x, "y": y, "text": {"field": "links", "format": ","}}},
        ],
    }  # fmt: skip


def read_weights(found: Sequence[ReadWeights]) -> Chart:
    """A heat map of each run: its reads from top to bottom, their sources from left to right."""
    return {entry.name: _read_weights(entry) for entry in found}


def _read_weights(found: ReadWeights) -> Json:
    rows = [
        {"read": read, "source": source, "weight": round(weight, 4)}
        for read, weights in zip(found.reads, found.weights, strict=True)
        for source, weight in zip(found.sources, weights, strict=False)
    ]
    few = len(found.reads) * ROW <= MOST_HEAT
    y = {"field": "read", "type": "ordinal", "sort": None, "title": None,
         "axis": {"labelOverlap": not few, "grid": False}}  # fmt: skip
    x = {"field": "source", "type": "ordinal", "sort": None, "title": "source",
         "axis": {"labelAngle": -40, "labelOverlap": True, "grid": False}}  # fmt: skip
    legend = {"title": "mean weight", "orient": "top", "gradientLength": 160, "offset": UNTITLED}
    scale = {"domainMin": 0, "range": "heatmap"}
    color = {"field": "weight", "type": "quantitative", "scale": scale, "legend": legend}
    return _chart(
        f"Mean weight of every read on every source, {found.name}",
        rows, len(found.reads) * ROW if few else MOST_HEAT,
        {"mark": {"type": "rect"},
         "encoding": {"x": x, "y": y, "color": color, "tooltip": _tooltip("read", "source", "weight")}},
    )  # fmt: skip


def functions(found: Activations) -> Chart:
    """The activations as functions."""
    rows = [
        {"name": curve.name, "x": x, "y": y} for curve in found.curves for x, y in zip(curve.x, curve.y, strict=True)
    ]
    names = [curve.name for curve in found.curves]
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": found.x_label},
        "y": {"field": "y", "type": "quantitative", "title": found.y_label},
        **_series("name", names, dash=True),
    }
    lines = {"mark": {"type": "line", "strokeWidth": 2}, "encoding": encoding}
    return {ALL: _chart(f"{' and '.join(names)} as functions", rows, 260, lines)}


def histograms(found: Activations) -> Chart:
    """What runs had, as shares of all values on a log scale."""
    if not found.histograms:
        return {ALL: None}
    rows = [
        {"name": entry.name, "x": left, "share": count / sum(entry.counts)}
        for entry in found.histograms
        for left, count in zip(entry.edges, entry.counts, strict=False)
        if count
    ]
    axis = {"format": "~e", "tickCount": 6}
    is_log = all(entry.edges[0] > 0 for entry in found.histograms)  # absolute values over decades
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": found.measured,
              **({"scale": {"type": "log"}, "axis": axis} if is_log else {})},
        "y": {"field": "share", "type": "quantitative", "scale": {"type": "log"}, "title": "share of values in a bin",
              "axis": axis},
        **_series("name", [entry.name for entry in found.histograms], dash=True),
    }  # fmt: skip
    steps = {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5}, "encoding": encoding}
    return {ALL: _chart(f"Histogram of {found.measured}", rows, 260, steps)}


def categories(found: Standing) -> tuple[str, ...]:
    """All, then those of the table, as they come."""
    return (ALL, *dict.fromkeys(score.category for score in found.scores))


def standing(found: Standing, *, is_elo: bool) -> Chart:
    """Scores by benchmark, in percent or as Elo, for all categories and for each."""
    models = list(dict.fromkeys(score.model for score in found.scores))
    return {category: _standing(found, category, models, is_elo=is_elo) for category in categories(found)}


def benchmark_name(score: Score) -> str:
    """With its setting, where there is one."""
    return f"{score.benchmark}, {score.setting}" if score.setting else score.benchmark


def _standing(found: Standing, category: str, models: Sequence[str], *, is_elo: bool) -> Json:
    scores = [
        score for score in found.scores
        if category in (ALL, score.category) and (ELO in score.benchmark) == is_elo
    ]  # fmt: skip
    if not scores:
        return None
    rows = [{"benchmark": benchmark_name(score), "model": score.model, "score": score.score} for score in scores]
    names = list(dict.fromkeys(str(row["benchmark"]) for row in rows))
    unit = "Elo" if is_elo else "percent"
    scale = {"zero": False} if is_elo else {"domain": [0, 100]}
    x = {"field": "score", "type": "quantitative", "title": f"published score, {unit}", "scale": scale}
    y = {"field": "benchmark", "type": "nominal", "sort": names, "title": None, "axis": {"grid": True}}
    series = _series("model", models, shape=True)
    point = {"type": "point", "filled": True, "size": 70, "opacity": 0.95}
    tooltip = _tooltip("benchmark", "model", "score")
    return _chart(
        f"Published scores in {unit}, {category}", rows, max(2, len(names)) * ROW,
        {"mark": point, "encoding": {"x": x, "y": y, **series, "tooltip": tooltip}},
    )  # fmt: skip


def _series(field: str, names: Sequence[str], *, shape: bool = False, dash: bool = False) -> dict[str, Json]:
    """Colour, and what tells series apart without it."""
    # Below a legend stands the title of the y axis, where it has one.
    legend = {"orient": "top", "title": None, "direction": "horizontal", "offset": TITLED if dash else UNTITLED}
    domain: dict[str, Json] = {"domain": list(names)}
    found: dict[str, Json] = {"color": {"field": field, "type": "nominal", "scale": domain, "legend": legend}}
    if shape:
        shapes = [SHAPES[index % len(SHAPES)] for index in range(len(names))]
        found["shape"] = {"field": field, "type": "nominal", "scale": {**domain, "range": shapes}, "legend": legend}
    if dash:
        dashes = [DASHES[index % len(DASHES)] for index in range(len(names))]
        scale = {**domain, "range": dashes}
        found["strokeDash"] = {"field": field, "type": "nominal", "scale": scale, "legend": legend}
    return found


def _tooltip(*fields: str, **formats: str) -> Json:
    return [{"field": field, **({"format": formats[field]} if field in formats else {})} for field in fields]


def _chart(description: str, rows: Sequence[Json], height: int, *layers: Json) -> Json:
    return {**_head(description), "height": height, "data": {"values": list(rows)}, "layer": list(layers)}


def _head(description: str) -> dict[str, Json]:
    return {"description": description, "width": "container", "autosize": {"type": "fit-x"}}


def _words(group: str) -> str:
    return group.replace("_", " ")

"""What do the scripts of a page read? JSON inside the page, which no text in it can leave."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from markupsafe import Markup

from k3ablate.report.exhibits import Exhibits
from k3ablate.report.site import charts
from k3ablate.report.site.charts import Json

# What would end the element or, in old browsers, a line; as JSON they mean the same.
ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def embedded(value: Json) -> Markup:
    """JSON for a `<script type="application/json">`; NaN and infinity become null."""
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(ESCAPES))


def architecture(exhibits: Exhibits) -> dict[str, Json]:
    """By the name under which a script finds it; only what there is."""
    found: dict[str, Json] = {}
    if exhibits.growth:
        found["growth"] = charts.growth(exhibits.growth)
    if exhibits.links:
        found["links"] = {**asdict(exhibits.links), "chart": charts.links()}
    if exhibits.read_weights:
        found["read-weights"] = charts.read_weights(exhibits.read_weights)
    if exhibits.routing:
        found["routing"] = [asdict(entry) for entry in exhibits.routing]
    if exhibits.parallel:
        found["parallel"] = [asdict(entry) for entry in exhibits.parallel]
    if exhibits.activations:
        found["functions"] = charts.functions(exhibits.activations)
        found["histograms"] = charts.histograms(exhibits.activations)
    return found


def standing(exhibits: Exhibits) -> dict[str, Json]:
    """The same for the page of published scores."""
    if not exhibits.standing:
        return {}
    return {
        "standing-percent": charts.standing(exhibits.standing, is_elo=False),
        "standing-elo": charts.standing(exhibits.standing, is_elo=True),
    }


def _finite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(entry) for entry in value]
    return value

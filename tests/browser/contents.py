"""Contents of sites, built by hand: a usual one, one with hostile names, many arms, one arm, nothing but failures."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pandas
from matplotlib.figure import Figure

from k3ablate.model.links import num_links, num_output_links
from k3ablate.report.exhibits import (
    Activations,
    Curve,
    Exhibits,
    GroupGrowth,
    Growth,
    Histogram,
    LinkGrid,
    Links,
    Parallel,
    ReadWeights,
    RoutedToken,
    Routing,
    Stack,
    StackLayer,
    TokenHops,
    uniform_routing,
)
from k3ablate.report.pictures import Picture
from k3ablate.report.site import PAGES, SiteContent, SiteTable
from k3ablate.report.standing import published_standing
from k3ablate.report.style import Theme, arm_style
from k3ablate.report.tables import Provenance

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
TEXT = "def read(path):\n    with open(path) as file:\n        return file.read()\n"
HOSTILE = "</script><img src=x onerror=alert(1)>"
LONG = "an_arm_with_a_very_long_name_that_" * 3
UNICODE = "Ünï→çødé 模型 \u2028 \u202e ✓"


def picture(name: str, arms: Sequence[str], title: str = "Loss against training compute") -> Picture:
    """A line per arm."""
    rows = [(arm, 10.0 ** (15 + step), 3.4 - 0.2 * step - 0.01 * index) for index, arm in enumerate(arms)
            for step in range(4)]  # fmt: skip
    data = pandas.DataFrame(rows, columns=["arm", "flops", "loss_nats_per_token"])

    def draw(theme: Theme) -> Figure:
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.subplots()
        for index, (_, line) in enumerate(data.groupby("arm", sort=False)):
            style = arm_style(index, theme)
            axes.semilogx(line["flops"], line["loss_nats_per_token"], color=style.colour, marker=style.marker)
        axes.set_xlabel("training FLOPs")
        axes.set_ylabel("validation loss, nats per token")
        axes.spines[["top", "right"]].set_visible(False)
        return figure

    description = f"Loss of {len(arms)} arms against training compute, on a logarithmic axis. Lower is better."
    return Picture(name, title, description, data, draw)


def table(name: str, title: str, rows: Sequence[Sequence[str]]) -> SiteTable:
    """HTML as it is handed in, escaped."""
    from markupsafe import escape

    head = "".join(
        f'<th scope="col">{heading}</th>' for heading in ("arm", "runs", "loss", "multiplier (95 %)", "range")
    )
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    html = (
        f'<div class="scrolled" role="region" aria-labelledby="{name}-1" tabindex="0"><table>'
        f'<caption id="{name}-1">{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
    return SiteTable(name, title, html, "arm,loss\nk2,3.1\n")


def stack(name: str, num_layers: int, *, is_k3: bool) -> Stack:
    """K3's layout, or K2's."""
    layers = (
        StackLayer(
            ("gated_mla" if index % 4 == 3 or index == num_layers - 1 else "kda") if is_k3 else "mla",
            "dense" if index == 0 else "latent_moe" if is_k3 else "moe",
            index // 12 if is_k3 else None,
        )
        for index in range(num_layers)
    )
    return Stack(name, "block_attnres" if is_k3 else "plain", tuple(layers))


def links(max_layers: int = 128, max_size: int = 32) -> Links:
    """From the counter."""
    grids = []
    for consumer, factor in (("sublayer", 2), ("decoder layer", 1)):
        total = lambda layers, size=1, factor=factor: (  # noqa: E731
            num_links(factor * layers, size) + num_output_links(factor * layers, size)
        )
        depths = range(1, max_layers + 1)
        block = tuple(tuple(total(depth, factor * size) for size in range(1, max_size + 1)) for depth in depths)
        grids.append(LinkGrid(consumer, tuple(map(total, depths)), block))
    return Links(tuple(grids), 93, 12)


def routing(name: str, texts: Sequence[str], num_experts: int = 96, num_active: int = 4) -> Routing:
    """Uneven loads, and tokens that go to experts by their place."""
    tokens = tuple(
        RoutedToken(text, tuple((7 * index + 23 * rank) % num_experts for rank in range(num_active)),
                    tuple(0.4 / (rank + 1) for rank in range(num_active)))
        for index, text in enumerate(texts)
    )  # fmt: skip
    pairs = tuple(int(900 * math.exp(-((index * 37) % num_experts) / 30)) for index in range(num_experts))
    source = "Run 01ad59bf602fafe9 (k3, size s, seed 0), layer 3, on its validation set of 32,768 tokens."
    return Routing(name, source, pairs, tokens, num_active, num_shared=1)


def parallel(name: str) -> Parallel:
    """Tokens on eight ranks."""
    tokens = tuple(
        TokenHops(text, index % 8, tuple((131 * index + 97 * rank) % 896 for rank in range(16)))
        for index, text in enumerate(TEXT.split())
    )
    loads = (1.02, 0.97, 1.11, 0.88, 1.0, 1.05, 0.94, 1.03)
    source = "Every expert as popular as every other; counted for K3."
    return Parallel(name, source, 896, 7168, 401408.0, 3584, 200704.0, 2, 0.875, loads, tokens)


def read_weights(name: str) -> ReadWeights:
    """Of six layers in blocks of two."""
    reads = [f"layer {layer} {part}" for layer in range(1, 7) for part in ("mixer", "feed-forward")] + ["output"]
    sources = ("embedding", "block 1", "block 2", "block 3", "running sum")
    lengths = [min(5, 1 + index // 3) for index in range(len(reads))]
    weights = tuple(tuple((place + 1) / sum(range(1, length + 1)) for place in range(length)) for length in lengths)
    return ReadWeights(name, "Run 01ad59bf602fafe9 (k3, size s, seed 0) on 4,096 tokens of its validation set.",
                       tuple(reads), sources, weights)  # fmt: skip


def activations(names: Sequence[str]) -> Activations:
    """Silu against its bounded form, and a histogram of each run."""
    x = tuple(step / 4 for step in range(-40, 61))
    silu = [value / (1 + math.exp(-value)) for value in x]
    bounded = [4 * math.tanh(value / 4) / (1 + math.exp(-value)) for value in x]
    edges = tuple(step / 2 for step in range(-20, 21))
    histograms = tuple(
        Histogram(name, "situ_glu", edges, tuple(int(1e5 * math.exp(-abs(edge) * rate)) for edge in edges[:-1]))
        for name, rate in zip(names, (1, 4 / 3, 5 / 3), strict=False)
    )
    return Activations("What the gate lets through where up = 1, and the hidden activation of shared experts.", "gate",
                       "hidden activation", (Curve("SwiGLU", x, tuple(silu)), Curve("SiTU-GLU", x, tuple(bounded))),
                       "hidden activation of the shared experts", histograms)  # fmt: skip


def growth() -> Growth:
    """The counter's groups."""
    sizes = {
        "routed_experts": (1014686023680, 2722740830208), "kda_mixers": (0, 30618086496),
        "shared_experts": (2642411520, 12155092992), "mla_mixers": (6168569856, 5572706304),
        "latent": (0, 4727310336), "input_embedding": (1174405120, 1174405120), "lm_head": (1174405120, 1174405120),
        "dense": (396361728, 726663168), "router": (165173760, 590955008), "attnres": (0, 2680832),
        "layer_norms": (881664, 1340416),
    }  # fmt: skip
    return Growth("Kimi K2", "Kimi K3", tuple(GroupGrowth(group, *pair) for group, pair in sizes.items()))


def exhibits(names: Sequence[str], texts: Sequence[str]) -> Exhibits:
    """All of them, with names of arms and texts of tokens as given."""
    return Exhibits(
        routing=(routing(f"{names[0]}, size s, layer 3", texts),
                 uniform_routing("Kimi K3, drawn", 896, 16, 12, seed=0)),
        stacks=(stack("Kimi K3", 93, is_k3=True), stack("Kimi K2", 61, is_k3=False)),
        links=links(),
        parallel=(parallel(f"Kimi K3, beside {names[-1]}"),),
        growth=growth(),
        read_weights=tuple(read_weights(name) for name in names[:2]),
        activations=activations(names[:3]),
        standing=published_standing(PUBLISHED),
    )  # fmt: skip


def content(
    arms: Sequence[str] = ("k2", "k3", "+attention"), texts: Sequence[str] = (), title: str = "demo"
) -> SiteContent:
    """Every page with something on it."""
    rows = [(arm, "6", "2.8031 ± 0.0041", "1.31 (1.22 to 1.40)", "measured") for arm in arms]
    provenance = Provenance(title, "0123456789abcdef", "6f3bda61dcb7d8fe", "3 × counted forward FLOPs", "0.3.1",
                            f"k3ablate report {title}")  # fmt: skip
    keys = [page.key for page in PAGES if page.key not in ("tables", "architecture", "standing")]
    return SiteContent(
        title=title,
        question="How much of the gain from K2 to K3 does each component bring at the scale of a laptop?",
        verdict=(f"{arms[-1]} needs 1.31 times less compute than {arms[0]} for the same loss (95 %: 1.22 to 1.40).",
                 "Measured at a loss of 2.80 nats per token, 2 seeds, 3 sizes."),
        provenance=provenance,
        pictures={key: (picture(f"{key}-1", arms), ) for key in keys},
        tables={"tables": (table("table", "Every arm", rows),), "evidence": (table("evidence", "The board", rows),)},
        notes={"tables": (f"{arms[-1]}: one run diverged, loss above 30 at step 12.",)},
        exhibits=exhibits(arms, texts or TEXT.split(" ")),
    )  # fmt: skip


def hostile() -> SiteContent:
    """Names that would be markup, overflow or break a line."""
    names = (HOSTILE, LONG, UNICODE, "$\\frac{1}{2}$ & <b>bold</b>")
    return content(names, names, title=f"{HOSTILE} {LONG}")


def many() -> SiteContent:
    """Forty arms."""
    return content([f"arm_{number}_of_forty" for number in range(40)])


def single() -> SiteContent:
    """One arm."""
    return content(["k2"])


def diverged() -> SiteContent:
    """No run finished: nothing to show but why."""
    full = content()
    return dataclasses.replace(
        full, verdict=("No run finished: 42 of 42 diverged.",), pictures={}, tables={}, exhibits=Exhibits(),
        notes={"tables": tuple(f"k2 s seed {seed}: diverged, loss above 30 at step 12" for seed in range(42))},
    )  # fmt: skip

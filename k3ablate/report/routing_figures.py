"""How many experts did no token choose when training ended?

One dot per run, arms as rows, sizes by marker: the share of routed experts of all layers that no token of the
validation set was sent to. How loads were spread while training is in `training_figures`; logs have no count of dead
experts by step.
"""

from collections.abc import Sequence

import pandas
from matplotlib.figure import Figure

from k3ablate.report.lettering import SMALL, height, wrapped, write
from k3ablate.report.panels import PAGE, Entry, Page, few, lay_out, marker_looks
from k3ablate.report.pictures import Picture
from k3ablate.report.style import Theme
from k3ablate.report.traces import RunTrace

LABELS = 2.3  # inches, at most
ROW_GAP = 0.07
COLUMNS = ["arm", "size", "seed", "dead_share"]


def dead_picture(traces: Sequence[RunTrace], order: Sequence[str]) -> list[Picture]:
    """The picture; none where no run has counts. `order`: all arms, the baseline first."""
    rows = [
        {"arm": arm, "size": trace.size, "seed": trace.seed, "dead_share": trace.dead_share}
        for arm in order for trace in traces if trace.arm == arm and trace.dead_share is not None
    ]  # fmt: skip
    if not rows:
        return []
    data = pandas.DataFrame(rows, columns=COLUMNS)
    without = len(traces) - len(rows)
    notes = [
        "Dead: chosen by no token of the validation set when training had ended; of all routed layers together.",
        *([f"{without} of {len(traces)} runs left no counts (not finished, or without routed experts)."] if without
          else []),
    ]  # fmt: skip

    def draw(theme: Theme) -> Figure:
        return _drawn(data, order, notes, theme)

    return [
        Picture(
            name="dead_experts",
            title="Dead experts at the end of training",
            description=f"A row per arm, a marker per run and size, by the share of dead experts. {' '.join(notes)}",
            data=data,
            draw=draw,
        )
    ]


def _drawn(data: pandas.DataFrame, order: Sequence[str], notes: Sequence[str], theme: Theme) -> Figure:
    arms, sizes = list(data["arm"].unique()), list(data["size"].unique())
    names = {arm: wrapped(f"{arm} (baseline)" if arm == order[0] else arm, LABELS - 0.15) for arm in arms}
    heights = [height(len(names[arm])) + ROW_GAP for arm in arms]
    entries = [Entry(size, {**marker_looks(index, theme), "color": theme.ink}) for index, size in enumerate(sizes)]
    page = Page([""], "dead experts (percent of routed)", "", entries, few(notes), 1, sum(heights), LABELS)
    figure, (axes,) = lay_out(page, theme)
    y = 0.0
    for arm, high in zip(arms, heights, strict=True):
        for index, size in enumerate(sizes):
            runs = data[(data["arm"] == arm) & (data["size"] == size)]
            looks = {**marker_looks(index, theme), "color": marker_looks(list(order).index(arm), theme)["color"]}
            axes.plot(100 * runs["dead_share"], [y + high / 2] * len(runs), clip_on=False, **looks)
        write(axes, -0.1 / (PAGE - LABELS), y + high / 2, names[arm], ha="right",
              transform=axes.get_yaxis_transform())  # fmt: skip
        y += high
    axes.set(ylim=(sum(heights), 0), xlim=(0, max(1.0, 105 * float(data["dead_share"].max()))))
    axes.set_yticks([])
    axes.tick_params(labelsize=SMALL)
    return figure

"""Training curves, routing load and dead experts: the data against the traces, what is drawn against the data."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from k3ablate.fits.spikes import BEFORE, DEVIATIONS, NORMAL, spikes
from k3ablate.fits.training_curves import DEFAULT_WINDOW, smooth
from k3ablate.report.pictures import Picture
from k3ablate.report.style import DARK, LIGHT, Theme
from k3ablate.report.traces import NOTHING, RunTrace, Series
from k3ablate.report.training_figures import MOST_ARMS, NUM_BINS, training_pictures
from tests.report.overlap import assert_legible

STEP = 1000  # tokens
REASON = "training loss nan at step 700"


def trace(arm: str, size: str = "s0", seed: int = 0, num_steps: int = 2000, spike: int | None = None) -> RunTrace:
    generator = np.random.default_rng([len(arm), len(size), seed])
    tokens_N = STEP * np.arange(1.0, num_steps + 1)
    loss_N = 6 * np.arange(1.0, num_steps + 1) ** -0.12 + 0.02 * generator.standard_normal(num_steps)
    if spike is not None:
        loss_N[spike : spike + 2] += (1.0, 0.8)
    load_N = 1 + 20 / np.sqrt(np.arange(1.0, num_steps + 1))
    return RunTrace(arm, size, seed, "finished", "", num_steps, Series(tokens_N, loss_N, 20), Series(tokens_N, load_N),
                    0.25)  # fmt: skip


def diverged(arm: str, size: str = "s0", seed: int = 0) -> RunTrace:
    return replace(trace(arm, size, seed, num_steps=700), status="diverged", reason=REASON, dead_share=None)


def grid(num_arms: int, num_sizes: int, num_seeds: int, num_steps: int = 200) -> list[RunTrace]:
    return [
        trace(f"arm{arm}", f"s{size}", seed, num_steps)
        for arm in range(num_arms) for size in range(num_sizes) for seed in range(num_seeds)
    ]  # fmt: skip


def by_name(traces: list[RunTrace], baseline: str = "k2") -> dict[str, Picture]:
    return {picture.name: picture for picture in training_pictures(traces, baseline)}


def panels(picture: Picture, theme: Theme = LIGHT) -> list[Axes]:
    return [axes for axes in assert_legible(picture, theme).axes if axes.get_label() != "feet"]


def plain_spikes(losses: list[float], start: int) -> list[int]:
    above = {
        place: losses[place] - float(np.median(losses[place - BEFORE : place])) for place in range(BEFORE, len(losses))
    }  # fmt: skip
    counted = {place: size for place, size in above.items() if place >= start}
    usual = NORMAL * float(np.median([abs(size) for size in counted.values()]))
    found: list[list[int]] = []
    for place, size in counted.items():
        if size > DEVIATIONS * usual:
            if found and found[-1][-1] == place - 1:
                found[-1].append(place)
            else:
                found.append([place])
    return [max(run, key=lambda place: counted[place]) for run in found]


@pytest.mark.parametrize(("start", "places"), [(0, (40, 300)), (100, (300,))])
def test_spikes_are_found_where_they_are(start: int, places: tuple[int, ...]) -> None:
    loss_N = 3 + 0.01 * np.random.default_rng(0).standard_normal(500)
    for place in (40, 300):
        loss_N[place : place + 3] += (0.3, 0.5, 0.2)
    assert spikes(loss_N, start) == plain_spikes(loss_N.tolist(), start) == [place + 1 for place in places]


@pytest.mark.parametrize("seed", range(5))
def test_spikes_are_those_of_the_plain_rule(seed: int) -> None:
    generator = np.random.default_rng(seed)
    loss_N = 3 + 0.05 * generator.standard_t(2, 300)
    assert spikes(loss_N, 15) == plain_spikes(loss_N.tolist(), 15)


def test_short_or_constant_curves_have_no_spike() -> None:
    assert spikes(np.array([5.0, 4.0, 9.0])) == []
    assert spikes(np.full(50, 2.0)) == []
    assert spikes(np.linspace(5, 2, 50), start=60) == []


def test_lines_are_what_compare_averages_and_ends_are_kept() -> None:
    one = trace("k2", spike=1500)
    data = by_name([one])["training_curves"].data
    smooth_N = smooth(one.loss.tokens_N, one.loss.value_N, DEFAULT_WINDOW)
    for kind, values_N in (("smoothed", smooth_N), ("logged", one.loss.value_N)):
        rows = data[data["kind"] == kind]
        places = (rows["tokens"].to_numpy(float) / STEP - 1).astype(int)
        np.testing.assert_array_equal(rows["value"].to_numpy(float), values_N[places])
        assert (places[0], places[-1]) == (0, 1999)
        assert len(rows) <= 2 * NUM_BINS + 2
    logged = data[data["kind"] == "logged"]["value"]
    assert (logged.max(), logged.min()) == (one.loss.value_N.max(), one.loss.value_N.min())
    spike = data[data["kind"] == "spike"]
    assert spike["tokens"].tolist() == [1501 * STEP]


def test_what_is_drawn_is_the_data() -> None:
    picture = by_name([trace("k2", spike=900), trace("k3", seed=1), diverged("k3", seed=2), trace("k2", "s1")])[
        "training_curves"
    ]
    axes, other = panels(picture)
    data = picture.data[picture.data["size"] == "s0"]
    drawn = [(line.get_gid(), np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float))
             for line in axes.get_lines()]  # fmt: skip
    expected = data[data["kind"] != "logged"].groupby(["arm", "seed", "kind"], sort=False)
    assert len(drawn) == len(expected) == 5
    for (_, _, kind), rows in expected:
        assert any(
            gid == kind and np.array_equal(x, rows["tokens"]) and np.array_equal(y, rows["value"])
            for gid, x, y in drawn
        )
    (faint,) = [one for one in axes.collections if isinstance(one, LineCollection)]
    assert sum(len(np.asarray(segment)) for segment in faint.get_segments()) == (data["kind"] == "logged").sum()
    assert len(other.get_lines()) == 1
    for _, x, y in drawn[-1:]:
        assert axes.get_xlim()[0] <= x[-1] <= axes.get_xlim()[1]
        assert axes.get_ylim()[0] <= y[-1] <= axes.get_ylim()[1]


def test_a_high_spike_is_marked_at_the_edge_of_the_panel() -> None:
    one = trace("k2")
    one.loss.value_N[900] = 18.0
    picture = by_name([one])["training_curves"]
    (axes,) = panels(picture)
    (mark,) = [line for line in axes.get_lines() if line.get_gid() == "spike"]
    assert axes.get_ylim()[1] < 10
    assert mark.get_ydata() == pytest.approx([axes.get_ylim()[1]])
    assert picture.data[picture.data["kind"] == "spike"]["value"].tolist() == [18.0]


def test_divergence_stands_where_logging_ended_with_step_and_reason() -> None:
    lost = diverged("k3")
    picture = by_name([trace("k2"), lost])["training_curves"]
    (row,) = picture.data[picture.data["kind"] == "diverged"].to_dict("records")
    assert (row["tokens"], row["value"]) == (700 * STEP, lost.loss.value_N[-1])
    assert row["note"] == f"k3 s0 seed 0 diverged after 700 steps: {REASON}"
    assert row["note"] in picture.description


def test_runs_without_a_log_are_told() -> None:
    gone = RunTrace("k3", "s0", 0, "finished", "", 9, missing="its folder is not here")
    found = by_name([trace("k2"), gone])
    assert "k3 s0 seed 0: no curve: its folder is not here" in found["training_curves"].description
    alone = by_name([replace(gone, arm="k2")])
    assert list(alone) == ["training_curves"]
    (axes,) = panels(alone["training_curves"])
    assert [text.get_text() for text in axes.texts][-1] == "no run has logged a loss"


def test_load_is_drawn_without_spikes_and_only_for_runs_that_route() -> None:
    found = by_name([trace("k2"), replace(trace("dense"), worst_load=NOTHING, dead_share=None)])
    data = found["routing_load"].data
    assert set(data["arm"]) == {"k2"}
    assert set(data["kind"]) == {"logged", "smoothed"}
    (axes,) = panels(found["routing_load"])
    assert axes.get_yscale() == "log"
    assert "routing_load" not in by_name([replace(trace("k2"), worst_load=NOTHING)])


def test_dead_experts_are_dots_in_rows_of_arms() -> None:
    traces = [trace("k2"), trace("k2", seed=1), replace(trace("k3"), dead_share=0.0), diverged("k3", seed=1)]
    picture = by_name(traces)["dead_experts"]
    (axes,) = panels(picture)
    assert [list(np.asarray(line.get_xdata(), float)) for line in axes.get_lines()] == [[25.0, 25.0], [0.0]]
    assert [text.get_text() for text in axes.texts] == ["k2 (baseline)", "k3"]
    assert "1 of 4 runs left no counts" in picture.description
    assert "dead_experts" not in by_name([diverged("k2")])


def test_many_arms_are_spread_over_pictures_with_the_baseline_in_each() -> None:
    found = training_pictures(grid(16, 1, 1), "arm3")
    curves = [picture for picture in found if picture.name.startswith("training_curves")]
    assert [picture.name for picture in curves] == ["training_curves", "training_curves_2", "training_curves_3"]
    shown = [list(dict.fromkeys(picture.data["arm"])) for picture in curves]
    assert all("arm3" in arms and len(arms) <= MOST_ARMS for arms in shown)
    assert {arm for arms in shown for arm in arms} == {f"arm{number}" for number in range(16)}


def test_arms_and_sizes_can_be_chosen() -> None:
    found = training_pictures(grid(3, 3, 1), "arm0", arms=["arm2"], sizes=["s1"])
    assert {(row.arm, row.size) for row in found[0].data.itertuples()} == {("arm2", "s1")}


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_awkward_names_and_ends_stay_legible(theme: Theme) -> None:
    names = ["<b>&</b>", "n" * 90, "a_$x$_{b", "你好"]
    traces = [trace(name, size, seed, 60) for name in names for size in ("s0", "s" * 60) for seed in (0, 1)]
    traces += [diverged(name, f"s{size}", 0) for name in names for size in range(5)]
    for picture in training_pictures(traces, names[1]):
        assert_legible(picture, theme)


def test_all_diverged_at_once_stay_legible() -> None:
    early = [replace(diverged(f"arm{arm}"), loss=NOTHING, worst_load=NOTHING) for arm in range(5)]
    for picture in training_pictures([*early, *(diverged(f"arm{arm}", "s1") for arm in range(5))], "arm0"):
        assert_legible(picture)
    assert [picture.name for picture in training_pictures(early, "arm0")] == ["training_curves"]


def test_one_logged_step_is_drawn() -> None:
    for picture in training_pictures([trace("k2", num_steps=1)], "k2"):
        assert_legible(picture)

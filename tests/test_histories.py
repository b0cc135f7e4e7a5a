"""What is gathered for pictures, from run folders, tuned recipes and a table as they are written."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from k3ablate.config import parse, read_yaml, write_yaml
from k3ablate.experiment import Experiment, load
from k3ablate.histories import sweeps, traces, tuned
from k3ablate.plan import points
from k3ablate.recipes import experiment_path
from k3ablate.records import METRICS_FILE, Evaluation, Label, RoutedPairs, RunRecord, Status, write_routing
from k3ablate.tuned import TunedArm, file_of
from k3ablate.tuning.findings import write_arm, write_laws
from k3ablate.tuning.isoflop import Spent, best_ratio

DIGEST = "0123456789abcdef"


def record(status: str = "finished", reason: str = "") -> RunRecord:
    measured = {"validation": Evaluation(loss=2.0, bits_per_byte=1.0, num_tokens=9)} if status == "finished" else {}
    return RunRecord(
        digest=DIGEST, status=Status(status), reason=reason, num_steps=6, tokens=600, flops=1e9, flops_6nd=1e9,
        active_params=10, total_params=20, wall_seconds=1.0, tokens_per_second=600.0, corpus="c",
        evaluations=measured,
    )  # fmt: skip


def line(step: int, loss: float | None, imbalance: list[float | None]) -> dict[str, object]:
    return {"step": step, "tokens": 100 * (step + 1), "flops": 1e6 * (step + 1), "seconds": 0.1 * (step + 1),
            "loss": loss, "learning_rate": min(1.0, (step + 1) / 2), "imbalance": imbalance}  # fmt: skip


def label() -> Label:
    return Label("x", "k3", "s", 1, DIGEST, {}, 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / DIGEST
    path.mkdir()
    return path


def log(folder: Path, lines: list[dict[str, object]], rest: str = "") -> None:
    (folder / METRICS_FILE).write_text("".join(json.dumps(one) + "\n" for one in lines) + rest)


def test_a_resumed_run_has_every_step_once_as_it_was_logged_last(folder: Path) -> None:
    first = [line(step, 5.0 - step, [2.0, 3.0 + step]) for step in range(4)]
    again = [line(step, 4.9 - step, [9.0, 1.5]) for step in range(2, 6)]
    log(folder, [*first, *again], rest='{"step": 6, "tok')
    (found,) = traces([label()], {DIGEST: record("diverged", "nan")}, folder.parent)
    np.testing.assert_array_equal(found.loss.tokens_N, [100, 200, 300, 400, 500, 600])
    np.testing.assert_allclose(found.loss.value_N, [5.0, 4.0, 2.9, 1.9, 0.9, -0.1])
    np.testing.assert_array_equal(found.worst_load.value_N, [3.0, 4.0, 9.0, 9.0, 9.0, 9.0])
    assert (found.loss.start, found.num_steps, found.has_diverged, found.reason) == (1, 6, True, "nan")
    assert (found.name, found.dead_share, found.missing) == ("k3 s seed 1", None, "")


def test_dead_experts_are_those_without_a_token_in_all_layers(folder: Path) -> None:
    log(folder, [line(0, 3.0, [])])
    write_routing(RoutedPairs(digest=DIGEST, validation="v", num_tokens=9, pairs=[[1, 0, 3, 0], [2, 2, 0, 5]]), folder)
    (found,) = traces([label()], {DIGEST: record()}, folder.parent)
    assert found.dead_share == 3 / 8
    assert not len(found.worst_load.tokens_N)


@pytest.mark.parametrize(
    ("lines", "rest", "text"),
    [
        ([], "", "nothing was logged"), ([], "{}\n7\n{}\n", "line 2 is not a JSON object"),
        ([line(0, None, [])], "", "no row has a finite loss"),
    ],
)  # fmt: skip
def test_a_log_that_tells_nothing_is_a_trace_that_says_so(
    folder: Path, lines: list[dict[str, object]], rest: str, text: str
) -> None:
    log(folder, lines, rest)
    (found,) = traces([label()], {DIGEST: record()}, folder.parent)
    assert text in found.missing
    assert not len(found.loss.tokens_N)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The demo at equal compute, two budgets, in a folder where nothing is tuned."""
    demo = read_yaml(experiment_path("demo"))
    sizes = [{**size, "name": f"size{number}"} for number, size in enumerate(demo["sizes"])]
    changed = {
        "name": "sweep",
        "sizes": sizes,
        "budgets": [{"kind": "flops", "flops": 1e10}, {"kind": "flops", "flops": 1e11}],
    }
    write_yaml({key: value for key, value in demo.items() if key != "tuning"} | changed, tmp_path / "sweep.yaml")
    monkeypatch.chdir(tmp_path)
    return load(tmp_path / "sweep.yaml")


def test_sweeps_are_told_as_isoflop_tells_them(experiment: Experiment) -> None:
    rows = [
        {"arm": arm, "size": f"size{number}@{flops}flops", "seed": seed, "status": "finished", "active_params": 1000,
         "tokens": 1000 * 4**number, "loss": 2.0 + 0.05 * (number - 0.8) ** 2 + 0.001 * seed, "flops": float(flops)}
        for arm in ("k2", "a/a") for number in range(3) for flops in ("100000000000.0", "10000000000.0")
        for seed in (0, 1)
    ]  # fmt: skip
    names = sorted({point.name for point in points(experiment)})
    table = pandas.DataFrame(rows).assign(size=lambda frame: frame["size"].map(lambda size: _nearest(size, names)))
    found, laws = sweeps(experiment, table)
    assert set(laws) == {"k2"}
    assert laws["k2"].exponent == pytest.approx(0.0, abs=1e-9)  # both budgets have the same losses
    assert [(one.arm, one.flops) for one in found] == [("k2", 1e10), ("k2", 1e11)]
    spent = [
        Spent(f"size{row['size'][4]}", 1000, row["tokens"], row["loss"]) for row in rows[:12] if row["flops"] == 1e11
    ]
    expected = best_ratio(1e11, spent)
    assert (found[1].value, found[1].loss, found[1].is_claimed) == (expected.optimum.value, expected.optimum.loss, True)
    assert (found[1].low, found[1].high) == (expected.optimum.low, expected.optimum.high)
    assert found[1].low is not None
    assert found[1].ratios == (1.0, 1.0, 4.0, 4.0, 16.0, 16.0)
    assert set(found[1].sizes) == {"size0", "size1", "size2"}
    assert sweeps(load(experiment_path("smoke")), table) == ([], {})
    assert sweeps(experiment, table.assign(status="diverged")) == ([], {})


def _nearest(size: str, names: list[str]) -> str:
    number, _, flops = size.partition("@")
    return next(
        name for name in names if name.startswith(number) and float(name.partition("@")[2][:-5]) == float(flops[:-5])
    )


def test_tuned_values_come_with_their_trials(experiment: Experiment) -> None:
    assert tuned(experiment) is None
    trials = pandas.DataFrame({"size": ["s"], "trial": [0], "status": ["finished"], "loss": [2.0], "p.q": [0.1]})
    space = {"low": 0.01, "high": 1.0}
    found = parse(TunedArm, {
        "experiment": "sweep", "arm": "a/b", "setting": "d", "corpus": "c", "seed": 0,
        "tuning": {"trials": 8, "sizes": ["s"], "space": {"p.q": space}},
        "sizes": {"s": {"baseline_flops": 1e9, "trials": {"finished": 1}, "best_loss": 2.0, "space": {"p.q": space},
                        "paths": {"p.q": {"value": 0.1}}}},
    }, source="test")  # fmt: skip
    folder = Path("recipes") / "tuned" / "sweep"
    write_arm(found, trials, folder)
    write_laws({"a/b": {}}, folder)
    both = tuned(experiment)
    assert both is not None
    assert both[0].tuned == {"a/b": found}
    pandas.testing.assert_frame_equal(both[1]["a/b"], trials)
    (folder / file_of("a/b")).with_suffix(".csv").unlink()
    without = tuned(experiment)
    assert without is not None
    assert without[1] == {}


def test_runs_that_are_elsewhere_are_told_and_those_without_a_record_left_out(tmp_path: Path) -> None:
    (found,) = traces([label(), Label("x", "k2", "s", 0, "f" * 16, {}, 0.0)], {DIGEST: record()}, tmp_path)
    assert "is not here" in found.missing

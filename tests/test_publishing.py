"""From records with planted losses to the published numbers."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from k3ablate import presenting, publishing, verbs
from k3ablate.answers import as_json
from k3ablate.config import InputError
from k3ablate.experiment import load
from k3ablate.fits.analysis import analyse
from k3ablate.jobs.folders import prepare
from k3ablate.mlflow_store import Store
from k3ablate.plan import PlanRow
from k3ablate.presenting import Presented
from k3ablate.records import Evaluation, RunRecord, Status, read_table
from k3ablate.training.corpus import Corpus

# What SQLAlchemy says of MLflow's own models, once a process.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

MULTIPLIER = 1.5  # of the planted arm, at every loss
EXPERIMENT = """
name: planted
question: Is the planted multiplier read back?
expected: yes
stopping: none
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 64}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
design: one_at_a_time
names: {baseline: k2}
match: none
sizes:
  - {name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}
  - {name: s, width: 48, num_layers: 4, head_width: 16, num_active: 2}
  - {name: m, width: 64, num_layers: 4, head_width: 16, num_active: 2}
  - {name: l, width: 96, num_layers: 4, head_width: 16, num_active: 2}
budgets: [{kind: tokens, tokens: 1280}]
seeds: [0, 1]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an experiment whose corpus is known without being built."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.yaml").write_text(EXPERIMENT)
    monkeypatch.setattr(verbs, "known", lambda recipe, folder: FakeCorpus())
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that ask for numbers only."""
    monkeypatch.setattr(publishing, "present", lambda findings, folder: Presented([], []))
    monkeypatch.setattr(publishing, "keep_report", lambda root, experiment, folder, files: "not asked for")


@pytest.fixture
def unillustrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that ask for tables."""
    monkeypatch.setattr(presenting, "_pages", lambda found: {})


class FakeCorpus(Corpus):
    """A corpus that is only asked for its name."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), None)  # type: ignore[arg-type]

    @property
    def digest(self) -> str:
        return "c0ffee"


@pytest.fixture
def settle(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give every planned run a record with a planted loss, or with what `other` makes of its row."""
    monkeypatch.setattr(verbs, "check_budget", lambda *arguments: None)
    root = place / "runs"

    def settle(other: Callable[[PlanRow], RunRecord | None] = planted) -> None:
        for row in verbs.plan_from_known_corpora(load(Path("planted.yaml")), root).rows:
            record = other(row)
            if record is not None:
                assert row.spec is not None
                prepare(root, row.spec).write_record(record)

    return settle


def planted(row: PlanRow) -> RunRecord:
    """L = 1.7 + (m C / 1e6)^-0.3 with a little noise that both arms of a (size, seed) share."""
    gain = MULTIPLIER if row.label.arm != "k2" else 1.0
    noise = 1 + 1e-4 * (1 if row.label.seed else -1) * (1 + len(row.label.size))
    loss = (1.7 + (gain * row.flops / 1e6) ** -0.3) * noise
    return RunRecord(
        digest=row.label.digest,
        status=Status.FINISHED,
        evaluations={"validation": Evaluation(loss=loss, bits_per_byte=loss / 0.6931, num_tokens=64)},
        num_steps=10,
        tokens=row.tokens,
        flops=row.flops,
        flops_6nd=row.flops,
        active_params=row.counts.active_params,
        total_params=row.counts.total_params,
        wall_seconds=1.0,
        tokens_per_second=1.0,
        corpus="c0ffee",
        versions={"code": "abc"},
    )


@pytest.mark.usefixtures("undrawn")
def test_the_planted_multiplier_is_read_back(settle, place: Path) -> None:
    settle()
    baseline, arm = publishing.report("planted.yaml", place / "runs").arms
    assert (baseline.arm, baseline.multiplier) == ("k2", None)
    assert arm.multiplier == pytest.approx(MULTIPLIER, rel=0.02)
    assert arm.multiplier_low <= arm.multiplier <= arm.multiplier_high
    assert arm.paired == pytest.approx(MULTIPLIER, rel=0.2)
    assert (arm.num_runs, arm.largest_size) == (8, "l")


@pytest.mark.usefixtures("undrawn")
def test_the_form_can_be_asked_for_and_is_the_one_that_is_read(settle, place: Path) -> None:
    settle()
    for form in ("power", "power_floor"):
        answer = publishing.report("planted.yaml", place / "runs", form)
        assert [arm.form for arm in answer.arms] == [form, form]
        assert f"curves: {form}, as asked for" in answer.notes
    there = publishing.report("planted.yaml", place / "runs", at_loss=2.0).arms[1]
    assert (there.read_at_loss, there.multiplier) == (2.0, pytest.approx(MULTIPLIER, rel=0.02))
    same = publishing.report("planted.yaml", place / "runs", at_flops=there.read_at_baseline_flops)
    assert same.arms[1].read_at_loss == pytest.approx(2.0)
    assert " --at-flops " in same.provenance
    shared = publishing.report("planted.yaml", place / "runs", "shared_floor", floor=1.7)
    assert [arm.form for arm in shared.arms] == ["shared_floor"] * 2
    assert shared.arms[1].multiplier == pytest.approx(MULTIPLIER, rel=0.02)
    assert shared.provenance.endswith("k3ablate report planted.yaml --form shared_floor --floor 1.7")
    with pytest.raises(InputError, match=r"form: unknown form 'cubic'; write one of power, power_floor"):
        publishing.report("planted.yaml", place / "runs", "cubic")


@pytest.mark.usefixtures("undrawn")
def test_the_collected_csv_gives_the_reported_multiplier_to_anybody(settle, place: Path) -> None:
    settle()
    reported = publishing.report("planted.yaml", place / "runs").arms[1]
    frame = read_table(place / "runs" / "results" / "planted" / "runs.csv")
    read = analyse(frame, "k2", None, np.random.default_rng(publishing.BOOTSTRAP_SEED)).arm("+attention").multiplier
    assert read is not None
    assert (read.value, read.interval.low, read.interval.high) == (
        reported.multiplier, reported.multiplier_low, reported.multiplier_high,
    )  # fmt: skip


def test_the_same_records_give_the_same_bytes_wherever_they_go_and_in_the_store(settle, place: Path) -> None:
    """Whole: what MLflow has is what lies in the folder, once, however often it is asked for, and nothing of before."""
    settle()
    first = publishing.report("planted.yaml", place / "runs")
    assert first.logged.startswith("logged to MLflow: run `report of planted` in sqlite:///")
    folder = place / "published"
    second = publishing.report("planted.yaml", place / "runs", output=folder)
    assert second.logged.startswith("was logged before to MLflow")
    contents = _contents(folder)
    assert _contents(place / "runs" / "results" / "planted") == contents
    assert dataclasses.replace(first, files=second.files, logged=second.logged) == second
    assert {"table.tex", "evidence.html", "runs.csv", "figures/loss_vs_flops.svg", "site/index.html"} < set(contents)
    assert "figures/: loss_vs_flops.{png,svg,pdf,csv}" in second.text()
    store = Store(f"sqlite:///{place / 'runs' / 'mlflow.db'}")
    assert _logged(store, place) == contents
    (folder / "stray.txt").write_text("nothing of the report")
    assert store.keep_report(place / "runs", "planted", {Path("table.md"): folder / "table.md"})
    assert _logged(store, place) == {"table.md": contents["table.md"]}


def test_a_store_out_of_reach_keeps_no_report_from_being_written(
    settle, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle()
    monkeypatch.setattr(publishing, "present", lambda findings, folder: Presented([], []))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////dev/null/mlflow.db")
    assert publishing.report("planted.yaml", place / "runs").logged.startswith("not logged to MLflow: sqlite:////dev/")
    monkeypatch.setenv("K3ABLATE_TRACKING", "spool")
    assert (
        publishing.report("planted.yaml", place / "runs").logged == "not logged to MLflow: K3ABLATE_TRACKING is spool"
    )


def _logged(store: Store, place: Path) -> dict[str, bytes]:
    run = store.run_of("report", "planted")
    assert run is not None
    return _contents(place / "runs" / "mlartifacts" / run.run_id / "artifacts")


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("unillustrated")
def test_several_components_are_split_and_one_is_not(settle, place: Path) -> None:
    results = place / "runs" / "results" / "planted"
    residual = "  residual: {levels: {k2: {}, k3: {model.residual: {from: kimi-k3}}}}\ndesign: factorial"
    (place / "planted.yaml").write_text(EXPERIMENT.replace("design: one_at_a_time", residual))
    settle()
    answer = publishing.report("planted.yaml", place / "runs")
    found = answer.split
    assert found is not None
    assert (found.split.method, found.split.target) == ("shapley", "full")
    for part in found.split.parts:
        assert part.effect.factor == pytest.approx(MULTIPLIER**0.5, rel=0.02)
    assert {"split.md", "split.csv"} <= {Path(file).name for file in answer.files}
    markdown = (results / "split.md").read_text()
    assert "experiment planted (" in markdown
    assert "Shapley (95 %)" in answer.text()
    read = json.loads(as_json(answer))["split"]["split"]
    assert [part["effect"]["log"] for part in read["parts"]] == [part.effect.log for part in found.split.parts]
    (place / "planted.yaml").write_text(EXPERIMENT)
    alone = publishing.report("planted.yaml", place / "runs")
    assert (alone.split, alone.no_split) == (None, "one component: its multiplier is all there is")
    assert not (results / "split.md").exists()


@pytest.mark.usefixtures("undrawn")
def test_text_and_json_hold_the_same_numbers(settle, place: Path) -> None:
    settle()
    answer = publishing.report("planted.yaml", place / "runs")
    _, arm = json.loads(as_json(answer))["arms"]
    along = json.loads(as_json(answer))["multipliers"]
    assert {point["arm"] for point in along} == {arm["arm"]}
    assert along[-1]["multiplier_low"] <= along[-1]["multiplier"] <= along[-1]["multiplier_high"]
    assert arm["p_value"] == arm["holm_p_value"] < 0.05
    for number in (arm["multiplier"], arm["multiplier_low"], arm["multiplier_high"], arm["paired"]):
        assert f"{number:.2f}" in answer.text()
    assert f"{arm['loss']:.4f}" in answer.text()


def test_the_table_of_runs_has_a_row_per_record(settle, place: Path) -> None:
    settle()
    collected = publishing.collect("planted.yaml", place / "runs")
    assert (collected.num_rows, collected.num_planned, collected.counts) == (16, 16, {"finished": 16})
    csv, parquet = (Path(file) for file in collected.files)
    assert list(pandas.read_csv(csv)["loss"]) == list(pandas.read_parquet(parquet)["loss"])


@pytest.mark.usefixtures("unillustrated")
def test_what_diverged_or_is_missing_stands_under_the_table(settle, place: Path) -> None:
    def partly(row: PlanRow) -> RunRecord | None:
        if (row.label.size, row.label.seed) == ("xs", 0):
            changes = {"status": "diverged", "reason": "loss above 20", "evaluations": {}}
            return RunRecord.model_validate(planted(row).tree() | changes)
        return None if (row.label.arm, row.label.size, row.label.seed) == ("k2", "s", 1) else planted(row)

    settle(partly)
    answer = publishing.report("planted.yaml", place / "runs")
    assert {(run.name, run.status, run.reason) for run in answer.excluded} == {
        ("k2 xs seed 0", "diverged", "loss above 20"),
        ("+attention xs seed 0", "diverged", "loss above 20"),
    }
    assert "1 of 16 planned runs have no record yet: k2 s seed 1" in answer.notes
    markdown = (place / "runs" / "results" / "planted" / "table.md").read_text()
    assert "loss above 20" in markdown
    assert "no record yet: k2 s seed 1" in markdown


@pytest.mark.parametrize("status", ["diverged", "out_of_time", "failed"])
def test_where_no_run_finished_the_report_lists_every_run(
    settle, place: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if status != "diverged":  # the pictures do not tell why
        monkeypatch.setattr(presenting, "_pages", lambda found: {})

    def unfinished(row: PlanRow) -> RunRecord:
        changes = {"status": status, "reason": f"{status} at step 7", "evaluations": {}}
        return RunRecord.model_validate(planted(row).tree() | changes)

    settle(unfinished)
    answer = publishing.report("planted.yaml", place / "runs")
    assert {(arm.num_runs, arm.loss, arm.multiplier, arm.no_multiplier) for arm in answer.arms} == {
        (0, None, None, "no run of this arm finished")
    }
    assert len(answer.excluded) == 16
    assert {(run.status, run.reason) for run in answer.excluded} == {(status, f"{status} at step 7")}
    assert all(Path(file).stat().st_size for file in answer.files)
    markdown = (place / "runs" / "results" / "planted" / "table.md").read_text()
    assert markdown.count(f"{status} at step 7".replace("_", r"\_")) == 16
    assert "no run finished" in answer.text()
    assert len(json.loads(as_json(answer))["arms"]) == 2


def test_nothing_to_collect_says_what_to_run(place: Path, settle) -> None:
    with pytest.raises(InputError, match=r"planted\.yaml: no run has ended yet; `k3ablate run planted\.yaml`"):
        publishing.collect("planted.yaml", place / "runs")


@pytest.mark.usefixtures("undrawn")
def test_provenance_names_what_the_numbers_rest_on(settle, place: Path) -> None:
    settle()
    line = publishing.report("planted.yaml", place / "runs").provenance
    for piece in ("corpus c0ffee", "code abc", load(Path("planted.yaml")).digest(), "k3ablate report planted.yaml"):
        assert piece in line

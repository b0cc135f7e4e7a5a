"""What a grid left in its folders arrives in a store once, and the same table comes out of it on another machine."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from k3ablate import publishing, syncing, verbs
from k3ablate.config import InputError
from k3ablate.experiment import load
from k3ablate.jobs.folders import RunFolder, prepare
from k3ablate.labels import Labels
from k3ablate.mlflow_store import Store
from k3ablate.plan import PlanRow
from k3ablate.records import Evaluation, RunRecord, Status
from k3ablate.training.corpus import Corpus

# MLflow 3.17 asks SQLAlchemy 2.1 for something by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

EXPERIMENT = """
name: spooled
question: Does everything arrive?
expected: yes
stopping: none
exclusion: none
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 64}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
design: one_at_a_time
names: {baseline: k2}
match: flops_per_token
sizes: [{name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}]
budgets: [{kind: tokens, tokens: 1280}]
seeds: [0, 1]
"""
NAME = "spooled.yaml"


class FakeCorpus(Corpus):
    """A corpus that is only asked for its name."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), None)  # type: ignore[arg-type]

    @property
    def digest(self) -> str:
        return "c0ffee"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store; making one takes seconds, copying it does not."""
    folder = tmp_path_factory.mktemp("store")
    Store(f"sqlite:///{folder / 'mlflow.db'}").keep_plan(folder, "other", b"{}")
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Path) -> Path:
    """The runs of an experiment of four, in a working folder whose corpus is known without being built."""
    monkeypatch.chdir(tmp_path)
    for variable in ("MLFLOW_TRACKING_URI", "K3ABLATE_TRACKING"):
        monkeypatch.delenv(variable, raising=False)
    Path(NAME).write_text(EXPERIMENT)
    monkeypatch.setattr(verbs, "known", lambda recipe, folder: FakeCorpus())
    monkeypatch.setattr(verbs, "check_budget", lambda *arguments: None)
    shutil.copytree(prepared, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def rows(root: Path) -> list[PlanRow]:
    return [*verbs.plan_from_known_corpora(load(Path(NAME)), root).rows]


def train(root: Path, row: PlanRow, num_steps: int = 20) -> RunFolder:
    """Leave what a run leaves that was killed after `num_steps` steps and a checkpoint."""
    assert row.spec is not None
    folder = prepare(root, row.spec)
    (folder.path / "checkpoints").mkdir(exist_ok=True)
    (folder.path / "checkpoints" / f"step-{num_steps:09d}.ckpt").touch()
    lines = [json.dumps({"step": step, "seconds": step / 3, "loss": 5 - step / 7}) + "\n" for step in range(num_steps)]
    (folder.path / "metrics.jsonl").write_text("".join(lines))
    return folder


def settle(root: Path, row: PlanRow, reason: str = "") -> None:
    status = Status.DIVERGED if reason else Status.FINISHED
    loss = 2 + row.flops / 1e9 + row.label.seed / 7
    evaluations = {"validation": Evaluation(loss=loss, bits_per_byte=loss / 3, num_tokens=64)}
    record = RunRecord(
        digest=row.label.digest, status=status, reason=reason, evaluations={} if reason else evaluations, num_steps=20,
        tokens=row.tokens, flops=row.flops, flops_6nd=row.flops / 3, active_params=row.counts.active_params,
        total_params=row.counts.total_params, wall_seconds=1 / 3, tokens_per_second=1.0, corpus="c0ffee",
    )  # fmt: skip
    train(root, row).write_record(record)


def sync(root: Path, uri: str | None = None) -> dict[str, int]:
    answer = syncing.sync(NAME, root, uri, lambda line: None)
    assert answer.is_complete, answer.text()
    return dict(answer.counts)


def num_steps(root: Path) -> list[int]:
    query = "SELECT COUNT(*) FROM metrics WHERE key = 'loss' GROUP BY run_uuid"
    with sqlite3.connect(root / "mlflow.db") as database:
        return sorted(count for (count,) in database.execute(query))


def test_what_was_left_without_a_store_arrives_once(root: Path, rows: list[PlanRow]) -> None:
    assert sync(root) == {"not_begun": 4}
    settle(root, rows[0])
    train(root, rows[1], 7)
    prepare(root, rows[2].spec)
    assert sync(root) == {"sent": 2, "not_begun": 2}
    assert num_steps(root) == [7, 20]
    assert sync(root) == {"nothing_new": 2, "not_begun": 2}
    settle(root, rows[1])
    assert sync(root) == {"nothing_new": 1, "sent": 1, "not_begun": 2}
    assert num_steps(root) == [20, 20]


def test_the_same_table_comes_from_the_store_alone(
    root: Path, rows: list[PlanRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in rows[:2]:
        settle(root, row)
    settle(root, rows[2], reason='loss above 20, "=1+1"\n<b>[red]')
    sync(root)
    here = publishing.collect(NAME, root)
    table, parquet = (Path(file).read_bytes() for file in here.files)
    # Another machine: only the store, moved, and neither the experiment nor its runs.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with closing(sqlite3.connect(root / "mlflow.db")) as store, closing(sqlite3.connect("moved.db")) as moved:
        store.backup(moved)
    shutil.move(root / "mlartifacts", "mlartifacts")
    shutil.rmtree(root)
    (tmp_path / NAME).unlink()
    there = publishing.collect_from_store("spooled", elsewhere / "runs", "sqlite:///moved.db")
    assert [Path(file).read_bytes() for file in there.files] == [table, parquet]
    assert (there.num_rows, there.num_planned, there.counts) == (here.num_rows, here.num_planned, here.counts) == (
        3, 4, {"finished": 2, "diverged": 1},
    )  # fmt: skip


def test_one_damaged_run_does_not_keep_back_the_others(root: Path, rows: list[PlanRow]) -> None:
    for row in rows:
        settle(root, row)
    (root / rows[0].label.digest / "record.json").write_text('{"digest"')
    (root / rows[1].label.digest / "spec.json").write_text("{}")
    elsewhere = root.parent / "elsewhere"
    (root / rows[2].label.digest).rename(elsewhere)
    (root / rows[2].label.digest).symlink_to(elsewhere)
    answer = syncing.sync(NAME, root, None, lambda line: None)
    assert not answer.is_complete
    assert answer.counts == {"sent": 1}, answer.text()
    assert [problem.name for problem in answer.problems] == ["k2 xs seed 0", "k2 xs seed 1", "+attention xs seed 0"]
    for problem, said in zip(answer.problems, ("record.json", "spec.json", "symbolic link"), strict=True):
        assert said in problem.reason
        assert problem.reason in answer.text()


@pytest.mark.parametrize("uri", ["nonsense", "nonsense://user:secret@x", "file:///nonsense"])
def test_an_address_of_no_kind_of_store_is_refused_with_what_to_write(
    root: Path, rows: list[PlanRow], uri: str
) -> None:
    settle(root, rows[0])
    for ask in (
        lambda: syncing.sync(NAME, root, uri, lambda line: None),
        lambda: publishing.collect_from_store(NAME, root, uri),
    ):
        with pytest.raises(InputError, match=r"MLflow has no store .*; write an address such as sqlite:///") as refused:
            ask()
        assert "secret" not in str(refused.value)


def test_a_store_that_does_not_answer_ends_it(root: Path, rows: list[PlanRow]) -> None:
    settle(root, rows[0])
    uri = "http://user:secret@127.0.0.1:9"
    answer = syncing.sync(NAME, root, uri, lambda line: None)
    assert not answer.is_complete
    assert "the same command sends what is left" in answer.text()
    with pytest.raises(InputError, match="cannot be used") as error:
        publishing.collect_from_store(NAME, root, uri)
    assert "secret" not in answer.text() + str(error.value)


def test_a_store_without_the_experiment_says_what_to_do(root: Path, rows: list[PlanRow]) -> None:
    with pytest.raises(InputError, match=r"has no run of spooled that has ended; `k3ablate sync spooled\.yaml`"):
        publishing.collect_from_store(NAME, root, None)
    settle(root, rows[0])
    sync(root)
    Path(NAME).write_text(EXPERIMENT.replace("seeds: [0, 1]", "seeds: [0]"))
    with pytest.raises(InputError, match=r"knows another version of spooled; `k3ablate sync"):
        publishing.collect_from_store(NAME, root, None)
    with pytest.raises(InputError, match="no such store"):
        publishing.collect_from_store(NAME, root, "sqlite:///absent.db")
    assert not Path("absent.db").exists()
    with pytest.raises(InputError, match="no such experiment"):
        publishing.collect_from_store("it's", root, None)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("arm", "=cmd|' /C calc'!A0", "arm"),
        ("size", "xs\nnew line", "size"),
        ("digest", "../../../etc/passwd", "digest"),
        ("levels", {"loss": "0.1"}, "loss, like a column of results"),
        ("levels", {"<script>": "k3"}, "levels"),
        ("seed", -1, "seed"),
    ],
)
def test_labels_from_a_store_are_checked(rows: list[PlanRow], path: str, value: object, said: str) -> None:
    tree = json.loads(Labels.of((row.label for row in rows), "beef").written())
    assert Labels.read(json.dumps(tree).encode(), "store").labels() == [row.label for row in rows]
    tree["lines"][1][path] = value
    with pytest.raises(InputError, match=f"store: not the labels of an experiment .*{said}"):
        Labels.read(json.dumps(tree).encode(), "store")


@pytest.mark.parametrize("name", ["metrics.jsonl", "spec.json", "record.json", "routing.json"])
def test_what_a_link_leads_to_is_not_sent(root: Path, rows: list[PlanRow], tmp_path: Path, name: str) -> None:
    for row in rows[:2]:
        settle(root, row)
    path = root / rows[0].label.digest / name
    (tmp_path / "outside").write_bytes(b"secret\n")
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "outside")
    answer = syncing.sync(NAME, root, None, lambda line: None)
    assert answer.counts == {"sent": 1, "not_begun": 2}
    (problem,) = answer.problems
    assert problem.reason.startswith(f"{path}: is a symbolic link to {tmp_path / 'outside'}; put ")
    assert Store(f"sqlite:///{root / 'mlflow.db'}").runs().keys() == {rows[1].label.digest}


def test_what_belongs_to_another_run_is_not_sent(root: Path, rows: list[PlanRow]) -> None:
    for row in rows:
        settle(root, row)
    first, second, third, fourth = (root / row.label.digest for row in rows)
    shutil.copy(fourth / "spec.json", first / "spec.json")
    routing = {"digest": fourth.name, "validation": "validation", "num_tokens": 4, "pairs": [[4]]}
    (second / "routing.json").write_text(json.dumps(routing))
    for path in (third / "spec.json", third / "routing.json"):
        path.unlink(missing_ok=True)  # as runs of before these files were kept
    answer = syncing.sync(NAME, root, None, lambda line: None)
    assert answer.counts == {"sent": 2}
    found = {problem.name: problem.reason for problem in answer.problems}
    assert found.keys() == {"k2 xs seed 0", "k2 xs seed 1"}
    assert f"spec.json: holds the specification of run {fourth.name}" in found["k2 xs seed 0"]
    assert f"routing.json: holds the routing of run {fourth.name}" in found["k2 xs seed 1"]
    assert Store(f"sqlite:///{root / 'mlflow.db'}").runs().keys() == {third.name, fourth.name}

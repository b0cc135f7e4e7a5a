"""Tokens per parameter and data as a space: planted optima, equal compute, and experiments that take them."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas
import pytest

from k3ablate import optimising, verbs
from k3ablate.cli import main
from k3ablate.config import Tree, read_yaml, write_yaml
from k3ablate.experiment import load
from k3ablate.jobs.folders import prepare
from k3ablate.plan import PlanRow
from k3ablate.records import Evaluation, RunRecord, Status
from k3ablate.search import RATIO
from k3ablate.training.corpus import Corpus
from k3ablate.training.spec import DataRecipe
from k3ablate.tuning.study import EXTENSIONS

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
BEST = {"k2": 0.5, "k3": 1.0}  # tokens per parameter at 2e10 FLOPs
EXPONENT = 0.1
BYTES = "data.source.max_bytes"


class FakeCorpus(Corpus):
    """A corpus that is only asked for its name and for what it is measured on."""

    def __init__(self, recipe: DataRecipe, content: str) -> None:
        super().__init__(Path("nowhere"), None)  # type: ignore[arg-type]
        object.__setattr__(self, "recipe", recipe)
        object.__setattr__(self, "measured_on", content)

    @property
    def digest(self) -> str:
        return str(self.recipe.digest())  # type: ignore[attr-defined]

    def content(self, set_name: str) -> str:
        return str(self.measured_on)  # type: ignore[attr-defined]


def planted(row: PlanRow) -> RunRecord:
    """A parabola about the best tokens per parameter of the budget, and less for more text."""
    assert row.spec is not None
    arm = "k3" if row.label.arm.startswith("k3") else "k2"
    ratio = row.tokens / row.counts.active_params
    loss = 3 + 0.05 * math.log(ratio / BEST[arm] / (row.flops / 2e10) ** EXPONENT) ** 2 + 1e-4 * math.sin(1e3 * ratio)
    loss += 0.1 if row.spec.data.tree()["source"]["max_bytes"] == 1_000_000 else 0
    return RunRecord(
        digest=row.label.digest, status=Status.FINISHED, reason="", num_steps=10, tokens=row.tokens, flops=row.flops,
        evaluations={"validation": Evaluation(loss=loss, bits_per_byte=loss, num_tokens=64)}, flops_6nd=row.flops,
        active_params=row.counts.active_params, total_params=row.counts.total_params, wall_seconds=1.0,
        tokens_per_second=1.0, corpus=row.spec.corpus,
    )  # fmt: skip


@pytest.fixture
def k3ablate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in a folder whose runs have the planted losses as soon as they are asked for."""

    def run_grid(rows: Sequence[PlanRow], root: Path, *arguments: object) -> dict[str, RunRecord]:
        for row in rows:
            assert row.spec is not None
            folder = prepare(root, row.spec)
            if folder.record() is None:
                folder.write_record(planted(row))
        return {row.label.digest: planted(row) for row in rows}

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3ABLATE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("K3ABLATE_TRACKING", "spool")
    build_as(monkeypatch, lambda recipe: "the same")
    monkeypatch.setattr(optimising.local, "run_grid", run_grid)
    monkeypatch.setattr(optimising, "warm_up", lambda: None)
    return run


def build_as(monkeypatch: pytest.MonkeyPatch, content: Callable[[DataRecipe], str]) -> None:
    for module in (verbs, optimising):
        monkeypatch.setattr(module, "build", lambda recipe, folder, say: FakeCorpus(recipe, content(recipe)))
        monkeypatch.setattr(module, "check_budget", lambda *arguments: None)
    monkeypatch.setattr(verbs, "known", lambda recipe, folder: FakeCorpus(recipe, content(recipe)))


def write(name: str, space: Tree, budgets: Sequence[float] = (2e10, 4e10), **changes: Tree) -> None:
    """Two arms of the demo at one size and these FLOPs."""
    demo = read_yaml(DEMO)
    size = {"name": "s", "width": 40, "num_layers": 4, "head_width": 8, "num_active": 2}
    flops = [{"kind": "flops", "flops": one} for one in budgets]
    names = [f"s@{one!r}flops".replace(".0flops", "flops") for one in budgets] if len(budgets) > 1 else ["s"]
    attention = {"attention": demo["components"]["attention"]}
    tree = demo | {"name": name, "sizes": [size], "budgets": flops, "components": attention, "replicate_seeds": [],
                   "design": "list", "arms": [{"name": "k3", "levels": {"attention": "k3"}}],
                   "names": {"baseline": "k2"}, "tuning": {"sizes": names, "trials": 9, "space": space,
                   "sampler": {"kind": "quasi_random"}}}  # fmt: skip
    write_yaml(tree | changes, Path(f"{name}.yaml"))


RATIOS = {RATIO: {"low": 0.15, "high": 2.5}}


def test_tokens_per_parameter_are_found_at_equal_compute_and_taken_by_an_experiment(k3ablate) -> None:
    write("ratios", RATIOS)
    code, out, err = k3ablate("tune", "ratios.yaml")
    assert code == 0, err
    assert f"k2: {RATIO} goes as FLOPs^" in out
    for arm in BEST:
        recipe = read_yaml(Path(f"recipes/tuned/ratios/{arm}.yaml"))
        table = pandas.read_csv(f"recipes/tuned/ratios/{arm}.csv")
        for number, (name, size) in enumerate(recipe["sizes"].items()):
            found, best = size["paths"][RATIO], BEST[arm] * 2 ** (EXPONENT * number)
            assert found["is_from_curve"]
            assert found["value"] == pytest.approx(best, rel=0.12)
            trials = table[table["size"] == name]
            assert trials["flops"].max() / trials["flops"].min() < 1.05
            assert trials["active_params"].nunique() > 5
            assert (trials["tokens_per_parameter"] / trials[RATIO]).between(0.85, 1.15).all()
    write("taking", RATIOS, tuned="ratios", tuning=None)
    rows = verbs.plan_from_known_corpora(load(Path("taking.yaml")), Path("runs")).rows
    for row in rows:
        best = BEST[row.label.arm] * (row.flops / 2e10) ** EXPONENT
        assert row.tokens / row.counts.active_params == pytest.approx(best, rel=0.25)
        assert abs(row.label.mismatch) < 0.05
    assert {row.flops / 2e10 > 1.5 for row in rows} == {True, False}
    assert f"{RATIO} " in k3ablate("plan", "taking.yaml")[1]


def test_an_experiment_without_a_number_of_flops_cannot_take_tokens_per_parameter(k3ablate) -> None:
    write("ratios", RATIOS)
    assert k3ablate("tune", "ratios.yaml")[0] == 0
    write("taking", RATIOS, tuned="ratios", tuning=None)
    taking = Path("taking.yaml")
    write_yaml({**read_yaml(taking), "budgets": [{"kind": "tokens", "tokens": 100_000}]}, taking)
    code, _, err = k3ablate("plan", "taking.yaml")
    assert code == 2
    assert "this budget is of kind tokens; write budgets of kind flops" in err


def test_data_are_varied_as_corpora_and_an_experiment_trains_on_the_one_it_takes(k3ablate) -> None:
    write("texts", {BYTES: {"choices": [1_000_000, 2_000_000]}}, [2e10])
    code, _, err = k3ablate("tune", "texts.yaml")
    assert code == 0, err
    assert read_yaml(Path("recipes/tuned/texts/k3.yaml"))["sizes"]["s"]["paths"][BYTES]["value"] == 2_000_000
    write("taking", {}, [2e10], tuned="texts", tuning=None)
    for row in verbs.plan_from_known_corpora(load(Path("taking.yaml")), Path("runs")).rows:
        assert row.spec is not None
        assert row.spec.data.tree()["source"]["max_bytes"] == 2_000_000
        assert row.spec.corpus == row.spec.data.digest()


@pytest.mark.parametrize("command", ["tune", "check"])
def test_data_that_are_measured_on_other_text_are_refused_before_a_trial(
    k3ablate, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    write("texts", {BYTES: {"choices": [1_000_000, 2_000_000]}}, [2e10])
    build_as(monkeypatch, lambda recipe: str(recipe.tree()["source"]["max_bytes"]))
    code, _, err = k3ablate(command, "texts.yaml")
    assert code == 2
    assert "different validation sets" in err
    assert not list(Path("runs").glob("*/record.json"))


def with_slopes(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Losses that fall with the values at `path`, so that the optimum lies above everything."""
    whole = optimising.local.run_grid

    def slopes(rows: Sequence[PlanRow], *arguments: object) -> dict[str, RunRecord]:
        values = {row.label.digest: float(row.tuned.values[path]) for row in rows}
        evaluations = {
            name: {"validation": Evaluation(loss=5 - value, bits_per_byte=5 - value, num_tokens=64)}
            for name, value in values.items()
        }
        return {
            name: record.model_copy(update={"evaluations": evaluations[name]})
            for name, record in whole(rows, *arguments).items()
        }

    monkeypatch.setattr(optimising.local, "run_grid", slopes)


@pytest.mark.parametrize(
    ("path", "one", "largest", "told"),
    [
        (RATIO, {"low": 0.5, "high": 2.0}, 4.0, "where the nearest width may miss them"),
        ("training.schedule.warmup_fraction", {"low": 0.2, "high": 0.9, "scale": "linear"}, 1.0, "less than 1"),
        ("training.optimizer.beta1", {"low": 0.5, "high": 0.8, "scale": "linear"}, 0.95, ""),
    ],
)
def test_a_range_is_widened_as_far_as_arms_take_it_and_a_size_affords(
    k3ablate, monkeypatch: pytest.MonkeyPatch, path: str, one: Tree, largest: float, told: str
) -> None:
    with_slopes(monkeypatch, path)
    write("edges", {path: one}, [2e10])
    assert "AT THE EDGE" in k3ablate("tune", "edges.yaml")[1]
    code, out, err = k3ablate("tune", "edges.yaml", "--extend")
    assert code == 0, err
    high = read_yaml(Path("recipes/tuned/edges/k3.yaml"))["sizes"]["s"]["space"][path]["high"]
    assert one["high"] < high < largest if told else high == largest
    assert (f"{path} widened upwards to {high:g} only, what lies further is refused" in out) == bool(told)
    assert told in out
    assert k3ablate("tune", "edges.yaml")[0] == 0


def test_a_range_of_which_nothing_more_is_taken_stays_as_it_was(k3ablate, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "training.optimizer.beta1"
    with_slopes(monkeypatch, path)
    write("edges", {path: {"low": 0.1, "high": 0.999, "scale": "linear"}}, [2e10])
    assert "AT THE EDGE" in k3ablate("tune", "edges.yaml")[1]
    written = {file: file.read_bytes() for file in Path("recipes/tuned/edges").iterdir()}
    code, _, err = k3ablate("tune", "edges.yaml", "--extend")
    assert code == 2
    assert f"--extend: size s: {path} is not widened upwards: tuning.space (arm k2): {path} = 1.45" in err
    assert "less than 1; the study stays as it was" in err
    assert EXTENSIONS not in Path("runs/tuning/edges/journal.log").read_text()
    assert k3ablate("tune", "edges.yaml")[0] == 0
    assert {file: file.read_bytes() for file in written} == written


def test_a_range_that_cannot_be_widened_keeps_no_other_from_it(k3ablate, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, free = "training.optimizer.beta1", "training.optimizer.beta2"
    with_slopes(monkeypatch, free)
    space = {path: {"low": 0.1, "high": high, "scale": "linear"} for path, high in ((stuck, 0.999), (free, 0.6))}
    write("edges", space, [2e10])
    k3ablate("tune", "edges.yaml")
    every_edge = {stuck: True, free: True}
    monkeypatch.setattr("k3ablate.tuning.extension.findings.edges", lambda size: every_edge)
    code, out, err = k3ablate("tune", "edges.yaml", "--extend")
    assert code == 0, err
    assert f"--extend: size s: {stuck} is not widened upwards: " in out
    assert f"s: {free} widened upwards, for every arm" in out
    space = read_yaml(Path("recipes/tuned/edges/k2.yaml"))["sizes"]["s"]["space"]
    assert (space[stuck]["high"], space[free]["high"]) == (0.999, 0.85)

"""One trunk, many points: a run that starts from another's trunk ends with the bits of one that trained it all."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.config import InputError
from k3ablate.records import RunRecord, Status
from k3ablate.tracking import NoTracking
from k3ablate.training import trunks
from k3ablate.training.corpus import Corpus
from k3ablate.training.module import LanguageModule
from k3ablate.training.run import train
from k3ablate.training.schedules import WarmupStableDecay, factor
from k3ablate.training.spec import Execution, RunSpec

Spec = Callable[..., RunSpec]
WSD = {"kind": "wsd", "warmup_steps": 3, "decay_fraction": 0.4}
OFTEN = Execution(log_every_steps=1, inspect_every_lines=2, checkpoint_seconds=1e-9, keep_trunks=True)
TOKENS_PER_STEP = 64
MUON = {"kind": "muon", "learning_rate": 0.01, "cut": "per_head", "rest": {"learning_rate": 0.01}}


@pytest.fixture
def of_steps(tiny_spec: Spec) -> Spec:
    """A run of so many steps on the schedule WSD, with an optimizer and balancing that have states."""

    def make(num_steps: int, **overrides: object) -> RunSpec:
        changes = {"training__schedule": WSD, "training__optimizer": MUON} | overrides
        return tiny_spec(tokens=num_steps * TOKENS_PER_STEP, **changes)

    return make


def trained(spec: RunSpec, root: Path, corpus: Corpus, execution: Execution = OFTEN) -> RunRecord:
    return train(spec, root / spec.digest(), corpus, execution, NoTracking())


def lines(root: Path, spec: RunSpec) -> list[dict[str, object]]:
    found = [json.loads(line) for line in (root / spec.digest() / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "tokens_per_second")} for line in found
    ]


def saved(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "trunks").glob("*/*.ckpt"))


@given(st.floats(0, 1), st.floats(1e-3, 1), st.integers(1, 20), st.integers(20, 10_000))
def test_before_its_decay_a_run_does_not_know_its_budget(
    final: float, decay: float, warmup: int, num_steps: int
) -> None:
    schedule = WarmupStableDecay(warmup_steps=warmup, decay_fraction=decay, final_fraction=final)
    start = schedule.decay_start(num_steps)
    for step in {0, warmup - 1, min(warmup, start - 1), start - 1}:
        assert factor(schedule, step, num_steps) == min(1.0, (step + 1) / warmup)  # to the last bit


def test_runs_that_differ_in_budget_and_decay_alone_have_one_trunk(of_steps: Spec) -> None:
    found = trunks.trunk(of_steps(20))
    assert found is not None
    assert found.num_steps == 12
    longer = trunks.trunk(of_steps(30, training__schedule=WSD | {"decay_fraction": 0.5, "final_fraction": 0.0}))
    assert longer == trunks.Trunk(found.digest, 15)
    for other in ({"seed": 1}, {"data_seed": 1}, {"training__schedule": WSD | {"warmup_steps": 4}},
                  {"training__batch_size": 8}, {"corpus": "other"}, {"model__width": 32}):  # fmt: skip
        different = trunks.trunk(of_steps(20, **other))
        assert different is not None
        assert different.digest != found.digest, other


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "cosine", "warmup_steps": 3},
        {"kind": "wsd", "warmup_fraction": 0.1},  # its first steps depend on the budget
        {"kind": "wsd", "warmup_steps": 20},  # all of it is warm-up
    ],
)
def test_other_schedules_have_none(of_steps: Spec, schedule: dict[str, object]) -> None:
    assert trunks.trunk(of_steps(20, training__schedule=schedule)) is None


def test_what_branching_saves_is_counted(of_steps: Spec) -> None:
    runs = [of_steps(num_steps) for num_steps in (10, 20, 30)]  # trunks of 6, 12 and 18 steps
    alone = of_steps(20, seed=1)
    found = trunks.shared((spec, 5.0 * spec.num_steps) for spec in (*runs, runs[0], alone))
    assert found == trunks.Shared(num_trunks=1, num_runs=3, flops=300.0, flops_saved=pytest.approx(5.0 * (6 + 12)))
    assert trunks.shared([(runs[0], 1.0), (alone, 1.0)]) is None


@pytest.mark.slow
@pytest.mark.parametrize("first", [14, 30])
def test_a_branch_is_bit_for_bit_the_run_it_would_be_alone(
    first: int, of_steps: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    """Whichever run comes first, the others start from what it left, and nobody can tell."""
    specs = {num_steps: of_steps(num_steps) for num_steps in (14, 20, 30)}
    alone = {
        num_steps: trained(spec, tmp_path / f"alone-{num_steps}", tiny_corpus) for num_steps, spec in specs.items()
    }
    root = tmp_path / "together"
    trunks.announce(root, specs.values())
    order = sorted(specs, reverse=first == 30)
    together = {num_steps: trained(specs[num_steps], root, tiny_corpus) for num_steps in order}
    for num_steps, record in together.items():
        assert record.evaluations == alone[num_steps].evaluations
        assert record.first_loss == alone[num_steps].first_loss
        assert (record.tokens, record.flops) == (alone[num_steps].tokens, alone[num_steps].flops)
        assert lines(root, specs[num_steps]) == lines(tmp_path / f"alone-{num_steps}", specs[num_steps])
    assert {record.trunk for record in together.values()} == {alone[14].trunk}
    expected = {14: 0, 20: 8, 30: 12} if first == 14 else {30: 0, 20: 12, 14: 8}
    assert {num_steps: record.branched_at for num_steps, record in together.items()} == expected
    assert saved(root) == ["step-000000008.ckpt", "step-000000012.ckpt", "step-000000018.ckpt"]
    assert trunks.stored(root)[0] == 3


@pytest.mark.slow
def test_nothing_is_kept_that_no_plan_needs(of_steps: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    execution = OFTEN.replaced("keep_trunks", False)
    trunks.announce(tmp_path, [of_steps(14), of_steps(14, seed=1)])  # one budget
    trained(of_steps(14), tmp_path, tiny_corpus, execution)
    assert saved(tmp_path) == []
    trunks.announce(tmp_path, [of_steps(20), of_steps(30)])
    trained(of_steps(20), tmp_path, tiny_corpus, execution)
    assert saved(tmp_path) == ["step-000000012.ckpt"]


@pytest.mark.slow
def test_seconds_and_steps_are_those_of_the_run_itself(
    of_steps: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(of_steps(20), tmp_path, tiny_corpus)
    taken: list[int] = []
    step = LanguageModule.training_step

    def counted(module: LanguageModule, tokens_BT: torch.Tensor, batch_idx: int) -> torch.Tensor:
        taken.append(batch_idx)
        return step(module, tokens_BT, batch_idx)

    monkeypatch.setattr(LanguageModule, "training_step", counted)
    branch = trained(of_steps(30), tmp_path, tiny_corpus)
    assert len(taken) == 2 * (30 - 12)  # micro-batches
    assert branch.trained_share == pytest.approx(18 / 30)
    assert branch.num_resumes == 0
    logged = (tmp_path / branch.digest / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(text)["seconds"] for text in logged]
    assert seconds == sorted(seconds)  # a curve by hours counts the trunk, the record does not
    assert branch.wall_seconds == pytest.approx(seconds[-1] - seconds[11], rel=0.5)
    assert branch.tokens_per_second == pytest.approx(18 * TOKENS_PER_STEP / branch.wall_seconds)


@pytest.mark.slow
def test_a_branch_that_is_interrupted_goes_on_as_one(of_steps: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    trained(of_steps(20), tmp_path, tiny_corpus)
    spec = of_steps(30)
    stopped = trained(spec, tmp_path, tiny_corpus, OFTEN.replaced("max_hours", 1e-9))
    assert (stopped.status, stopped.branched_at) == (Status.OUT_OF_TIME, 12)
    assert stopped.num_steps == 13
    whole = trained(spec, tmp_path, tiny_corpus)
    assert (whole.branched_at, whole.num_resumes) == (12, 1)
    assert whole.evaluations == trained(spec, tmp_path / "alone", tiny_corpus).evaluations
    assert math.isfinite(whole.wall_seconds)


@pytest.mark.slow
def test_deleting_trunks_loses_nothing_and_a_damaged_or_foreign_one_is_not_taken(
    of_steps: Spec, tiny_corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(of_steps(20), tmp_path, tiny_corpus)
    (path,) = (tmp_path / "trunks").glob("*/*.ckpt")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    damaged = trained(of_steps(30), tmp_path, tiny_corpus)
    assert damaged.branched_at == 0
    assert "is damaged" in caplog.text
    other = of_steps(30, seed=1)
    found = trunks.trunk(other)
    assert found is not None
    folder = trunks.folder_of(tmp_path, found)
    folder.mkdir()
    (folder / path.name).write_bytes(content)
    with pytest.raises(InputError, match=f"belongs to trunk .*, this is trunk {found.digest}"):
        trained(other, tmp_path, tiny_corpus)
    (folder / path.name).unlink()
    assert trained(other, tmp_path, tiny_corpus).branched_at == 0

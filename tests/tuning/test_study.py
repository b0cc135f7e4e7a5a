"""Studies with trials that cost nothing: every trial once, whoever is killed and however many take part."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from k3ablate.config import InputError
from k3ablate.records import RunRecord, Status
from k3ablate.search import QuasiRandom, Range, Tuning
from k3ablate.tuning.space import widened
from k3ablate.tuning.store import Ended, Journal
from k3ablate.tuning.study import JOURNAL_FILE, Asked, Study, conduct, extend, look

RATE = "training.optimizer.learning_rate"


def allow(study: Study, added: Mapping[str, object]) -> None:
    """Every arm takes everything."""


def values(trials: Sequence[Any]) -> list[dict[str, object]]:
    return [dict(trial.values) for trial in trials]


def test_every_study_gets_its_trials_and_the_first_are_the_same_for_all(
    tmp_path: Path, fake_trials: ModuleType
) -> None:
    found = conduct(tmp_path / "tuning", fake_trials.studies(), fake_trials.runner(tmp_path / "runs"))
    k2, k3 = found.trials["k2/xs"], found.trials["k3/xs"]
    assert [trial.number for trial in k2] == list(range(12))
    assert values(k2)[:8] == values(k3)[:8]
    assert all(trial.ended is not Ended.OPEN for trial in (*k2, *k3))
    assert not found.unfinished
    assert min(abs(float(trial.values[RATE]) - fake_trials.BEST) for trial in k2) < 3e-3


def test_a_diverged_trial_has_no_loss_and_tpe_stays_away(tmp_path: Path, fake_trials: ModuleType) -> None:
    found = conduct(tmp_path / "tuning", fake_trials.studies(), fake_trials.runner(tmp_path / "runs"))
    trials = found.trials["k2/xs"]
    diverged = [trial for trial in trials if float(trial.values[RATE]) > 5e-2]
    assert diverged
    assert all(trial.ended is Ended.DIVERGED and trial.loss is None for trial in diverged)
    assert sum(trial.number >= 8 for trial in diverged) <= 1


def test_a_study_comes_out_the_same_when_it_is_interrupted_after_every_round(
    tmp_path: Path, fake_trials: ModuleType
) -> None:
    whole = conduct(tmp_path / "a", fake_trials.studies(), fake_trials.runner(tmp_path / "runs-a"))
    run, rounds = fake_trials.runner(tmp_path / "runs-b"), 0

    def interrupted(asked: Sequence[Asked]) -> list[RunRecord]:
        nonlocal rounds
        rounds += 1
        run(asked)
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            conduct(tmp_path / "b", fake_trials.studies(), interrupted)
    resumed = conduct(tmp_path / "b", fake_trials.studies(), run)
    assert resumed.trials == whole.trials
    assert set(fake_trials.num_attempts(tmp_path / "runs-b").values()) == {1}


def test_a_failed_run_stops_its_study_alone_and_is_tried_again(tmp_path: Path, fake_trials: ModuleType) -> None:
    run, root = fake_trials.runner(tmp_path / "runs"), tmp_path / "tuning"

    def fails(asked: Sequence[Asked]) -> list[RunRecord]:
        return [
            fake_trials.make_record("0" * 16, Status.FAILED, 0) if one.study.arm == "k2" and one.number == 3 else record
            for one, record in zip(asked, run(asked), strict=True)
        ]

    found = conduct(root, fake_trials.studies(), fails)
    assert [(one.study.arm, one.number, record.status) for one, record in found.unfinished] == [("k2", 3, "failed")]
    assert [trial.number for trial in found.trials["k2/xs"] if trial.ended is Ended.OPEN] == [3]
    assert len(found.trials["k3/xs"]) == 12
    mended = conduct(root, fake_trials.studies(), run)
    assert values(mended.trials["k2/xs"])[:8] == values(found.trials["k2/xs"])
    assert not mended.unfinished


def test_a_journal_that_a_crash_cut_off_goes_on(tmp_path: Path, fake_trials: ModuleType) -> None:
    found = conduct(tmp_path, fake_trials.studies(), fake_trials.runner(tmp_path / "runs"))
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    Journal(tmp_path / JOURNAL_FILE).remember("k2/xs", "note", [1])
    trials, _ = look(tmp_path, fake_trials.studies())
    assert trials == found.trials
    assert Journal(tmp_path / JOURNAL_FILE).remembered("k2/xs", "note") == [1]


def test_extending_widens_for_every_arm_and_adds_trials_in_the_new_band(
    tmp_path: Path, fake_trials: ModuleType
) -> None:
    tuning = Tuning(trials=4, sampler=QuasiRandom(), sizes=("xs",), space={RATE: Range(low=1e-3, high=4e-3)})
    studies, run = fake_trials.studies(tuning), fake_trials.runner(tmp_path / "runs")
    before = conduct(tmp_path, studies, run)
    wider = {RATE: widened(tuning.space[RATE], is_upwards=True)}
    extend(tmp_path, studies, tuning.space, wider, 2, allow)
    extend(tmp_path, studies, tuning.space, wider, 2, allow)  # another process was first: nothing more is added
    after = conduct(tmp_path, studies, run)
    for study in studies:
        added = after.trials[study.name][4:]
        assert values(after.trials[study.name])[:4] == values(before.trials[study.name])
        assert [trial.values[RATE] for trial in added] == pytest.approx([5.66e-3, 8e-3], rel=1e-2)
        assert after.spaces[study.name][RATE].ends == (1e-3, 8e-3)
    assert conduct(tmp_path, studies, run).trials == after.trials


def test_values_that_one_arm_refuses_are_written_for_none(tmp_path: Path, fake_trials: ModuleType) -> None:
    tuning = Tuning(trials=4, sampler=QuasiRandom(), sizes=("xs",), space={RATE: Range(low=1e-3, high=4e-3)})
    studies, run = fake_trials.studies(tuning), fake_trials.runner(tmp_path / "runs")
    before = conduct(tmp_path, studies, run)

    def refuse(study: Study, added: Mapping[str, object]) -> None:
        if study.arm == "k3" and added[RATE] == 8e-3:
            raise InputError("too fast")

    with pytest.raises(InputError, match="too fast"):
        extend(tmp_path, studies, tuning.space, {RATE: widened(tuning.space[RATE], is_upwards=True)}, 2, refuse)
    assert conduct(tmp_path, studies, run) == before


@pytest.mark.parametrize("numbers", [(4, 4, 7), (6, 4, 4), (4, 4, 5, 7)])
def test_trials_and_extensions_in_any_order_repeat_none_and_reach_their_number(
    tmp_path: Path, fake_trials: ModuleType, numbers: tuple[int, ...]
) -> None:
    first, *later = (
        Tuning(trials=trials, sampler=QuasiRandom(), sizes=("xs",), space={RATE: Range(low=1e-3, high=4e-3)})
        for trials in numbers
    )
    run = fake_trials.runner(tmp_path / "runs")
    conduct(tmp_path, fake_trials.studies(first), run)
    wider = {RATE: widened(first.space[RATE], is_upwards=True)}
    extend(tmp_path, fake_trials.studies(later[0]), first.space, wider, 2, allow)
    for tuning in later:
        found = conduct(tmp_path, fake_trials.studies(tuning), run).trials["k2/xs"]
    rates = [trial.values[RATE] for trial in found]
    assert len(rates) == len(set(rates)) == max(numbers) + 2
    assert sum(float(rate) > 4e-3 for rate in rates) == 2


@pytest.mark.slow
def test_eight_processes_neither_lose_nor_repeat_a_trial_and_a_killed_ones_is_run_again(
    tmp_path: Path, fake_trials: ModuleType
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("fake_trials.py")), str(tmp_path)]
    assert subprocess.run([*command, "dies"], check=False, timeout=120).returncode == -signal.SIGKILL
    processes = [subprocess.Popen(command) for _ in range(8)]
    assert [process.wait(timeout=300) for process in processes] == [0] * 8
    trials, _ = look(tmp_path / "tuning", fake_trials.studies())
    for study in fake_trials.studies():
        assert [trial.number for trial in trials[study.name]] == list(range(12))
        assert all(trial.ended is not Ended.OPEN for trial in trials[study.name])
    attempts = fake_trials.num_attempts(tmp_path / "runs")
    assert len(attempts) == 24
    assert sorted(attempts.values())[:-1] == [1] * 23
    assert max(attempts.values()) == 2
    alone = conduct(tmp_path / "alone", fake_trials.studies(), fake_trials.runner(tmp_path / "runs-alone"))
    assert alone.trials == trials

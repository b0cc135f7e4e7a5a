"""`status --tuning` and `cancel --tuning`: the trials that `tune --cluster` has submitted, by the arm that is tuned."""

from collections.abc import Callable
from typing import Any

import pytest

from k3ablate import cli, interventions, standings
from k3ablate.config import InputError
from k3ablate.jobs.packs import PackedRun, PackFile
from k3ablate.jobs.submissions import Submission


def submit_trials(grid: Any, job: str, *trials: tuple[int, str, int]) -> None:
    """The array `job`: run of the grid by its number, tuned arm, number of the trial; a task each."""
    packed = []
    for index, arm, number in trials:
        row = grid.rows[index]
        tags = {"experiment": "seen-tuning", "arm": f"{arm}/trial-{number}", "size": "xs", "seed": "0"}
        name = f"{arm}/trial-{number} xs seed 0"
        packed.append(PackedRun(digest=row.label.digest, name=name, tags=tags, tokens=row.tokens, flops=row.flops))
    submission = Submission(grid.root / "jobs" / "seen-tuning" / f"{int(job):04d}")
    packs = tuple((run,) for run in packed)
    submission.write(
        PackFile(experiment="seen-tuning", execution={}, num_threads=1, stop_seconds=1, packs=packs), "#!/bin/sh\n"
    )
    submission.note_job(job, f"0-{len(packs) - 1}")


@pytest.fixture
def trials(grid: Any, slurm: Any) -> Any:
    """Of four, one waits, one runs, one has ended and one was lost; the experiment's own array has another run."""
    submit_trials(grid, "7", (0, "k2", 0), (1, "k2", 1), (2, "+attention", 0))
    submit_trials(grid, "8", (3, "k2", 2))
    grid.submitted("9", [4])
    grid.settle(2)
    slurm.answer("squeue", "7_0|PENDING|", "7_1|RUNNING|", "7_2|COMPLETED|", "8_0|FAILED|", "9_0|PENDING|")
    return grid


def test_trials_stand_under_the_arm_that_is_tuned(trials: Any) -> None:
    with trials.folders[1].claimed():
        found = standings.status_of_trials(trials.name, trials.root)
    assert found.counts == {"k2": {"xs": {"queued": 1, "running": 1, "lost": 1}}, "+attention": {"xs": {"finished": 1}}}
    assert found.summary().startswith("seen-tuning: 1 queued, 1 running, 1 lost, 1 finished")
    assert [problem.name for problem in found.problems] == ["k2/trial-2 xs seed 0"]


def test_trials_alone_are_cancelled(trials: Any, slurm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["cancel", trials.name, "--tuning"])
    assert ended.value.code == cli.DONE
    assert slurm.calls("scancel") == ["--quiet 7_[0-1]"]
    said = capsys.readouterr().out
    assert "seen-tuning: cancelled 2 tasks: 2 runs were waiting" in said
    assert f"`k3ablate tune {trials.name} --cluster RECIPE` goes on with them" in said


def test_trials_of_one_arm_are_cancelled(trials: Any, slurm: Any) -> None:
    answer = interventions.cancel_trials(trials.name, trials.root, "+attention", None, lambda line: None)
    assert (answer.tasks, slurm.calls("scancel")) == ([], [])


@pytest.mark.parametrize(
    "ask",
    [
        lambda grid: standings.status_of_trials(grid.name, grid.root),
        lambda grid: interventions.cancel_trials(grid.name, grid.root, None, None, lambda line: None),
    ],
)
def test_where_no_trial_was_submitted_it_says_what_does(grid: Any, ask: Callable[[Any], object]) -> None:
    grid.submitted("7", [0])
    with pytest.raises(InputError, match=r"none of its trials was submitted .*`k3ablate tune seen\.yaml --cluster"):
        ask(grid)


def test_watching_trials_is_refused(grid: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["status", grid.name, "--tuning", "--watch"])
    assert ended.value.code == cli.WRONG_INPUT
    assert "`tune` itself shows its trials" in capsys.readouterr().err

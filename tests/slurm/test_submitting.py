"""What `submit` hands to a real Slurm, once and never twice. Tasks in partition `closed` wait for ever."""

import importlib
import itertools
import re
import shlex
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3ablate.config import InputError
from k3ablate.jobs import controller
from k3ablate.jobs.dispatch import Outcome
from k3ablate.jobs.folders import State, prepare
from k3ablate.jobs.packs import read_pack_file
from k3ablate.jobs.submissions import submissions

pytestmark = pytest.mark.slurm

ARRAY = 21  # MaxArraySize of the cluster


def digests(place: Any, num_runs: int) -> list[str]:
    return sorted(row.label.digest for row in place.rows(num_runs))


def submitted_digests(place: Any) -> list[str]:
    packs = itertools.chain.from_iterable(submission.packs() for submission in submissions(place.root))
    return sorted(run.digest for pack in packs for run in pack)


def num_tasks(outcome: Outcome) -> list[int]:
    return [handed.num_tasks for handed in outcome.handed]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses between tries."""
    monkeypatch.setattr(controller, "PAUSES", (0.01, 0.01))


def test_every_run_is_trained_once_by_tasks_that_carry_several(place: Any) -> None:
    outcome = place.submit(5, "finish", runs_per_job=3)
    assert [(handed.num_tasks, handed.num_runs) for handed in outcome.handed] == [(2, 5)]
    packs = read_pack_file(outcome.handed[0].folder / "packs.json").packs
    assert [[run.name for run in pack] for pack in packs] == [
        ["k2 s seed 4", "k2 s seed 3", "k2 s seed 2"],
        ["k2 s seed 1", "k2 s seed 0"],
    ]
    place.wait_for_states(*[State.FINISHED] * 5)
    place.wait_for_empty_queue()
    assert place.num_attempts(5) == [1] * 5
    again = place.submit(5, "finish", runs_per_job=3)
    assert (again.handed, again.num_settled) == ([], 5)


def test_an_array_longer_than_slurm_takes_is_cut_and_sent_once(place: Any) -> None:
    num_runs = ARRAY + 4
    shown = place.preview(num_runs, "finish", partition="closed")
    assert not place.root.exists(), "a dry run writes nothing"
    outcome = place.submit(num_runs, "finish", partition="closed")
    assert num_tasks(outcome) == [ARRAY, 4]
    assert [handed.script for handed in shown.handed] == [handed.script for handed in outcome.handed]
    assert [(handed.folder / "job.sh").read_text() for handed in outcome.handed] == [h.script for h in shown.handed]
    assert submitted_digests(place) == digests(place, num_runs)
    queued = {(task.job, task.index) for task in controller.queue() if task.is_live}
    first, second = (handed.job for handed in outcome.handed)
    assert queued == {(first, k) for k in range(ARRAY)} | {(second, k) for k in range(4)}

    again = place.submit(num_runs, "finish", partition="closed")
    assert (again.handed, again.num_queued) == ([], num_runs)
    place.cluster.command("scancel", second)
    assert num_tasks(place.submit(num_runs, "finish", partition="closed")) == [4]


def test_a_job_whose_id_was_never_noted_is_known_by_its_comment(place: Any) -> None:
    outcome = place.submit(2, "finish", partition="closed")
    (outcome.handed[0].folder / "jobs" / outcome.handed[0].job).unlink()
    again = place.submit(3, "finish", partition="closed")
    assert (num_tasks(again), again.num_queued) == ([1], 2)


def test_two_that_submit_at_once_submit_once(place: Any) -> None:
    for row in place.rows(4):  # threads of one process would write one temporary file
        prepare(place.root, row.spec)
    outcomes: list[Outcome] = []
    people = [
        threading.Thread(target=lambda: outcomes.append(place.submit(4, "finish", partition="closed"))) for _ in "ab"
    ]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert sorted(num_tasks(outcome) for outcome in outcomes) == [[], [4]]
    assert len(place.cluster.queue()) == 4


def test_what_slurm_refuses_is_named_and_nothing_is_left_behind(place: Any) -> None:
    for key, value in (("partition", "nowhere"), ("constraint", "golden"), ("gpus", 2), ("memory_gb", 999_999.0)):
        with pytest.raises(InputError, match=rf"^cluster recipe: {key}: found .* which Slurm does not take \(sbatch"):
            place.submit(2, "finish", **{key: value})
    assert not [*place.root.glob("jobs/*/*")]
    assert num_tasks(place.submit(2, "finish", partition="closed")) == [2]


@pytest.fixture
def sbatch_with_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An sbatch in front of the real one that refuses every call but the first, while the file it returns exists."""
    real = shutil.which("sbatch")
    folder = tmp_path / "bin"
    folder.mkdir()
    limit = folder / "limit"
    limit.touch()
    refusal = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates policy"
    (folder / "sbatch").write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(folder))}\necho >> calls\n"
        f'if [ -e limit ] && [ "$(wc -l < calls)" -gt 1 ]; then echo {shlex.quote(refusal)} >&2; exit 1; fi\n'
        f'exec {real} "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return limit


@pytest.mark.usefixtures("impatient")
def test_a_limit_on_submissions_ends_in_a_list_of_what_is_missing(place: Any, sbatch_with_a_limit: Path) -> None:
    num_runs = ARRAY + 4
    outcome = place.submit(num_runs, "finish", partition="closed")
    assert num_tasks(outcome) == [ARRAY]
    assert outcome.not_submitted == [f"k2 s seed {seed}" for seed in (3, 2, 1, 0)]
    assert "AssocMaxSubmitJobLimit" in outcome.reason
    tries = (sbatch_with_a_limit.parent / "calls").read_text().count("\n")
    assert tries == 1 + 1 + len(controller.PAUSES)
    sbatch_with_a_limit.unlink()
    assert num_tasks(place.submit(num_runs, "finish", partition="closed")) == [4]


def test_a_controller_that_is_away_is_waited_for(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place.cluster.stop_daemon("slurmctld")
    tries: list[bool] = []

    def starting_it_at_the_third(*_: object) -> Iterator[bool]:
        for number in range(4):
            if number == 2 and not any(tries):
                place.cluster.start_controller()
            tries.append(number == 2)
            yield True

    monkeypatch.setattr(controller, "_tries", starting_it_at_the_third)
    assert num_tasks(place.submit(1, "finish", partition="closed")) == [1]
    assert tries[:3] == [False, False, True]


def test_a_controller_that_stays_away_is_a_reason_that_says_so(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "PAUSES", ())
    place.cluster.stop_daemon("slurmctld")
    try:
        outcome = place.submit(1, "finish", partition="closed")
    finally:
        place.cluster.start_controller()
    assert outcome.not_submitted == ["k2 s seed 0"]
    assert re.search(r"^Slurm does not say what it holds: .*Nothing was submitted; try again", outcome.reason)


@pytest.fixture
def small_cluster(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A second Slurm that keeps 10 tasks in mind."""
    small = importlib.import_module("virtual_cluster").VirtualCluster(max_jobs=10)
    try:
        small.start()
        monkeypatch.setenv("SLURM_CONF", small.environment["SLURM_CONF"])
        yield small
    finally:
        small.stop()


def test_what_the_controller_cannot_keep_in_mind_waits_here(small_cluster: Any, place: Any) -> None:
    outcome = place.submit(15, "finish", partition="closed")
    assert num_tasks(outcome) == [9]
    assert outcome.not_submitted == [f"k2 s seed {seed}" for seed in (5, 4, 3, 2, 1, 0)]
    assert re.search(r"at most 10 tasks \(MaxJobCount\) and has 0; submit again when some have ended", outcome.reason)
    assert len(small_cluster.queue()) == 9


def test_names_that_a_shell_would_run_are_quoted(place: Any, tmp_path: Path) -> None:
    place.root = tmp_path / "runs $(touch pwned) `touch pwned`;touch pwned & x"
    outcome = place.submit(1, "finish", environment={**place.environment, "A": "$(touch pwned)`touch pwned`;'\""})
    assert outcome.handed
    place.wait_for_states(State.FINISHED)
    place.wait_for_empty_queue()
    assert not list(Path.cwd().glob("pwned"))
    assert not list(tmp_path.rglob("pwned"))

"""What ended the attempts at a run, and when another is not worth it."""

from pathlib import Path

import pytest

from k3ablate.jobs.attempts import Attempt, Cause, attempts, give_up, note_attempt, reopen

KILLED = "worker died with signal 9"


def tried(cause: Cause, *steps: int) -> list[Attempt]:
    detail = KILLED if cause is Cause.WORKER_DIED else ""
    return [Attempt(cause=cause, num_steps=step, detail=detail) for step in steps]


def test_attempts_are_read_back_in_order(tmp_path: Path) -> None:
    assert attempts(tmp_path) == []
    noted = [
        Attempt(cause=Cause.WORKER_DIED, num_steps=3, detail='he said "\n"', job="17_4", host="cn1"),
        Attempt(cause=Cause.PREEMPTED, num_steps=5),
    ]
    for attempt in noted:
        note_attempt(tmp_path, attempt)
    assert attempts(tmp_path) == noted
    assert len((tmp_path / "attempts.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("damage", ['{"cause": "worker_d', '{"cause": "worker_died"}\n', "\0" * 40, "17\n", "\xff\n"])
def test_a_damaged_line_loses_only_itself(tmp_path: Path, damage: str) -> None:
    first, second = tried(Cause.TIME_LIMIT, 4, 8)
    note_attempt(tmp_path, first)
    with (tmp_path / "attempts.jsonl").open("a", encoding="latin-1") as file:
        file.write(damage)
    assert attempts(tmp_path) == [first]
    note_attempt(tmp_path, second)
    assert attempts(tmp_path) == [first, second]


def test_a_run_that_is_opened_again_counts_from_there_and_forgets_nothing(tmp_path: Path) -> None:
    reopen(tmp_path)
    assert not (tmp_path / "attempts.jsonl").exists()
    for attempt in tried(Cause.WORKER_DIED, 0, 0, 0):
        note_attempt(tmp_path, attempt)
    assert give_up(attempts(tmp_path)) is not None
    reopen(tmp_path)
    assert attempts(tmp_path) == []
    note_attempt(tmp_path, *tried(Cause.WORKER_DIED, 0))
    assert (len(attempts(tmp_path)), give_up(attempts(tmp_path))) == (1, None)
    assert len((tmp_path / "attempts.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("tries", "reason"),
    [
        ([], None),
        (tried(Cause.WORKER_DIED, 0, 0), None),
        (tried(Cause.WORKER_DIED, 0, 0, 0), f"{KILLED}, 3 times"),
        (tried(Cause.WORKER_DIED, 0, 9, 9, 9), f"{KILLED}, 3 times"),
        (tried(Cause.TIME_LIMIT, 400, 400), None),
        (tried(Cause.TIME_LIMIT, 200, 400, 400, 400), "no progress: 3 attempts hit the time limit at step 400"),
        (tried(Cause.TIME_LIMIT, 400, 300, 350), "no progress: 3 attempts hit the time limit at step 400"),
        (tried(Cause.PREEMPTED, *[7] * 9), None),
        (tried(Cause.PREEMPTED, *[7] * 10), "no progress: 10 attempts were preempted at step 7"),
        (tried(Cause.NODE_FAILED, *[0] * 10), "no progress: 10 attempts lost their node at step 0"),
        (tried(Cause.ERROR, 0, 0, 0), "error, 3 times"),
        (tried(Cause.REQUESTED, *[0] * 50), None),
        (tried(Cause.WORKER_DIED, 5, 5) + tried(Cause.TIME_LIMIT, 5, 5), None),
        ([*tried(Cause.WORKER_DIED, 5, 5), *tried(Cause.TIME_LIMIT, 5), *tried(Cause.WORKER_DIED, 5)],
         f"{KILLED}, 3 times"),
    ],
)  # fmt: skip
def test_a_run_is_given_up_after_attempts_of_one_cause_at_one_step(tries: list[Attempt], reason: str | None) -> None:
    assert give_up(tries) == reason


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.REOPENED])
def test_progress_is_never_held_against_a_run(cause: Cause) -> None:
    assert give_up(tried(cause, *range(100))) is None
    assert give_up(tried(cause, *(step // 2 for step in range(100)))) is None  # every second attempt gets further


def test_limits_are_stated_by_cause() -> None:
    assert give_up(tried(Cause.WORKER_DIED, 0), {Cause.WORKER_DIED: 1}) == f"{KILLED}, 1 times"
    assert give_up(tried(Cause.TIME_LIMIT, 0, 0, 0), {Cause.WORKER_DIED: 1}) is None

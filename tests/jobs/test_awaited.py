"""A grid that is waited for, with a Slurm that only answers: what is lost, cancelled, refused, or finds no room."""

import io
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ablate.config import InputError
from k3ablate.jobs import awaited, controller
from k3ablate.jobs.attempts import Cause, attempts
from k3ablate.jobs.cluster import ClusterRecipe
from k3ablate.jobs.controller import Full, Limits, QueuedTask, Refused, Unreachable
from k3ablate.jobs.dispatch import Order
from k3ablate.jobs.folders import RunFolder, prepare
from k3ablate.jobs.packs import read_pack_file
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.submissions import Submission
from k3ablate.records import RunRecord, Status
from k3ablate.training.spec import Execution

FAR = 1e5  # seconds that no test waits


class FakeCluster:
    """Takes arrays, and lets a clock that only sleeping moves decide what becomes of each."""

    def __init__(self, root: Path, fake_runs: Any) -> None:
        self.root = root
        self.fake_runs = fake_runs
        self.now = 0.0
        self.states: dict[tuple[str, int], str] = {}
        self.submissions: list[Submission] = []
        self.fates: deque[Callable[[int], None] | Exception] = deque()  # one per array, given its number from 0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.looks: list[float] = []  # when the queue was asked for
        self.is_away = False
        self.said = io.StringIO()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < FAR, self.said.getvalue()
        for event in [event for event in self.due if event[0] <= self.now]:
            self.due.remove(event)
            event[1]()

    def queue(self, pauses: object = None, say: object = None) -> list[QueuedTask]:
        self.looks.append(self.now)
        if self.is_away:
            raise Unreachable("Socket timed out")
        return [QueuedTask(job, index, state, "") for (job, index), state in self.states.items()]

    def submit(self, script: Path, comment: str, say: object) -> str:
        fate = self.fates.popleft() if self.fates else self.finish
        if isinstance(fate, Exception):
            raise fate
        number = len(self.submissions)
        self.submissions.append(Submission(script.parent))
        job = str(number + 1)
        self.states |= {(job, index): "PENDING" for index in range(len(self.packs(number)))}
        self.due.append((self.now + 30, lambda: fate(number)))
        return job

    def packs(self, number: int) -> list[list[str]]:
        packs = read_pack_file(self.submissions[number].pack_path).packs
        return [[run.digest for run in pack] for pack in packs]

    def end(self, number: int, state: str) -> None:
        job = str(number + 1)
        self.states |= {key: state for key in self.states if key[0] == job}

    def finish(self, number: int) -> None:
        for digest in (digest for pack in self.packs(number) for digest in pack):
            folder = RunFolder(self.root / digest)
            if folder.record() is None:
                folder.write_record(self.fake_runs.make_record(folder.spec()))
        self.end(number, "COMPLETED")

    def die(self, number: int) -> None:
        self.end(number, "OUT_OF_MEMORY")

    def lose_the_node(self, number: int) -> None:
        self.end(number, "NODE_FAIL")

    def cancel(self, number: int) -> None:
        self.end(number, "CANCELLED")

    def run_out_of_time(self, number: int) -> None:
        for digest in (digest for pack in self.packs(number) for digest in pack):
            folder = RunFolder(self.root / digest)
            folder.forget_failure()
            folder.write_record(self.fake_runs.make_record(folder.spec(), Status.OUT_OF_TIME))
        self.end(number, "COMPLETED")

    def run(self, num_runs: int, **recipe: Any) -> list[RunRecord]:
        """The records of seeds 0 to num_runs - 1."""
        rows = [self.fake_runs.make_row(seed) for seed in range(num_runs)]
        order = Order("fake", self.root, ClusterRecipe(minutes=5, **recipe), Execution())
        found = awaited.run_grid(rows, order, reporter(self.said))
        assert found.keys() == {row.label.digest for row in rows}
        return [found[row.label.digest] for row in rows]

    def folder(self, seed: int) -> RunFolder:
        return RunFolder(self.root / self.fake_runs.make_row(seed).label.digest)


@pytest.fixture
def cluster(tmp_path: Path, fake_runs: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    found = FakeCluster(tmp_path / "runs", fake_runs)
    found.root.mkdir()
    monkeypatch.setattr(awaited, "time", SimpleNamespace(sleep=found.sleep, monotonic=lambda: found.now))
    monkeypatch.setattr(controller, "limits", lambda say: Limits(max_array_size=10, max_jobs=100))
    monkeypatch.setattr(controller, "queue", found.queue)
    monkeypatch.setattr(controller, "submit", found.submit)
    monkeypatch.setattr("k3ablate.jobs.accounting.endings", lambda jobs: {})
    return found


def statuses(records: list[RunRecord]) -> list[str]:
    return [str(record.status) for record in records]


def test_runs_are_submitted_once_and_read_when_they_have_ended(cluster: FakeCluster) -> None:
    prepare(cluster.root, cluster.fake_runs.make_spec(0))
    cluster.folder(0).write_record(cluster.fake_runs.make_record(cluster.fake_runs.make_spec(0)))
    assert statuses(cluster.run(3, runs_per_job=2)) == ["finished"] * 3
    assert [len(pack) for pack in cluster.packs(0)] == [2]
    assert len(cluster.submissions) == 1
    assert "job 1: 1 tasks, 2 runs" in cluster.said.getvalue()
    looks = len(cluster.looks)
    assert statuses(cluster.run(3)) == ["finished"] * 3
    assert len(cluster.looks) == looks, "where everything has ended nobody is asked"


def test_slurm_is_asked_rarely_while_nothing_ends(cluster: FakeCluster) -> None:
    def take_a_day(number: int) -> None:
        cluster.due.append((cluster.now + 86_000, lambda: cluster.finish(number)))

    cluster.fates.append(take_a_day)
    assert statuses(cluster.run(1)) == ["finished"]
    assert 86_000 <= cluster.now < 86_000 + 2 * awaited.LONGEST_POLL + 60
    pauses = [after - before for before, after in zip(cluster.looks[3:-1], cluster.looks[4:], strict=True)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == awaited.LONGEST_LOOK
    assert len(cluster.looks) < 86_000 / awaited.LONGEST_LOOK + 20


def test_what_was_lost_is_submitted_again_and_the_loss_is_noted_once(cluster: FakeCluster) -> None:
    cluster.fates.extend([cluster.die, *[Full("no room")] * 3])  # so that its end is seen again and again
    assert statuses(cluster.run(2)) == ["finished"] * 2
    assert [len(cluster.packs(number)) for number in range(2)] == [2, 2]
    for seed in range(2):
        (attempt,) = attempts(cluster.folder(seed).path)
        assert attempt.cause is Cause.WORKER_DIED
        assert attempt.detail.startswith(f"task {attempt.job} ended without a record (OUT_OF_MEMORY), its log: ")
    assert cluster.said.getvalue().count("ended without a record") == 2


@pytest.mark.parametrize(("fate", "limit"), [("die", 3), ("lose_the_node", 10)])
def test_what_is_lost_again_and_again_has_failed(cluster: FakeCluster, fate: str, limit: int) -> None:
    cluster.fates.extend([getattr(cluster, fate)] * limit)
    (record,) = cluster.run(1)
    assert record.status is Status.FAILED
    assert record == cluster.folder(0).record()
    assert str(limit) in record.reason
    assert len(cluster.submissions) == limit
    cluster.fates.extend([getattr(cluster, fate)] * (limit - 1))
    assert statuses(cluster.run(1)) == ["finished"], "asked for once more, it is tried as often once more"
    assert len(cluster.submissions) == 2 * limit


def test_a_run_that_its_task_never_began_is_not_at_fault(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cluster.folder(0)
    monkeypatch.setattr(
        "k3ablate.jobs.leases.job_of_holder",
        lambda folder: f"{len(cluster.submissions)}_0" if folder == first.path else None,
    )
    cluster.fates.extend([cluster.die] * 3)
    assert statuses(cluster.run(2, runs_per_job=2)) == ["failed", "finished"]
    assert not attempts(cluster.folder(1).path)


def test_what_a_person_cancels_meanwhile_ends_and_the_next_call_submits_it(cluster: FakeCluster) -> None:
    cluster.fates.append(cluster.cancel)
    (record,) = cluster.run(1)
    assert (record.status, record.reason) == (
        Status.FAILED,
        "task 1_0 was cancelled; the same command submits its runs again",
    )
    assert cluster.folder(0).record() is None
    assert not attempts(cluster.folder(0).path)
    assert statuses(cluster.run(1)) == ["finished"]


def test_a_run_out_of_time_ends_and_the_next_call_goes_on_with_it(cluster: FakeCluster) -> None:
    cluster.fates.append(cluster.run_out_of_time)
    assert statuses(cluster.run(1)) == ["out_of_time"]
    cluster.fates.append(cluster.run_out_of_time)
    assert statuses(cluster.run(1)) == ["out_of_time"]
    assert len(cluster.submissions) == 2


def test_what_slurm_refuses_ends_with_its_words_and_stays_open(cluster: FakeCluster) -> None:
    cluster.fates.append(Refused("the site's plugin says no"))
    records = cluster.run(2)
    assert {(str(record.status), record.reason) for record in records} == {
        ("failed", "Slurm refuses it: the site's plugin says no")
    }
    assert cluster.folder(0).record() is None
    assert statuses(cluster.run(2)) == ["finished"] * 2


def test_a_recipe_that_does_not_fit_is_wrong_input(cluster: FakeCluster) -> None:
    cluster.fates.append(Refused("Invalid partition name specified"))
    with pytest.raises(InputError, match=r"cluster recipe: partition: found 'nowhere'"):
        cluster.run(1, partition="nowhere")


@pytest.mark.parametrize("answer", [Full("AssocMaxSubmitJobLimit"), Unreachable("Socket timed out")])
def test_what_finds_no_room_waits_here_and_says_so_once(cluster: FakeCluster, answer: Exception) -> None:
    cluster.fates.extend([answer] * 3)
    assert statuses(cluster.run(2)) == ["finished"] * 2
    assert cluster.said.getvalue().count(f"2 runs wait here: {answer}") == 1


def test_a_slurm_that_goes_away_is_waited_for(cluster: FakeCluster) -> None:
    def go_away(number: int) -> None:
        cluster.is_away = True
        cluster.due.append((cluster.now + 3600, come_back))

    def come_back() -> None:
        cluster.is_away = False
        cluster.finish(0)

    cluster.fates.append(go_away)
    assert statuses(cluster.run(1)) == ["finished"]
    assert cluster.said.getvalue().count("Slurm does not answer (Socket timed out)") == 1
    assert "wait here" not in cluster.said.getvalue()
    assert len(cluster.submissions) == 1
    assert not attempts(cluster.folder(0).path)

"""What a task makes of its pack and of the way it is ended, without a Slurm (with one: tests/slurm)."""

import io
import json
from pathlib import Path
from types import ModuleType

import pytest

from k3ablate import cli
from k3ablate.config import InputError
from k3ablate.jobs import controller, leases
from k3ablate.jobs.attempts import Attempt, Cause, attempts, note_attempt
from k3ablate.jobs.controller import TaskFacts, facts
from k3ablate.jobs.folders import RunFolder, State, prepare
from k3ablate.jobs.launch import SlurmTask, carry_out
from k3ablate.jobs.packs import PackedRun, PackFile
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.submissions import Submission
from k3ablate.records import Status


@pytest.fixture
def pack_path(fake_runs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pack file of one task with one run, seed 0; this process is that task, 7_0."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    row = fake_runs.make_row(0)
    prepare(tmp_path, row.spec)
    run = PackedRun(digest=row.label.digest, name="k2 s seed 0", tags={}, tokens=row.tokens, flops=row.flops)
    path = tmp_path / "jobs" / "fake" / "0001" / "packs.json"
    path.parent.mkdir(parents=True)
    PackFile(experiment="fake", execution={}, num_threads=1, stop_seconds=1, packs=((run,),)).write(path)
    return path


@pytest.fixture
def folder(fake_runs: ModuleType, tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / fake_runs.make_spec(0).digest())


def never(*_: object) -> None:
    raise AssertionError("nothing was to be trained")


@pytest.mark.parametrize("status", [Status.FINISHED, Status.DIVERGED, Status.FAILED])
def test_a_run_that_has_ended_is_left_alone(
    fake_runs: ModuleType, pack_path: Path, folder: RunFolder, status: Status
) -> None:
    folder.write_record(fake_runs.make_record(fake_runs.make_spec(0), status))
    carried = carry_out(pack_path, reporter(io.StringIO()), never)
    assert ([record.status for record in carried.records.values()], carried.num_left) == ([status], 0)


def test_a_run_that_gets_nowhere_is_given_up_with_the_reason(pack_path: Path, folder: RunFolder) -> None:
    for _ in range(3):
        note_attempt(folder.path, Attempt(cause=Cause.TIME_LIMIT, num_steps=400))
    said = io.StringIO()
    carried = carry_out(pack_path, reporter(said), never)
    (record,) = carried.records.values()
    assert record.reason == "no progress: 3 attempts hit the time limit at step 400"
    assert folder.state() is State.FAILED
    assert said.getvalue() == f"k2 s seed 0: given up: {record.reason}\n"


@pytest.mark.parametrize("job", ["7_0", "7_1"])
def test_a_lease_that_this_very_task_left_tells_of_a_lost_node(
    pack_path: Path, folder: RunFolder, fake_runs: ModuleType, job: str
) -> None:
    holder = {"token": "t", "host": "elsewhere", "boot": "b", "pid": 1, "started": "1", "job": job, "beat": 3}
    (folder.path / leases.LEASE_FILE).write_text(json.dumps(holder))
    folder.write_record(fake_runs.make_record(fake_runs.make_spec(0)))
    carry_out(pack_path, reporter(io.StringIO()), never)
    noted = [(attempt.cause, attempt.job) for attempt in attempts(folder.path)]
    assert noted == ([(Cause.NODE_FAILED, "7_0")] if job == "7_0" else [])


@pytest.mark.parametrize("variable", ["SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"])
def test_outside_a_task_there_is_nothing_to_do(
    pack_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.delenv(variable)
    with pytest.raises(SystemExit) as ended:
        cli.main(["work", str(pack_path)])
    assert ended.value.code == cli.WRONG_INPUT
    message = f"{variable}: not set; this command is for the tasks of a Slurm array\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_task_of_another_array_is_refused(pack_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    with pytest.raises(InputError, match="found '1', there are packs 0 to 0: this is another array's"):
        carry_out(pack_path, reporter(io.StringIO()), never)


JOB = "JobId=8 ArrayJobId=7 JobState={} Requeue=1 Restarts={} RunTime={} TimeLimit={} PreemptTime={} Comment=/a b=c"
NO, AT = "None", "2026-11-30T20:52:15"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (("RUNNING", 0, "00:01:00", "00:05:00", NO), TaskFacts(True, False, False, 0)),
        (("RUNNING", 2, "00:05:00", "00:05:00", NO), TaskFacts(True, False, True, 2)),
        (("COMPLETING", 0, "1-00:00:01", "1-00:00:00", NO), TaskFacts(False, False, True, 0)),
        (("RUNNING", 0, "23:59:59", "1-00:00:00", AT), TaskFacts(True, True, False, 0)),
        (("RUNNING", 0, "99-00:00:00", "UNLIMITED", NO), TaskFacts(True, False, False, 0)),
    ],
)
def test_what_slurm_says_of_a_task(
    answer: tuple[object, ...], found: TaskFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "_once", lambda command: JOB.format(*answer))
    assert facts("7_0") == found


def test_a_task_that_slurm_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: object) -> str:
        raise controller.Refused("slurm_load_jobs error: Invalid job id specified")

    monkeypatch.setattr(controller, "_once", refuse)
    assert facts("7_0") is None


def test_only_the_task_is_requeued_never_its_array(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[object] = []
    monkeypatch.setattr(controller, "_once", lambda command: commands.append(command) or "")
    SlurmTask(Submission(Path("/x")), "7", 3, 0).go_on()
    assert commands == [("scontrol", "requeue", "7_3")]
    with pytest.raises(AssertionError, match="an array's own id would requeue all of it"):
        controller.requeue("7")


def test_a_submission_that_timed_out_is_looked_for_before_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may have taken what it could not confirm."""
    accepted: list[str] = []

    def once(command: tuple[str, ...]) -> str:
        if command[0] == "squeue":
            return "".join(f"{job}_0|PENDING|/runs/jobs/x/0001\n" for job in ["11", *accepted]) + "12|RUNNING|other\n"
        accepted.append("13")
        raise controller.Unreachable("sbatch: error: Batch job submission failed: Socket timed out on send/recv")

    monkeypatch.setattr(controller, "_once", once)
    monkeypatch.setattr(controller, "PAUSES", (0.0,))
    assert controller.submit(Path("job.sh"), "/runs/jobs/x/0001") == "13"
    assert accepted == ["13"]


def test_a_controller_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def once(command: object) -> str:
        tries.append(command)
        raise controller.Unreachable("Unable to contact slurm controller")

    monkeypatch.setattr(controller, "_once", once)
    monkeypatch.setattr(controller, "PAUSES", (0.0, 0.0))
    with pytest.raises(controller.Unreachable, match="Unable to contact"):
        controller.limits()
    assert len(tries) == 3


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("sbatch: error: Unable to contact slurm controller (connect failure)", controller.Unreachable),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", controller.Unreachable),
        ("sbatch: error: invalid partition specified: nowhere", controller.Refused),
    ],
)
def test_a_no_is_told_from_no_answer(
    message: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(controller, "PAUSES", ())
    with pytest.raises(kind, match=message.split(":")[-1].strip()[:20]):
        controller.limits()


def test_where_there_is_no_slurm_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"^scontrol: no such command, so no Slurm here"):
        controller.limits()

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3ablate import storage
from k3ablate.config import InputError, digest
from k3ablate.jobs.folders import Progress, RunFolder, State, find, prepare, records, states
from k3ablate.jobs.leases import Held, held
from k3ablate.outbox import Outbox
from k3ablate.records import Evaluation, RoutedPairs, RunRecord, Status, write_routing
from k3ablate.training.provenance import versions

HOLD = """
import sys
from pathlib import Path
from k3ablate.jobs.folders import RunFolder
with RunFolder(Path(sys.argv[1])).claimed() as lease:
    print(lease is not None and lease.is_mine(), flush=True)
    sys.stdin.read()
"""


class Spec:
    """Stands in for a RunSpec: a tree and its digest."""

    def __init__(self, **tree: object) -> None:
        self._tree = tree

    def tree(self) -> dict[str, object]:
        return self._tree

    def digest(self) -> str:
        return digest(self._tree)


def make_record(status: Status, **changes: object) -> RunRecord:
    evaluation = Evaluation(loss=2.5, bits_per_byte=3.6, num_tokens=100)
    values: dict[str, object] = {
        "digest": "0" * 16,
        "status": status,
        "reason": "" if status is Status.FINISHED else "because",
        "evaluations": {"validation": evaluation} if status is Status.FINISHED else {},
        "num_steps": 3,
        "tokens": 300,
        "flops": 9.0,
        "flops_6nd": 8.0,
        "active_params": 5,
        "total_params": 6,
        "wall_seconds": 1.0,
        "tokens_per_second": 300.0,
        "corpus": "c",
    }
    return RunRecord.model_validate(values | changes)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return prepare(tmp_path, Spec(seed=0))


def holder(folder: RunFolder) -> subprocess.Popen[str]:
    """Another process that holds the run until its standard input closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_prepared_folder_waits(folder: RunFolder) -> None:
    assert folder.state() is State.WAITING


def test_a_folder_that_does_not_exist_waits(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "absent").state() is State.WAITING


@pytest.mark.parametrize("status", Status)
def test_a_record_decides_the_state(folder: RunFolder, status: Status) -> None:
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / "last.ckpt").touch()
    record = make_record(status, digest=folder.digest)
    folder.write_record(record)
    assert folder.state().value == status.value
    assert folder.record() == record


def test_a_checkpoint_without_a_record_is_interrupted(folder: RunFolder) -> None:
    (folder.path / "checkpoints").mkdir()
    assert folder.state() is State.WAITING
    (folder.path / "checkpoints" / "half.tmp").touch()
    assert folder.state() is State.WAITING
    (folder.path / "checkpoints" / "last.ckpt").touch()
    assert folder.state() is State.INTERRUPTED


def test_a_run_is_held_until_its_process_is_killed(folder: RunFolder) -> None:
    process = holder(folder)
    try:
        assert folder.state() is State.RUNNING
        with folder.claimed() as lease:
            assert lease is None
    finally:
        end(process)
    assert folder.state() is State.STALE
    with folder.claimed() as lease:
        assert lease is not None
        assert lease.is_mine()
    assert folder.state() is State.WAITING


def test_looking_at_a_lock_does_not_take_it(folder: RunFolder) -> None:
    with folder.claimed() as lease:
        assert lease is not None
        assert [held(folder.path) for _ in range(2)] == [Held.YES] * 2
    assert held(folder.path) is Held.NO


def test_a_forgotten_failure_opens_the_run_again(folder: RunFolder) -> None:
    folder.write_failure(make_record(Status.FAILED, digest=folder.digest), "Traceback ...")
    assert folder.state() is State.FAILED
    assert (folder.path / "failure.txt").read_text() == "Traceback ..."
    folder.forget_failure()
    assert folder.state() is State.WAITING
    assert not (folder.path / "failure.txt").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Progress(0, 0)),
        ('{"step": 3, "tokens": 30}\n', Progress(4, 30)),
        ('{"step": 3, "tokens": 30}\n{"step": 4, "tok', Progress(4, 30)),
        ('{"step": 3, "tokens": 30}\n17\n{"loss": 1}\n', Progress(4, 30)),
        ('{"step": 1, "tokens": 10}\n' + 20_000 * '{"step": 2, "tokens": 20}\n', Progress(3, 20)),
        ("\0" * 50, Progress(0, 0)),
    ],
)
def test_progress_is_the_last_whole_line(folder: RunFolder, text: str, expected: Progress) -> None:
    (folder.path / "metrics.jsonl").write_text(text)
    assert folder.progress() == expected


def test_a_run_without_metrics_has_no_progress(folder: RunFolder) -> None:
    assert folder.progress() == Progress(0, 0)


def test_preparing_twice_leaves_the_specification_alone(tmp_path: Path) -> None:
    folder = prepare(tmp_path, Spec(seed=1, rate=0.1))
    before = (folder.path / "spec.json").stat().st_mtime_ns
    assert prepare(tmp_path, Spec(seed=1, rate=0.1)) == folder
    assert (folder.path / "spec.json").stat().st_mtime_ns == before
    written = json.loads((folder.path / "spec.json").read_text())
    assert written == {"digest": folder.digest, "spec": {"seed": 1, "rate": 0.1}, "versions": versions()}
    assert {"code", "lock", "torch"} <= written["versions"].keys()


@pytest.mark.parametrize("content", [b'{"seed": 2}', b"{", b"", b"\xff\xfe\x00", b'{"digest": "caf\xe9"}'])
def test_a_damaged_specification_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = prepare(tmp_path, Spec(seed=1))
    (folder.path / "spec.json").write_bytes(content)
    for look in (lambda: prepare(tmp_path, Spec(seed=1)), folder.spec):
        with pytest.raises(InputError, match=r"spec\.json: not the specification of a run .* delete this folder"):
            look()


def test_a_specification_edited_by_hand_is_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path, Spec(seed=1))
    path = folder.path / "spec.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    for look in (lambda: prepare(tmp_path, Spec(seed=1)), folder.spec):
        with pytest.raises(InputError, match=rf"spec\.json: .*digest {digest({'seed': 2})}, it says .* it was edited"):
            look()


def test_the_specification_of_another_run_is_refused(tmp_path: Path) -> None:
    first, second = prepare(tmp_path, Spec(seed=1)), prepare(tmp_path, Spec(seed=2))
    (first.path / "spec.json").write_bytes((second.path / "spec.json").read_bytes())
    looks = (
        lambda: prepare(tmp_path, Spec(seed=1)), first.spec, first.state, first.record,
        lambda: records(tmp_path, [first.digest]), lambda: states(tmp_path, [first.digest]),
    )  # fmt: skip
    for is_settled in (False, True):
        if is_settled:
            first.write_record(make_record(Status.FINISHED, digest=first.digest))
        for look in looks:
            with pytest.raises(InputError, match=rf"holds the specification of run {second.digest}, this is run"):
                look()


def test_a_specification_that_is_laid_out_by_hand_is_the_same(folder: RunFolder) -> None:
    path = folder.path / "spec.json"
    tree = json.loads(path.read_text())
    for text in (json.dumps(tree, indent=80), json.dumps(dict(reversed(tree.items())))):
        path.write_text(text)
        assert folder.state() is State.WAITING


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = prepare(tmp_path / "elsewhere", Spec(seed=1))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / elsewhere.digest).symlink_to(elsewhere.path)
    before = sorted(elsewhere.path.iterdir())
    for look in (prepare, lambda root, spec: records(root, [spec.digest()])):
        with pytest.raises(InputError, match=rf"{elsewhere.digest}: is a symbolic link to .*elsewhere"):
            look(tmp_path / "runs", Spec(seed=1))
    assert sorted(elsewhere.path.iterdir()) == before


LINKED = ["metrics.jsonl", "spec.json", "record.json", "routing.json", "log.txt", "checkpoints", "lock", "lease.json"]


@pytest.mark.parametrize("name", LINKED)
def test_a_link_inside_a_folder_is_refused_before_anything_is_written(folder: RunFolder, name: str) -> None:
    elsewhere = folder.path.parent.parent / f"{folder.path.parent.name}_elsewhere"
    elsewhere.mkdir()
    if name == "spec.json":
        (folder.path / name).rename(elsewhere / name)
    (folder.path / name).symlink_to(elsewhere / name)  # leads nowhere, unless it is the specification
    before = [sorted(path.iterdir()) for path in (elsewhere, folder.path)]
    looks = (folder.claimed, lambda: prepare(folder.path.parent, Spec(seed=0)), Outbox(folder.path).require_own)
    for look in looks:
        with pytest.raises(InputError, match=rf"{name}: is a symbolic link to .*elsewhere/{name}; put"):
            look()
    assert [sorted(path.iterdir()) for path in (elsewhere, folder.path)] == before


@pytest.mark.parametrize("content", [b'{"digest": "x"', b"\xff\xfe\x00", b'{"digest": "caf\xe9"}'])
def test_a_damaged_record_is_named(folder: RunFolder, content: bytes) -> None:
    (folder.path / "record.json").write_bytes(content)
    with pytest.raises(InputError, match=r"record\.json: not the record of a run .* delete it to run again"):
        folder.state()


@pytest.mark.parametrize("content", [b'{"digest": "x"', b'{"digest": "x", "pairs": [[-1]]}'])
def test_damaged_routing_is_named(folder: RunFolder, content: bytes) -> None:
    assert folder.routing() is None
    (folder.path / "routing.json").write_bytes(content)
    with pytest.raises(InputError, match=r"routing\.json: not the routing of a run .* delete this folder to run again"):
        folder.routing()


def test_routing_is_read_back_and_that_of_another_run_refused(tmp_path: Path) -> None:
    first, second = prepare(tmp_path, Spec(seed=1)), prepare(tmp_path, Spec(seed=2))
    routing = RoutedPairs(digest=first.digest, validation="validation", num_tokens=4, pairs=[[1, 7], [8, 0]])
    for folder in (first, second):
        write_routing(routing, folder.path)
    assert first.routing() == routing
    with pytest.raises(InputError, match=rf"routing\.json: holds the routing of run {first.digest}"):
        second.routing()


def test_a_run_is_found_by_digest_or_folder(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    for name in (folder.digest, str(folder.path), f"../{folder.digest}/", "."):
        assert find(tmp_path, name).digest == folder.digest
    assert find(tmp_path / "elsewhere", "../" + folder.digest).record() is None
    for name in ("0" * 16, ".."):
        with pytest.raises(InputError, match=f"{name}: no run, neither below .* write a digest"):
            find(tmp_path, name)


def test_the_record_of_another_run_is_refused(tmp_path: Path) -> None:
    first, second = prepare(tmp_path, Spec(seed=1)), prepare(tmp_path, Spec(seed=2))
    second.write_record(make_record(Status.FINISHED, digest=first.digest))
    expected = rf"{second.digest}/record\.json: holds the record of run {first.digest}.*delete it"
    for look in (second.record, second.state, lambda: records(tmp_path, [second.digest])):
        with pytest.raises(InputError, match=expected):
            look()


def test_a_write_that_fails_leaves_the_old_content(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_record(Status.FINISHED, digest=folder.digest)
    folder.write_record(record)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        folder.write_record(make_record(Status.FAILED))
    assert caught.value.filename == str(folder.path / "record.json")
    assert folder.record() == record
    assert sorted(path.name for path in folder.path.iterdir()) == ["record.json", "spec.json"]


def test_states_and_records_of_many_runs(tmp_path: Path) -> None:
    done, open_one = prepare(tmp_path, Spec(seed=1)), prepare(tmp_path, Spec(seed=2))
    record = make_record(Status.DIVERGED, digest=done.digest)
    done.write_record(record)
    digests = [done.digest, open_one.digest]
    expected = {done.digest: State.DIVERGED, open_one.digest: State.WAITING}
    assert states(tmp_path, digests) == states(tmp_path, digests, {done.digest: record}) == expected
    assert records(tmp_path, digests) == {done.digest: record}
    assert states(tmp_path / "absent", digests) == dict.fromkeys(digests, State.WAITING)
    assert records(tmp_path / "absent", digests) == {}


def test_a_root_below_a_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        storage.require_writable(tmp_path / "file" / "runs")
    assert storage.problem(caught.value) == (
        f"{tmp_path / 'file' / 'runs'}: a part of this path is a file; name a folder, e.g. by K3ABLATE_RUNS"
    )


def test_a_writable_root_is_created_and_left_empty(tmp_path: Path) -> None:
    storage.require_writable(tmp_path / "new" / "runs")
    assert list((tmp_path / "new" / "runs").iterdir()) == []


@pytest.mark.parametrize("error", [ValueError("x"), OSError("no number"), ConnectionResetError(errno.ECONNRESET, "x")])
def test_other_errors_are_not_the_disks(error: Exception) -> None:
    assert storage.problem(error) is None


def test_the_root_is_runs_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K3ABLATE_RUNS", raising=False)
    assert storage.runs_root() == Path("runs")
    monkeypatch.setenv("K3ABLATE_RUNS", "/elsewhere")
    assert storage.runs_root() == Path("/elsewhere")

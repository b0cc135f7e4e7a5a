"""One holder at a time, also where the kernel's lock does not reach: by leases that beat."""

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from k3ablate.jobs import holders, leases, locks
from k3ablate.jobs.folders import RunFolder, State, states
from k3ablate.jobs.holders import Holder
from k3ablate.jobs.leases import Held, LostLease, Watch, claimed, held
from k3ablate.storage import append_line, write_atomic

BEAT, STALE = 0.05, 0.4


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(leases, "STALE_SECONDS", STALE)
    monkeypatch.setattr(leases, "LOOK_SECONDS", BEAT / 5)
    monkeypatch.setattr(leases, "ASIDE_SECONDS", BEAT)
    monkeypatch.setattr(leases, "CLAIM_SECONDS", BEAT)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system whose locks reach nobody."""
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, kind: None)


@contextmanager
def on(host: str) -> Iterator[None]:
    """What happens inside happens on another machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holders.platform, "node", lambda: host)
        yield


def leave_lease(folder: Path, host: str = "cn7", beat: int = 3, **changes: object) -> Holder:
    """What a holder leaves that vanished."""
    values = {"token": "t", "host": host, "boot": holders._boot(), "pid": 1, "started": "1", "job": "", "beat": beat}
    holder = Holder.model_validate(values | changes)
    (folder / "lease.json").write_bytes(holder.content())
    return holder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_lease_says_who_and_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with claimed(tmp_path) as lease:
        assert lease is not None
        assert lease.is_mine()
        content = json.loads((tmp_path / "lease.json").read_text())
        assert (content["token"], content["pid"], content["job"]) == (lease.token, os.getpid(), "17")
        assert names(tmp_path) == ["lease.json", "lock"]
        assert held(tmp_path) is Held.YES
    assert not lease.is_mine()
    assert names(tmp_path) == ["lock"]
    assert held(tmp_path) is Held.NO


def test_a_lease_beats_without_changing_its_length(tmp_path: Path) -> None:
    with claimed(tmp_path) as lease:
        assert lease is not None
        time.sleep(6 * BEAT)
        content = (tmp_path / "lease.json").read_bytes()
        assert json.loads(content)["beat"] >= 2
        assert len(content) == holders.LEASE_BYTES
        assert lease.is_mine()


def test_another_machines_lease_that_beats_is_respected(tmp_path: Path, no_locks: None) -> None:
    with on("cn1"), claimed(tmp_path) as first:
        assert first is not None
        for host in ("cn2", "cn1"):  # on its own machine it is its process that is looked for
            with on(host), claimed(tmp_path) as second:
                assert second is None
        assert first.is_mine()
        assert names(tmp_path) == ["lease.json", "lock"]


def test_another_machines_lease_that_stands_still_is_taken_over(tmp_path: Path) -> None:
    leave_lease(tmp_path)
    start = time.monotonic()
    with claimed(tmp_path) as lease:
        assert lease is not None
        assert time.monotonic() - start >= STALE
        assert lease.is_mine()
    assert names(tmp_path) == ["lock"]


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 1024, b'{"token": "t"}', b"\xff"])
def test_a_damaged_lease_counts_as_one_that_stands_still(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease.json").write_bytes(content)
    assert held(tmp_path) is Held.ELSEWHERE
    with claimed(tmp_path) as lease:
        assert lease is not None


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"pid": os.getpid(), "started": "1"}])
def test_a_dead_holder_of_this_machine_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    monkeypatch.setattr(leases, "STALE_SECONDS", 600.0)
    leave_lease(tmp_path, host=holders.platform.node(), **changes)
    assert held(tmp_path) is Held.DEAD
    with claimed(tmp_path) as lease:
        assert lease is not None


def test_a_lease_of_this_machine_before_it_started_anew_is_waited_for(tmp_path: Path) -> None:
    leave_lease(tmp_path, host=holders.platform.node(), boot="an earlier start")  # or another machine of that name
    assert held(tmp_path) is Held.ELSEWHERE


def test_of_many_finders_of_a_stale_lease_one_wins(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "guarded", lambda folder, check: nullcontext())  # all are this process
    leave_lease(tmp_path)
    ready, won, is_over = threading.Barrier(8), [], threading.Event()

    def find() -> None:
        ready.wait()
        with claimed(tmp_path) as lease:
            if lease is not None:
                won.append(lease)
                is_over.wait(10)

    finders = [threading.Thread(target=find) for _ in range(8)]
    for finder in finders:
        finder.start()
    time.sleep(STALE + 10 * BEAT)
    is_over.set()
    for finder in finders:
        finder.join()
    assert len(won) == 1
    assert names(tmp_path) == ["lock"]


def test_a_lease_that_moved_on_is_put_back(tmp_path: Path) -> None:
    with claimed(tmp_path) as lease:
        assert lease is not None
        looks = iter([True, False])  # it was what the finder had seen, and then it was not
        leases._move_aside(tmp_path, lambda content: next(looks))
        assert lease.is_mine()
        assert names(tmp_path) == ["lease.json", "lock"]
        before = (tmp_path / "lease.json").read_bytes()
        time.sleep(3 * BEAT)
        assert (tmp_path / "lease.json").read_bytes() != before  # it is the file that beats


def test_a_holder_bears_a_look_at_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ASIDE_SECONDS", 5.0)
    with claimed(tmp_path) as lease:
        assert lease is not None
        (tmp_path / "lease.json").rename(tmp_path / "aside")
        timer = threading.Timer(2 * BEAT, (tmp_path / "aside").rename, [tmp_path / "lease.json"])
        timer.start()
        assert lease.is_mine()
        timer.join()


def test_a_holder_taken_for_dead_writes_nothing_more(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 600.0)  # as if it were suspended
    with on("cn1"), claimed(tmp_path) as first:
        assert first is not None
        write_atomic(tmp_path / "early.txt", "its own")
        content = (tmp_path / "lease.json").read_bytes()
        (tmp_path / "lease.json").unlink()
        leave_lease(tmp_path, host="cn2")
        taken = (tmp_path / "lease.json").read_bytes()
        assert taken != content
        with pytest.raises(LostLease, match="another process took this run over"):
            write_atomic(tmp_path / "record.json", "late")
        with pytest.raises(LostLease):
            append_line(tmp_path / "metrics.jsonl", "late")
        write_atomic(tmp_path.parent / "elsewhere.txt", "not below the folder")
    assert (tmp_path / "lease.json").read_bytes() == taken  # it is not its to take away
    assert names(tmp_path) == ["early.txt", "lease.json", "lock"]
    write_atomic(tmp_path / "record.json", "whoever holds nothing is not stopped")


def test_a_suspended_holder_wakes_up_to_another_one(
    tmp_path: Path, no_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 600.0)
    monkeypatch.setattr(leases, "guarded", lambda folder, check: nullcontext())  # both are this process
    with on("cn1"), claimed(tmp_path) as first, on("cn2"), claimed(tmp_path) as second:
        assert first is not None
        assert second is not None
        assert (first.is_mine(), second.is_mine()) == (False, True)
        with pytest.raises(LostLease):
            first.check()
        second.check()


def test_a_full_disk_leaves_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"No space left.*lease\.json"), claimed(tmp_path):
            pytest.fail("it is not held")
    assert names(tmp_path) == ["lock"]
    with claimed(tmp_path) as lease:
        assert lease is not None


def test_a_disk_that_fails_for_a_while_costs_beats_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(tmp_path) as lease:
        assert lease is not None
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *arguments: (_ for _ in ()).throw(OSError(errno.EIO, "away")))
            time.sleep(4 * BEAT)
        before = (tmp_path / "lease.json").read_bytes()
        time.sleep(4 * BEAT)
        assert (tmp_path / "lease.json").read_bytes() != before


@pytest.mark.parametrize("number", locks.NO_LOCKS)
def test_where_there_are_no_locks_the_lease_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claimed(tmp_path) as first:
        assert first is not None
        with claimed(tmp_path) as second:
            assert second is None


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    leave_lease(tmp_path)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    start = time.monotonic()
    with claimed(tmp_path) as lease:
        assert lease is not None
        assert time.monotonic() - start >= STALE
        assert lease.is_mine()


def test_a_watch_tells_a_lease_that_stands_still_from_one_that_beats(tmp_path: Path) -> None:
    still, beating = tmp_path / "still", tmp_path / "beating"
    watch = Watch()
    for folder in (still, beating):
        folder.mkdir()
        leave_lease(folder)
        assert watch.is_held(folder)
    time.sleep(STALE)
    leave_lease(beating, beat=4)
    assert (watch.is_held(still), watch.is_held(beating)) == (False, True)
    (still / "lease.json").unlink()
    assert not watch.is_held(still)


@pytest.mark.parametrize(("age", "state"), [(10 * STALE, State.STALE), (0.0, State.RUNNING), (-1e6, State.RUNNING)])
def test_who_looks_once_goes_by_the_file_servers_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, state: State
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    leave_lease(folder.path)
    written = (folder.path / "lease.json").stat().st_mtime - age
    os.utime(folder.path / "lease.json", (written, written))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert folder.state() is state
    assert states(tmp_path, ["run", "absent"]) == {"run": state, "absent": State.WAITING}
    assert names(tmp_path) == ["run"]


def test_who_may_not_write_takes_a_lease_from_elsewhere_for_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    leave_lease(folder.path)
    os.utime(folder.path / "lease.json", (0, 0))
    monkeypatch.setattr(Path, "touch", lambda path, exist_ok: (_ for _ in ()).throw(PermissionError(errno.EACCES, "")))
    assert folder.state() is State.RUNNING


def test_a_dead_holder_without_a_checkpoint_is_stale_and_with_one_interrupted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    leave_lease(tmp_path, host=holders.platform.node(), pid=2**22 + 1)
    assert folder.state() is State.STALE
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000400.ckpt").touch()
    assert folder.state() is State.INTERRUPTED
    assert folder.saved_steps() == 400

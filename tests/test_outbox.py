"""Whatever is sent is whole, certain and finite, whoever sends it and whenever."""

import json
import math
from pathlib import Path

import pytest

from k3ablate.config import InputError, digest
from k3ablate.outbox import NOTHING, Busy, Mark, Outbox, flat, sending
from k3ablate.records import FrozenSpec, RunRecord, Status, write_record, write_spec

SPEC = {"model": {"width": 64, "residual": {"kind": "plain"}}, "seed": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / digest(SPEC)
    (folder / "checkpoints").mkdir(parents=True)
    return folder


def write_log(folder: Path, steps: range, rest: str = "") -> None:
    lines = [json.dumps({"step": step, "seconds": step / 10, "loss": 5.0 - step}) + "\n" for step in steps]
    (folder / "metrics.jsonl").write_text("".join(lines) + rest)


def checkpoint(folder: Path, num_steps: int) -> None:
    (folder / "checkpoints" / f"step-{num_steps:09d}.ckpt").touch()


def settle(folder: Path, status: Status) -> None:
    record = RunRecord(
        digest=folder.name, status=status, reason="why", num_steps=20, tokens=100, flops=1e6, flops_6nd=1e6,
        active_params=10, total_params=20, wall_seconds=3.0, tokens_per_second=33.0, corpus="c",
    )  # fmt: skip
    write_record(record, folder)


def steps(folder: Path, sent: Mark = NOTHING) -> list[int]:
    outbox = Outbox(folder)
    found = outbox.steps_after(sent, outbox.certain_steps())
    assert found is not None
    return [entry.step for entry in found]


def test_a_step_is_sent_when_no_crash_can_make_the_run_take_it_again(folder: Path) -> None:
    write_log(folder, range(0, 50, 10))
    assert steps(folder) == []
    for num_steps in (10, 25):
        checkpoint(folder, num_steps)
    (folder / "checkpoints" / "step-000000040.ckpt.77.tmp").touch()  # being written
    assert steps(folder) == [0, 10, 20]
    settle(folder, Status.FAILED)  # to be tried again, from the checkpoint
    assert steps(folder) == [0, 10, 20]
    settle(folder, Status.DIVERGED)
    assert steps(folder) == [0, 10, 20, 30, 40]


def test_sending_goes_on_after_what_was_sent(folder: Path) -> None:
    write_log(folder, range(4))
    checkpoint(folder, 4)
    outbox = Outbox(folder)
    found = outbox.steps_after(NOTHING, 2)
    assert found is not None
    last = [*found][-1]
    assert (last.step, last.seconds, last.values) == (1, 0.1, {"seconds": 0.1, "loss": 4.0})
    assert steps(folder, last.mark) == [2, 3]
    assert Mark.read(last.mark.written()) == last.mark
    write_log(folder, range(6))  # a resumed run takes 4 and 5; what it keeps stays as it was
    assert steps(folder, last.mark) == [2, 3]


@pytest.mark.parametrize("text", ["", "-3 abc", "12", "nonsense", "٣ abc"])
def test_another_log_is_told_from_one_that_goes_on(folder: Path, text: str) -> None:
    write_log(folder, range(4))
    outbox = Outbox(folder)
    assert outbox.steps_after(Mark.of(b'{"step": 0, "loss": 7.0}\n'), 9) is None
    assert outbox.steps_after(Mark(10**6, "00"), 9) is None
    assert outbox.steps_after(Mark.read(text), 9) is None


def test_lines_that_a_crash_cut_off_have_no_numbers(folder: Path) -> None:
    checkpoint(folder, 100)
    write_log(folder, range(2), rest='{"step": 2, "lo\n[3]\n{"step": "x"}\n{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    assert steps(folder) == [0, 1, 3]
    write_log(folder, range(2), rest='{"step": 2, "loss": 1.0}')  # about to be ended
    assert steps(folder) == [0, 1]


def test_a_store_gets_one_finite_number_per_name() -> None:
    line = json.loads(
        '{"step": 3, "tokens": 100, "loss": 1.5, "gradient_norm": null, "imbalance": [1.0, 2.5, NaN], "flag": true,'
        '"stream_max": [null, 4], "text": "<b>", "lost": NaN, "far": -Infinity, "huge": 1e999, "long": 1'
        + 400 * "0"
        + "}"
    )  # fmt: skip
    assert flat(line) == {"tokens": 100, "loss": 1.5, "imbalance/0": 1.0, "imbalance/1": 2.5, "stream_max/1": 4}
    assert all(math.isfinite(value) for value in flat(line).values())


def test_parameters_are_the_leaves_of_the_frozen_specification(folder: Path) -> None:
    assert Outbox(folder).parameters() == {}
    write_spec(FrozenSpec(digest=folder.name, spec=SPEC, versions={}), folder)
    assert Outbox(folder).parameters() == {"model.width": "64", "model.residual.kind": "plain", "seed": "0"}
    edited = (folder / "spec.json").read_text().replace("64", "65")
    (folder / "spec.json").write_text(edited)
    with pytest.raises(InputError, match=r"spec\.json"):
        Outbox(folder).parameters()


def test_files_are_what_is_there_and_the_record_comes_last(folder: Path) -> None:
    settle(folder, Status.DIVERGED)
    write_log(folder, range(3))
    assert [*Outbox(folder).files] == ["metrics.jsonl", "record.json"]


def test_one_sender_at_a_time(folder: Path) -> None:
    with sending(folder), pytest.raises(Busy, match=f"{folder.name}: another process"), sending(folder, seconds=0.1):
        raise AssertionError("two senders")
    with sending(folder):
        pass


def test_what_lies_elsewhere_is_not_sent(folder: Path) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    with pytest.raises(InputError, match="link: is a symbolic link"), sending(link):
        raise AssertionError("sent")

"""A checkpoint is whole or absent; the newest whole one of the right run is taken."""

import errno
import random
from pathlib import Path
from typing import IO

import pytest
import torch

from k3ablate.config import InputError
from k3ablate.storage import replace_file
from k3ablate.training import checkpoints
from k3ablate.training.checkpoints import AtomicCheckpoints, drop_unfinished, newest


def save(folder: Path, step: int, digest: str = "mine") -> Path:
    path = folder / f"step-{step:09d}.ckpt"
    AtomicCheckpoints().save_checkpoint({"digest": digest, "weights": torch.arange(1000.0) + step}, path)
    return path


def test_round_trip_leaves_one_file(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    assert torch.equal(AtomicCheckpoints().load_checkpoint(path)["weights"], torch.arange(1000.0) + 3)
    assert list(tmp_path.iterdir()) == [path]
    AtomicCheckpoints().remove_checkpoint(path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_was_writing_goes(tmp_path: Path) -> None:
    path = save(tmp_path, 3)
    (tmp_path / "step-000000009.ckpt.0123.tmp").touch()
    assert newest(tmp_path, "mine") == path
    drop_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_newest_is_taken(tmp_path: Path) -> None:
    assert newest(tmp_path, "mine") is None
    paths = [save(tmp_path, step) for step in (9, 100, 1)]
    assert newest(tmp_path, "mine") == paths[1]


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "garbage"])
def test_a_damaged_one_is_passed_over(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    content = bytearray(newer.read_bytes())
    content[len(content) // 2] ^= 1  # inside the weights
    damaged = {"empty": b"", "cut": content[: len(content) // 3], "flipped": content, "garbage": b"x" * 5000}[damage]
    newer.write_bytes(damaged)
    assert newest(tmp_path, "mine") == older
    assert caplog.messages == [f"{newer} is damaged; the checkpoint before it is taken"]


def test_damage_to_any_byte_is_passed_over_or_harmless(tmp_path: Path) -> None:
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    content, numbers = newer.read_bytes(), random.Random(0)
    contents = content.rindex(b"PK\x05\x06") - 900  # where the archive says what is in it
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(numbers.choice((1, 30))):
            damaged[numbers.randrange(contents, len(content))] = numbers.randrange(256)
        newer.write_bytes(damaged)
        found = newest(tmp_path, "mine")
        assert found in (older, newer)
        assert torch.equal(
            AtomicCheckpoints().load_checkpoint(found)["weights"], torch.arange(1000.0) + 1 + (found == newer)
        )


def test_a_disk_that_refuses_to_read_is_not_taken_for_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def refuse(path: Path, key: str) -> object:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(checkpoints, "_owner", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        newest(tmp_path, "mine")


def test_one_of_another_run_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1, digest="theirs")
    with pytest.raises(InputError, match=f"^{path}: belongs to run theirs, this is run mine; "):
        newest(tmp_path, "mine")


def test_a_failed_write_keeps_the_old_content_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")

    def fill_the_disk(file: IO[bytes]) -> None:
        file.write(b"new")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(path, fill_the_disk)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

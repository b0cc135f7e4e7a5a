"""Is every item of a kernel done once, by however many threads, and is an error seen?"""

from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from k3ablate.kernels.threads import share_out


@pytest.fixture(name="num_threads", params=[1, 2, 3])
def with_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def count(first: int, last: int, counts: Any) -> None:
    counts[first:last] += 1


@pytest.mark.parametrize("num_items", [0, 1, 2, 7])
def test_every_item_is_done_once(num_threads: int, num_items: int) -> None:
    counts = torch.zeros(9)
    share_out(count, num_items, counts)
    assert counts.tolist() == [1.0] * num_items + [0.0] * (9 - num_items)


def test_there_is_a_part_for_each_thread(num_threads: int) -> None:
    parts: list[tuple[int, int]] = []
    share_out(lambda first, last: parts.append((first, last)), 10)
    assert len(parts) == num_threads
    assert sum(last - first for first, last in parts) == 10


def test_an_error_of_any_part_reaches_the_caller(num_threads: int) -> None:
    def fail_at_the_end(first: int, last: int) -> None:
        if last == 10:
            raise ValueError("no such item")

    with pytest.raises(ValueError, match="no such item"):
        share_out(fail_at_the_end, 10)


def share_out_in_a_child(connection: Any) -> None:
    counts = torch.zeros(4)
    share_out(count, 4, counts)
    connection.send(counts.tolist())


def test_a_forked_process_starts_threads_of_its_own(num_threads: int) -> None:
    share_out(count, 4, torch.zeros(4))  # threads wait in this process now
    context = get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=share_out_in_a_child, args=(there,))
    child.start()
    try:
        assert here.poll(60)
        assert here.recv() == [1.0] * 4
    finally:
        child.kill()
        child.join()

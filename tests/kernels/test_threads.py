"""Is every pair met once, by as many parts as torch has threads, with an error passed on?"""

from collections.abc import Iterator

import pytest
import torch

from k3ablate.kernels.threads import share_out


@pytest.fixture(autouse=True)
def _one_thread_again() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("num_pairs", [0, 1, 5, 12])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_pair_is_met_once(num_pairs: int, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    counts, parts = torch.zeros(num_pairs, requires_grad=True), []

    def kernel(first: int, last: int, array: object) -> None:
        array[first:last] += 1
        parts.append((first, last))

    share_out(kernel, num_pairs, counts)
    assert counts.tolist() == [1] * num_pairs
    assert len(parts) == max(1, min(num_threads, num_pairs))


def test_an_error_of_any_part_is_passed_on() -> None:
    torch.set_num_threads(3)

    def kernel(first: int, last: int) -> None:
        if first:
            raise RuntimeError("this part failed")

    with pytest.raises(RuntimeError, match="this part failed"):
        share_out(kernel, 3)

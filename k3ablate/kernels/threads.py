"""How does a compiled kernel use as many of a CPU's cores as torch may? Its items are shared out over threads.

For kernels whose items, such as (batch, head) pairs, tokens or experts, do not meet, so that the number of threads
changes no bit of the result.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def share_out(kernel: Callable[..., None], num_items: int, *arguments: Any) -> None:
    """Call `kernel(first, last, *arguments)` on parts of the items, one for each of torch's threads.

    Tensors arrive as arrays, other arguments as they are.
    """
    arrays = [given.detach().numpy() if isinstance(given, Tensor) else given for given in arguments]
    num_threads = max(1, min(torch.get_num_threads(), num_items))
    ends = [num_items * part // num_threads for part in range(num_threads + 1)]
    if num_threads == 1:
        kernel(*ends, *arrays)
        return
    (first, last), *rest = pairwise(ends)
    threads = _waiting_threads(num_threads - 1)
    calls = [threads.submit(kernel, start, stop, *arrays) for start, stop in rest]  # the compiled code holds no lock
    kernel(first, last, *arrays)  # here: waiting instead cost as much as a second thread gained
    for call in calls:
        call.result()


@cache
def _waiting_threads(number: int) -> ThreadPoolExecutor:
    """Kept from kernel to kernel: starting a thread took 0.2 ms, as long as a small kernel runs."""
    return ThreadPoolExecutor(number, thread_name_prefix="kernels")


os.register_at_fork(after_in_child=_waiting_threads.cache_clear)  # no thread but the calling one comes along

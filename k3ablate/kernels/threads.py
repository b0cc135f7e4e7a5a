"""How does a compiled kernel use as many of a CPU's cores as torch may? Its pairs are shared out over threads.

For kernels whose (batch, head) pairs do not meet, so that the number of threads changes no bit of the result.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor


def share_out(kernel: Callable[..., None], num_pairs: int, *tensors: Tensor) -> None:
    """Call `kernel(first, last, *arrays)` on parts of the pairs, one part for each of torch's threads."""
    arrays = [tensor.detach().numpy() for tensor in tensors]
    num_threads = max(1, min(torch.get_num_threads(), num_pairs))
    ends = [num_pairs * part // num_threads for part in range(num_threads + 1)]
    if num_threads == 1:
        kernel(*ends, *arrays)
        return
    (first, last), *rest = pairwise(ends)
    with ThreadPoolExecutor(num_threads - 1) as threads:  # the compiled code holds no lock
        calls = [threads.submit(kernel, start, stop, *arrays) for start, stop in rest]
        kernel(first, last, *arrays)  # here: waiting instead cost as much as a second thread gained
        for call in calls:
            call.result()

"""How does memory that a training step hands back stay with the process? The C library is told to keep it.

glibc returns the end of its heap to the system when much of it is free, which a step's large tensors bring about
several times over. Each page that the next ones need is then found and zeroed anew: at 16 x 1,024 tokens that took 6 to
9 percent of a K3 step. The price is memory: a process's peak was a third higher in its first step and 4 percent after
ten. Other C libraries are left as they are.
"""

import ctypes

# Of glibc's malloc.h. Blocks above the second threshold are mapped one by one, and unmapped when they are freed.
TRIM_THRESHOLD, MAP_THRESHOLD = -1, -3
NEVER = 2**31 - 1  # the largest threshold that fits its argument
LARGEST_KEPT = 2**25  # bytes; as far as glibc itself raises the threshold


def keep_pages() -> bool:
    """Keep freed memory for later tensors of this process; False where the C library has no such setting."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(library.mallopt(name, value) for name, value in ((MAP_THRESHOLD, LARGEST_KEPT), (TRIM_THRESHOLD, NEVER)))

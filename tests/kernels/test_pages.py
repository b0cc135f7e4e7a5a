"""Does freed memory stay with a process that asked for it?"""

import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
import numpy
from k3ablate.kernels.pages import keep_pages
if sys.argv[1] == "kept" and not keep_pages():
    sys.exit(77)
def fill():
    arrays = [numpy.ones(2**21) for _ in range(4)]  # 16 MiB each
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def num_fresh_pages(how: str) -> int:
    """Of five rounds that fill the same 64 MiB, in a process of its own."""
    answer = subprocess.run([sys.executable, "-c", ROUNDS, how], capture_output=True, text=True, check=False)
    if answer.returncode == 77:
        pytest.skip("this C library has no mallopt")
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout)


def test_later_rounds_find_the_pages_of_the_first() -> None:
    assert num_fresh_pages("kept") < num_fresh_pages("given back") / 10

"""How did tasks end that the controller has forgotten? Slurm's accounting, where a cluster keeps one.

The controller (`controller`) forgets a task some minutes after its end; accounting does not. Many small clusters have
none, which is no error here: nothing is known then. What a task's end means for its runs is in `whereabouts`.
"""

import re
from collections.abc import Iterable, Iterator

from k3ablate.jobs import controller
from k3ablate.jobs.controller import OVER, read_indices
from k3ablate.jobs.submissions import TaskName

FIELDS = "JobID,State,ExitCode"
LINE = re.compile(r"(?P<job>\d+)_\[?(?P<indices>[\d,-]+)[^|]*\|(?P<state>[A-Z_]+)[^|]*\|(?P<code>\d+):(?P<signal>\d+)")


def endings(jobs: Iterable[str]) -> dict[TaskName, str]:
    """How the tasks of these arrays ended that have; empty where there are none.

    Unreachable or Refused where accounting is away, or not kept; InputError where there is no such command.
    """
    asked = ",".join(sorted(set(jobs)))
    if not asked:
        return {}
    options = ("--noheader", "--parsable2", "--allocations", "--starttime=1970-01-01", f"--format={FIELDS}")
    return dict(_read(controller.ask_once("sacct", *options, f"--jobs={asked}")))


def _read(text: str) -> Iterator[tuple[TaskName, str]]:
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match is not None and match["state"] in OVER:
            for index in read_indices(match["indices"]):
                yield (match["job"], index), _in_words(match["state"], int(match["code"]), int(match["signal"]))


def _in_words(state: str, code: int, signal: int) -> str:
    """'FAILED with exit code 1', 'OUT_OF_MEMORY with signal 9', 'TIMEOUT'."""
    if signal:
        return f"{state} with signal {signal}"
    return f"{state} with exit code {code}" if code else state

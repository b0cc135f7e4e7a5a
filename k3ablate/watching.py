"""What happens to an experiment while one watches? `status --watch`: a live table on a terminal, plain lines elsewhere.

Each look is one of `standings`: the folders, and one question to Slurm's controller, fewer while it does not answer.
Watching ends by itself when every run has ended. Text of runs is shown as it is, never rendered.
"""

import time
from abc import ABC, abstractmethod
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from k3ablate.answers import printable
from k3ablate.experiment import load
from k3ablate.jobs.whereabouts import Lookout
from k3ablate.recipes import experiment_path
from k3ablate.standings import Standings, look
from k3ablate.verbs import plan_from_known_corpora

MAX_DETAILS = 20  # lines below a live table: what does not fit on a screen is in `status`


class Screen(ABC):
    """Where standings are shown, one after the other; used as a context manager around all of them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 -- most streams need nothing
        """Leave the stream as it was."""

    @abstractmethod
    def show(self, standings: Standings) -> None:
        """The experiment stands like this now."""


class _Lines(Screen):
    """A line whenever the totals have changed, and every problem once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: dict[str, int] = {}
        self._said: set[str] = set()

    def show(self, standings: Standings) -> None:
        if standings.totals != self._last:
            self._say(standings.summary())
        self._last = standings.totals
        said = {problem.text() for problem in standings.problems} | ({printable(standings.note)} - {""})
        for line in sorted(said - self._said):
            self._say(line)
        self._said = said

    def _say(self, line: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {line}", file=self._stream, flush=True)


class _Table(Screen):
    """A table that stays in place, for people who watch."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(file=stream), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        self._live.stop()

    def show(self, standings: Standings) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for header in standings.headers:
            table.add_column(Text(header))
        for row in standings.rows():
            table.add_row(*map(Text, row))
        details = standings.details()
        more = [f"... and {len(details) - MAX_DETAILS} more"] if len(details) > MAX_DETAILS else []
        lines = [standings.summary(), *details[:MAX_DETAILS], *more, f"{datetime.now():%H:%M:%S}; Ctrl-C ends"]
        self._live.update(Group(table, *map(Text, lines)), refresh=True)


def screen(stream: TextIO) -> Screen:
    """The one that suits `stream`."""
    return _Table(stream) if stream.isatty() else _Lines(stream)


def watch(name: str, root: Path, seconds: float, shown_on: Screen) -> Standings:
    """Look every so many seconds until every run has ended; KeyboardInterrupt before that changes nothing."""
    experiment = load(experiment_path(name))
    lookout = Lookout(root)
    rows = plan_from_known_corpora(experiment, root).rows
    with shown_on:
        while True:
            standings = look(experiment.name, rows, root, lookout)
            shown_on.show(standings)
            if standings.is_over:
                return standings
            time.sleep(seconds)
            if not all(row.spec for row in rows):  # a corpus may have been built meanwhile
                rows = plan_from_known_corpora(experiment, root).rows

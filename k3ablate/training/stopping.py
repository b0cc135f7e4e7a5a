"""How does a run in training learn that it should stop and leave itself resumable? By a signal to its process.

`listen` turns the signals into a flag, `requested` reads it, and whoever trains ends with `Stopped` once its checkpoint
is on the disk. The signals come from the launcher, and under Slurm from Slurm itself, which sends them to every process
of a task. Nothing here imports torch, nothing decides whether and where the run goes on (`jobs.launch`), and Ctrl-C has
nothing to do with it (`jobs.local`).
"""

import signal
from types import FrameType

STOP_SIGNAL = signal.SIGUSR2  # Lightning takes SIGUSR1 for a request to requeue
SIGNALS = (STOP_SIGNAL, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - an outcome of an attempt
    """The run was asked to stop and did, after a whole step and with a checkpoint."""


def listen() -> None:
    """From now on the signals only leave a note. Belongs to the main thread."""
    _Noted.is_listening = True
    for number in SIGNALS:
        signal.signal(number, _note)


def listen_again() -> None:
    """Where this process listens: after Lightning, whose own handler of SIGTERM raises in the middle of things."""
    if _Noted.is_listening:
        listen()


def deafen() -> None:
    """End what `listen` began; the signals' handlers stay."""
    _Noted.is_listening = _Noted.is_stop = False


def requested() -> bool:
    """Whether a signal has come since this process listens."""
    return _Noted.is_stop


class _Noted:
    """A signal's handler has no other place to write to."""

    is_listening = False
    is_stop = False


def _note(*_: int | FrameType | None) -> None:
    _Noted.is_stop = True

"""What did runs log while they trained, and what did a sweep at equal compute measure? Gathered in `histories`.

Plain numbers for the pictures of training, routing and isoFLOP sweeps; nothing here reads a file or knows a trainer.
Array legend: N logged steps.
"""

from dataclasses import dataclass

import numpy as np

from k3ablate.fits.forms import Array

EMPTY: Array = np.zeros(0)


@dataclass(frozen=True)
class Series:
    """One logged number of a run by the tokens that it had been trained on; each step once."""

    tokens_N: Array
    value_N: Array
    start: int = 0  # the first after the warm-up of the learning rate


NOTHING = Series(EMPTY, EMPTY)


@dataclass(frozen=True)
class RunTrace:
    """One run: the loss it logged, its routing, and how it ended."""

    arm: str
    size: str
    seed: int
    status: str
    reason: str
    num_steps: int
    loss: Series = NOTHING
    worst_load: Series = (
        NOTHING  # largest load of an expert over the mean one, of the worst layer; empty without routing
    )
    dead_share: float | None = None  # of routed experts of all layers, those that no validation token chose
    missing: str = ""  # why there is no log

    @property
    def name(self) -> str:
        """What people call the run."""
        return f"{self.arm} {self.size} seed {self.seed}"

    @property
    def has_diverged(self) -> bool:
        """Whether its loss left what its specification allows."""
        return self.status == "diverged"


@dataclass(frozen=True)
class Sweep:
    """The runs of one arm at one budget, and the tokens per active parameter that are best there.

    `value` and `loss` are of the curve where `is_claimed`, else those of the best run, and `note` says why.
    """

    arm: str
    flops: float
    sizes: tuple[str, ...]  # of each run
    ratios: tuple[float, ...]  # tokens per active parameter
    losses: tuple[float, ...]
    value: float
    loss: float
    is_claimed: bool
    low: float | None = None  # of a 95 percent interval, where claimed; an end beyond the range is open
    high: float | None = None
    note: str = ""

"""Which tokens does a step train on, and which are evaluated? Pure functions of (corpus digest, seed, step).

Nothing is remembered between steps, so resuming needs no loader state, and runs that share a corpus, a context and a
seed see the same windows in the same order, whatever their batch size. Corpora are built by `corpus`.

Shapes: B sequences, T tokens of context, S = T + 1 tokens of a window: inputs are [:, :-1], targets [:, 1:].
"""

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from k3ablate.config import InputError
from k3ablate.training.corpus import Corpus
from k3ablate.training.sources import TRAIN_SET
from k3ablate.training.spec import TrainingConfig


class Share(NamedTuple):
    """Which part of every micro-batch a process takes: the `rank`-th of `num_ranks`."""

    rank: int = 0
    num_ranks: int = 1

    def of(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        """Its rows, which are neighbours, so that all parts in the order of ranks are the whole."""
        assert len(tokens_BS) % self.num_ranks == 0, "Execution.require_shares was asked before"
        size = len(tokens_BS) // self.num_ranks
        return tokens_BS[self.rank * size : (self.rank + 1) * size]


WHOLE = Share()


def batch(corpus: Corpus, context: int, batch_size: int, seed: int, step: int) -> NDArray[np.int64]:
    """The windows of optimizer step `step`, tokens_BS: int64 (batch_size, context + 1).

    Windows start at multiples of `context` and are drawn without replacement within an epoch.
    """
    num_windows = _num_windows(corpus, TRAIN_SET, context)
    _require_windows(corpus, TRAIN_SET, context, 1)
    drawn_B = np.arange(step * batch_size, (step + 1) * batch_size)
    epoch_B, position_B = np.divmod(drawn_B, num_windows)
    window_B = np.empty_like(drawn_B)
    for epoch in np.unique(epoch_B):
        order = _order(corpus.digest, seed, int(epoch), num_windows)
        window_B[epoch_B == epoch] = order[position_B[epoch_B == epoch]]
    return _gather(corpus, TRAIN_SET, context, window_B)


def windows(
    corpus: Corpus, set_name: str, context: int, num_tokens: int, batch_size: int, share: Share = WHOLE
) -> Iterator[NDArray[np.int64]]:
    """At least `num_tokens` targets of a set, evenly spaced over it, in batches tokens_BS; the last may be smaller.

    The same for every seed. A set without that many windows is an InputError, raised by the call. All shares have
    equally many batches, none of them empty, and together each window once.
    """
    num_wanted = _num_evaluated(num_tokens, context)
    _require_windows(corpus, set_name, context, num_wanted)
    chosen = np.arange(num_wanted) * _num_windows(corpus, set_name, context) // num_wanted
    return (_gather(corpus, set_name, context, window_B) for window_B in _cut(chosen, batch_size, share))


def check_budget(corpus: Corpus, training: TrainingConfig, tokens: int) -> None:
    """InputError when `tokens`, in whole optimizer steps, need more than one epoch, or a held-out set is too small."""
    tokens_per_step = training.tokens_per_step
    needed = math.ceil(tokens / tokens_per_step) * tokens_per_step
    available = _num_windows(corpus, TRAIN_SET, training.context) * training.context
    if needed > available:
        affordable = available // tokens_per_step * tokens_per_step
        remedy = f"write at most {affordable:,}" if affordable else "write a smaller batch_size or context"
        raise InputError(
            f"tokens: a budget of {tokens:,} reads {needed:,} training tokens in steps of {tokens_per_step:,}, and "
            f"corpus {corpus.digest} holds {available:,} in windows of {training.context}; {remedy}, or a data recipe "
            "with more text"
        )
    for name in corpus.facts.sets:
        if name != TRAIN_SET:
            _require_windows(
                corpus, name, training.context, _num_evaluated(training.validation_tokens, training.context)
            )


class StepBatches(IterableDataset[torch.Tensor]):
    """Micro-batches tokens_BS of a run, or a share of each, without end, from the optimizer step that `start` names.

    `start` is asked when the iteration begins, so a trainer that restored its step continues where it stopped.
    Use it with `DataLoader(StepBatches(...), batch_size=None, num_workers=0)`.
    """

    def __init__(
        self, corpus: Corpus, training: TrainingConfig, seed: int, start: Callable[[], int], share: Share = WHOLE
    ) -> None:
        self._corpus, self._training, self._seed, self._start, self._share = corpus, training, seed, start, share

    def __iter__(self) -> Iterator[torch.Tensor]:
        training = self._training
        for step in itertools.count(self._start()):
            tokens_BS = batch(self._corpus, training.context, training.batch_size, self._seed, step)
            yield from map(self._share.of, torch.split(torch.from_numpy(tokens_BS), training.sequences_per_pass))


@functools.lru_cache(maxsize=8)
def _order(corpus_digest: str, seed: int, epoch: int, num_windows: int) -> NDArray[np.int64]:
    """A permutation of the windows, keyed by its arguments.

    Sorting raw Philox output (Salmon et al. 2011) rather than calling numpy's `permutation`: the raw stream is fixed
    for all versions of numpy, its distributions are not.
    """
    key = hashlib.sha256(f"{corpus_digest} {seed} {epoch}".encode()).digest()[:16]
    raw = np.random.Philox(key=int.from_bytes(key)).random_raw(num_windows)
    return np.argsort(raw, kind="stable")


def _cut(window_N: NDArray[np.int64], batch_size: int, share: Share) -> list[NDArray[np.int64]]:
    """The batches of one share, as many as every other share has: ranks run forward passes together."""
    if share.num_ranks == 1:
        return [window_N[first : first + batch_size] for first in range(0, len(window_N), batch_size)]
    smallest, largest = len(window_N) // share.num_ranks, math.ceil(len(window_N) / share.num_ranks)
    if smallest == 0:
        raise InputError(
            f"training.validation_tokens: {len(window_N)} windows are too few for {share.num_ranks} ranks; write "
            "more tokens, or fewer devices"
        )
    num_batches = min(smallest, math.ceil(largest * share.num_ranks / batch_size))
    return np.array_split(np.array_split(window_N, share.num_ranks)[share.rank], num_batches)


def _gather(corpus: Corpus, set_name: str, context: int, window_B: NDArray[np.int64]) -> NDArray[np.int64]:
    offset_S = np.arange(context + 1)
    tokens_BS: NDArray[np.int64] = corpus.tokens(set_name)[window_B[:, None] * context + offset_S].astype(np.int64)
    return tokens_BS


def _num_windows(corpus: Corpus, set_name: str, context: int) -> int:
    """Neighbouring windows share one token: the last target of one is the first input of the next."""
    return (corpus.num_tokens(set_name) - 1) // context


def _num_evaluated(num_tokens: int, context: int) -> int:
    """Windows that hold at least `num_tokens` targets."""
    return math.ceil(num_tokens / context)


def _require_windows(corpus: Corpus, set_name: str, context: int, num_windows: int) -> None:
    available = _num_windows(corpus, set_name, context)
    if available < num_windows:
        raise InputError(
            f"corpus {corpus.digest}: {num_windows:,} windows of {context} tokens are asked of the {set_name!r} set, "
            f"which holds {available:,}; write fewer tokens, a smaller context, or a data recipe with more text there"
        )

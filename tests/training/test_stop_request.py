"""A run that is asked to stop by a signal ends after its step, without a record, and goes on as if nothing had been."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3ablate.tracking import NoTracking
from k3ablate.training import stopping
from k3ablate.training.corpus import Corpus
from k3ablate.training.run import train
from k3ablate.training.spec import Execution, RunSpec

pytestmark = pytest.mark.slow

Spec = Callable[..., RunSpec]
QUIET = Execution(log_every_steps=1)  # no checkpoint but the one of the stop


@pytest.fixture
def _listening() -> Iterator[None]:
    previous = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    stopping.listen()
    yield
    stopping.deafen()
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_stops_after_the_step_and_the_run_goes_on_with_the_same_bits(
    number: signal.Signals, tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tiny_spec(), tmp_path / "whole", tiny_corpus, QUIET, NoTracking())
    requested, asked = stopping.requested, []

    def signalled_once() -> bool:
        asked.append(requested())
        if len(asked) == 5:
            os.kill(os.getpid(), number)
        return requested()

    folder = tmp_path / "run"
    monkeypatch.setattr(stopping, "requested", signalled_once)
    with pytest.raises(stopping.Stopped, match="asked to stop after 5 of 12 steps"):
        train(tiny_spec(), folder, tiny_corpus, QUIET, NoTracking())
    assert not (folder / "record.json").exists()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000005.ckpt"]
    stopping.deafen()
    resumed = train(tiny_spec(), folder, tiny_corpus, QUIET, NoTracking())
    assert (resumed.evaluations, resumed.num_resumes) == (whole.evaluations, 1)


@pytest.mark.usefixtures("_listening")
def test_a_request_at_the_last_step_leaves_nothing_to_be_done_but_the_record(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def at_the_last_step() -> bool:
        asked.append(len(asked))
        return len(asked) == tiny_spec().num_steps

    monkeypatch.setattr(stopping, "requested", at_the_last_step)
    record = train(tiny_spec(), tmp_path, tiny_corpus, QUIET, NoTracking())
    assert record.status == "finished"

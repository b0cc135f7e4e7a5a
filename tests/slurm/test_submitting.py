"""What `submit` hands to a real Slurm, once and never twice."""

from typing import Any

import pytest

from k3ablate.jobs.folders import State

pytestmark = pytest.mark.slurm


def test_every_run_is_trained_once_by_tasks_that_carry_several(place: Any) -> None:
    outcome = place.submit(5, "finish", runs_per_job=2)
    assert [(handed.num_tasks, handed.num_runs) for handed in outcome.handed] == [(3, 5)]
    place.wait_for_states(*[State.FINISHED] * 5)
    place.wait_for_empty_queue()
    assert place.num_attempts(5) == [1] * 5

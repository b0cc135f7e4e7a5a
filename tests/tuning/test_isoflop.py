"""Tokens per parameter at equal compute: a planted parabola, its sign and position, and the ladder that follows."""

import numpy as np
import pytest

from k3ablate.tuning.isoflop import BestRatio, Spent, best_ratio, ratio_law

EXPONENT = 0.1


def sweep(flops: float, curvature: float = 0.05, shift: float = 1.0) -> list[Spent]:
    """Six sizes at equal compute 6 N D, with the best ratio 20 at 1e18 FLOPs and its power law beyond."""
    best = 20 * (flops / 1e18) ** EXPONENT * shift
    middle = (flops / 6 / 20) ** 0.5
    runs = []
    for index, factor in enumerate(np.geomspace(0.4, 2.5, 6)):
        params = round(middle * factor)
        tokens = round(flops / 6 / params)
        loss = 3 + curvature * np.log(tokens / params / best) ** 2
        runs.append(Spent(f"s{index}", params, tokens, float(loss)))
    return runs


def test_the_planted_ratio_is_found_whatever_the_budget() -> None:
    for flops in (1e17, 1e18, 1e19):
        found = best_ratio(flops, sweep(flops))
        assert found.is_claimed
        assert found.optimum.value == pytest.approx(20 * (flops / 1e18) ** EXPONENT, rel=1e-3)
        assert found.num_sizes == 6


@pytest.mark.parametrize("runs", [sweep(1e18, shift=200), sweep(1e18, shift=0.005), sweep(1e18, curvature=-0.05)])
def test_a_parabola_without_a_minimum_among_the_sizes_claims_nothing(runs: list[Spent]) -> None:
    found = best_ratio(1e18, runs)
    assert not found.is_claimed
    assert found.optimum.interval is None
    assert found.optimum.is_at_edge


def test_one_size_is_no_sweep() -> None:
    found = best_ratio(1e18, sweep(1e18)[:1] * 3)
    assert not found.is_claimed
    assert "1 size: a parabola takes 3 or more" in found.optimum.note


def test_the_law_gives_back_the_planted_exponent_and_needs_two_budgets() -> None:
    generator = np.random.default_rng(0)

    def noisy(flops: float) -> BestRatio:
        runs = [
            Spent(run.size, run.active_params, run.tokens, run.loss + 1e-4 * float(generator.standard_normal()))
            for run in sweep(flops)
        ]
        return best_ratio(flops, runs)

    law = ratio_law([noisy(flops) for flops in (1e17, 1e18, 1e19)])
    assert law is not None
    assert law.exponent == pytest.approx(EXPONENT, abs=0.01)
    assert law.at(1e18) == pytest.approx(20, rel=0.02)
    assert ratio_law([noisy(1e18)]) is None

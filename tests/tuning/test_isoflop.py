"""Tokens per parameter at equal compute: a planted parabola, its sign and position, and the ladder that follows."""

import numpy as np
import pytest

from k3ablate.tuned import optimal_ratio
from k3ablate.tuning.isoflop import BestRatio, Spent, best_ratio, ratio_law, rung

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


# Of a planted L = E + A N^-alpha + B D^-beta with C = 6 N D (Hoffmann et al. 2022, approach 3; their exponents).
ALPHA, BETA, A, B = 0.34, 0.28, 406.4, 410.7


def best_params(flops: float) -> float:
    """N of least loss at C: where alpha A N^-alpha = beta B D^-beta."""
    gain = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    return float(gain * (flops / 6) ** (BETA / (ALPHA + BETA)))


def chinchilla(flops: float, generator: np.random.Generator, noise: float) -> BestRatio:
    """Nine sizes about the best at equal compute, three seeds each."""
    runs = []
    for factor in np.geomspace(0.5, 2, 9):
        params = round(best_params(flops) * factor)
        tokens = round(flops / 6 / params)
        loss = 1.69 + A * params**-ALPHA + B * tokens**-BETA
        runs += [Spent(f"{factor:.3g}", params, tokens, loss + noise * generator.standard_normal()) for _ in range(3)]
    return best_ratio(flops, runs)


BUDGETS = (1e18, 3e18, 1e19, 3e19)


def test_the_ladder_gives_sizes_back_their_planted_optimal_tokens() -> None:
    found = [chinchilla(flops, np.random.default_rng(0), 1e-9) for flops in BUDGETS]
    law = ratio_law(found)
    assert law is not None
    assert law.exponent == pytest.approx((ALPHA - BETA) / (ALPHA + BETA), abs=0.01)
    for flops in (1e18, 5e18, 3e19):
        params = best_params(flops)
        one = rung(found, law, round(params), 6 * params**2)
        assert one.flops == pytest.approx(flops, rel=0.03)
        assert one.tokens == pytest.approx(flops / 6 / params, rel=0.03)
        assert one.ratio == pytest.approx(optimal_ratio(law, 6 * params**2))
        assert one.tokens == pytest.approx(one.ratio * one.active_params, abs=1)
        assert law.at(one.flops) == pytest.approx(one.ratio)
    beyond = best_params(3e20)
    assert rung(found, law, round(beyond), 6 * beyond**2).beyond == pytest.approx(10, rel=0.1)


def test_the_ratios_of_a_ladder_lie_within_their_intervals_as_often_as_these_say() -> None:
    # Noise of a seed at which the parabola's own error, 0.7 percent of the ratio over these sizes, is the lesser one.
    generator, num_draws, num_inside = np.random.default_rng(1), 150, 0
    params = best_params(5e18)
    truth = 5e18 / 6 / params**2
    for _ in range(num_draws):
        found = [chinchilla(flops, generator, 4e-3) for flops in BUDGETS]
        law = ratio_law(found)
        assert law is not None
        one = rung(found, law, round(params), 6 * params**2)
        num_inside += one.low < truth < one.high
        assert one.high / one.low < 2
    assert 0.9 < num_inside / num_draws <= 1

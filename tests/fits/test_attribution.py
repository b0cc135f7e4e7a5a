"""From arms with levels to what may be said of them: designs, targets, checks, claims, and what is missing."""

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from k3ablate.config import InputError
from k3ablate.fits.attribution import BEYOND_PAIRS, NO_ARM, TOGETHER, UNATTRIBUTED, Split, attribute_claims, split
from k3ablate.fits.coalitions import Design, design
from k3ablate.fits.forms import Array
from k3ablate.fits.split import Coalition

COMPONENTS = ("attention", "residual", "balancing")
GAINS = {"attention": 0.4, "residual": 0.2, "balancing": 0.1}


def table(*arms: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Arm -> component -> level, where it differs from the baseline's; the A/A arm last."""
    return {"+".join(changed) or "k2": dict.fromkeys(changed, "k3") for changed in arms} | {"a/a": {}}


SINGLES = [(name,) for name in COMPONENTS]
FACTORIAL = table(*(c for size in range(4) for c in itertools.combinations(COMPONENTS, size)))
ONE_AT_A_TIME = table((), *SINGLES, COMPONENTS)
LEAVE_ONE_OUT = table((), *itertools.combinations(COMPONENTS, 2), COMPONENTS)


def gains(planned: Design, interaction: float = -0.1, num_draws: int = 20) -> dict[Coalition, Array]:
    """Planted ln m of every arm: gains that add up, and one interaction of attention and residual."""
    generator = np.random.default_rng(4)
    values = {}
    for coalition in planned.arms:
        components = {planned.component_of[name] for name in coalition}
        value = sum(GAINS[name] for name in components) + interaction * ({"attention", "residual"} <= components)
        noise = 0.01 * generator.normal(size=num_draws) if coalition else np.zeros(num_draws)
        values[coalition] = np.concatenate([[value], value + noise])
    return values


def split_of(changed: Mapping[str, Mapping[str, str]], without: tuple[str, ...] = (), **options: float) -> Split:
    planned = design(changed, "k2")
    values = {c: value for c, value in gains(planned).items() if planned.arms[c] not in without}
    return split(planned, values, dict.fromkeys(without, "no run of this arm finished"), **options)


def logs(found: Split) -> dict[str, float]:
    return {part.name: part.effect.log for part in found.parts}


def adds_up(found: Split) -> None:
    assert found.whole is not None
    assert sum(part.effect.log for part in found.parts) == pytest.approx(found.whole.log, abs=1e-12)
    assert math.prod(part.effect.factor for part in found.parts) == pytest.approx(found.whole.factor, rel=1e-12)
    shares = [part.share for part in found.parts if part.share is not None]
    assert len(shares) == len(found.parts)
    assert sum(shares) == pytest.approx(1.0, abs=1e-12)


def test_the_default_target_changes_every_component_and_repeats_are_checks() -> None:
    planned = design(FACTORIAL, "k2")
    assert planned.target == "attention+residual+balancing"
    assert planned.names == ("attention=k3", "residual=k3", "balancing=k3")
    assert planned.repeats == {"a/a": "k2"}
    assert len(planned.arms) == 8


def test_a_full_factorial_is_split_by_shapley_values() -> None:
    found = split_of(FACTORIAL)
    assert (found.method, found.whole_from, found.missing, found.model) == ("shapley", "target arm", (), None)
    assert logs(found) == pytest.approx({"attention": 0.35, "residual": 0.15, "balancing": 0.1})
    adds_up(found)
    attention = found.components[0]
    assert attention.first_in is not None
    assert attention.last_in is not None
    assert attention.gap is not None
    assert (attention.first_in.log, attention.last_in.log) == (pytest.approx(0.4), pytest.approx(0.3))
    assert attention.gap.log == pytest.approx(-0.1)
    by_pair = {(pair.first, pair.second): pair.effect for pair in found.pairs}
    planted, none = by_pair["attention", "residual"], by_pair["attention", "balancing"]
    assert planted is not None
    assert none is not None
    assert (planted.log, none.log) == (pytest.approx(-0.1), pytest.approx(0.0, abs=1e-12))
    assert not none.told_from_one
    assert found.beyond_pairs is not None
    assert found.beyond_pairs.log == pytest.approx(0.0, abs=1e-12)


def test_one_at_a_time_gives_first_in_and_one_remainder() -> None:
    found = split_of(ONE_AT_A_TIME)
    assert found.method == "first in"
    assert logs(found) == pytest.approx(GAINS | {TOGETHER: -0.1})
    adds_up(found)
    assert all(row.part is None and row.last_in is None for row in found.components)
    assert all(pair.effect is None for pair in found.pairs)
    assert found.model is not None
    assert found.model.not_told == (("attention x residual", "attention x balancing", "residual x balancing"),)
    assert {(gone.arm, gone.reason) for gone in found.missing} == {
        (f"{first} + {second}", NO_ARM) for first, second in itertools.combinations(COMPONENTS, 2)
    }


def test_leave_one_out_gives_last_in_and_one_remainder() -> None:
    found = split_of(LEAVE_ONE_OUT)
    assert found.method == "last in"
    assert logs(found) == pytest.approx({"attention": 0.3, "residual": 0.1, "balancing": 0.1, TOGETHER: 0.1})
    adds_up(found)
    assert all(row.first_in is None for row in found.components)


def test_a_factorial_without_one_arm_falls_to_the_pairwise_model_and_says_what_is_lost() -> None:
    found = split_of(FACTORIAL, without=("residual",))
    assert found.method == "pairwise"
    assert found.whole_from == "target arm"
    (gone,) = found.missing
    assert (gone.arm, gone.reason) == ("residual", "no run of this arm finished")
    assert gone.lost == ("first in of residual", "the Shapley values")
    assert logs(found) == pytest.approx({"attention": 0.35, "residual": 0.15, "balancing": 0.1, BEYOND_PAIRS: 0.0})
    adds_up(found)


def test_without_the_target_the_total_is_the_models_and_says_so() -> None:
    found = split_of(FACTORIAL, without=("attention+residual+balancing",))
    assert (found.method, found.whole_from, found.total) == ("pairwise", "pairwise model", None)
    assert "the total" in found.missing[0].lost
    adds_up(found)
    assert found.whole is not None
    assert found.whole.log == pytest.approx(0.6)


def test_single_arms_alone_have_no_total() -> None:
    found = split_of(table((), *SINGLES))
    assert (found.method, found.whole, found.whole_from, found.target) == ("first in", None, "unknown", None)
    assert logs(found) == pytest.approx(GAINS)
    assert all(part.share is None for part in found.parts)


def test_what_no_arm_shows_alone_is_named_as_not_split() -> None:
    found = split_of(table((), ("attention",), COMPONENTS))
    assert logs(found) == pytest.approx({"attention": 0.4, "not split: residual, balancing and all interactions": 0.2})
    adds_up(found)


def test_a_claimed_total_leaves_the_rest_unattributed() -> None:
    found = split_of(FACTORIAL, claimed=2.5)
    assert found.whole_from == "claimed"
    assert found.whole is not None
    assert found.whole.log_interval is None
    assert logs(found)[UNATTRIBUTED] == pytest.approx(math.log(2.5) - 0.6)
    adds_up(found)
    assert found.total is not None
    assert found.total.log == pytest.approx(0.6)
    singles = split_of(table((), *SINGLES), claimed=2.5)
    assert logs(singles)[UNATTRIBUTED] == pytest.approx(math.log(2.5) - 0.7)
    adds_up(singles)


def test_published_claims() -> None:
    """1.16 (KDA hybrid) times 1.25 (attention residuals) is 1.45 of 2.5; 1.72 has no public source."""
    parts = attribute_claims({"KDA": 1.16, "AttnRes": 1.25}, 2.5)
    rest = parts[-1]
    assert rest.name == UNATTRIBUTED
    assert parts[0].effect.factor * parts[1].effect.factor == pytest.approx(1.45)
    assert rest.effect.factor == pytest.approx(1.72, abs=0.005)
    assert rest.share == pytest.approx(0.6, abs=0.01)
    assert rest.effect.log_interval is None
    assert sum(part.effect.log for part in parts) == pytest.approx(math.log(2.5), abs=1e-12)


@pytest.mark.parametrize("claimed", [0.0, -2.0, math.inf, math.nan])
def test_a_claim_that_is_no_multiplier_is_refused(claimed: float) -> None:
    with pytest.raises(InputError, match=r"total: found .*; a multiplier is a positive number"):
        split_of(FACTORIAL, claimed=claimed)


def test_shares_of_a_total_that_may_be_nothing_are_not_given() -> None:
    planned = design(FACTORIAL, "k2")
    values = {c: value - value[0] + 1e-4 for c, value in gains(planned).items()} | {frozenset(): np.zeros(21)}
    found = split(planned, values, {})
    assert found.whole is not None
    assert not found.whole.told_from_one
    assert all(part.share is None for part in found.parts)


def test_further_levels_are_other_targets_and_enter_the_model() -> None:
    changed = {
        f"{attention} {residual}": ({} if attention == "mla" else {"attention": attention})
        | ({} if residual == "none" else {"residual": residual})
        for attention in ("mla", "kda")
        for residual in ("none", "block", "full")
    }
    planned = design(changed, "mla none")
    assert (planned.target, planned.other_targets) == ("kda full", ("kda block",))
    assert planned.names == ("attention=kda", "residual=full")
    assert [planned.label(name) for name in planned.names] == ["attention", "residual=full"]
    assert planned.missing(planned.arms) == ()
    block = design(changed, "mla none", "kda block")
    assert block.names == ("attention=kda", "residual=block")
    one = design(changed, "mla none", "mla full")
    assert one.names == ("residual=full",)
    found = split(one, gains(one), {})
    assert (found.method, logs(found)) == ("shapley", {"residual=full": pytest.approx(0.2)})


def test_wrong_targets_are_refused_with_what_to_write() -> None:
    with pytest.raises(InputError, match="target: a/a has the levels of k2, so that there is nothing to split"):
        design(FACTORIAL, "k2", "a/a")
    with pytest.raises(InputError, match="target: no arm 'atention' in the table; did you mean 'attention'"):
        design(FACTORIAL, "k2", "atention")
    with pytest.raises(InputError, match="baseline: no arm 'K-3'"):
        design(FACTORIAL, "K-3")


def test_a_table_without_components_is_refused_with_the_option() -> None:
    with pytest.raises(InputError, match=r"no component differs between k2 and another arm; .* --component"):
        design({"k2": {}, "k3": {}}, "k2")


def test_too_many_components_are_refused() -> None:
    names = [f"c{index}" for index in range(13)]
    with pytest.raises(InputError, match="13 components make 8,192 coalitions"):
        design({"base": {}, "all": dict.fromkeys(names, "1")}, "base")

"""Plans are pure, matched, costed and refuse arms that come out alike."""

from pathlib import Path

import pytest

from k3ablate.config import InputError
from k3ablate.experiment import load
from k3ablate.model.counting import count
from k3ablate.model.decoder import Decoder
from k3ablate.model.sizes import LARGEST_MISMATCH
from k3ablate.plan import UNBUILT, Plan, data_recipes, expand

EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*.yaml"))
DEMO = Path(__file__).parent.parent / "experiments" / "demo.yaml"


def built(_: object) -> str:
    return "c0ffee"


def digests(plan: Plan) -> set[str]:
    return {row.label.digest for row in plan.rows}


def unbuilt(_: object) -> None:
    return None


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_published_experiments_plan_and_build(path: Path) -> None:
    plan = expand(load(path), built)
    assert [row.label.digest for row in plan.rows] == [row.spec.digest() for row in plan.rows if row.spec]
    assert [row.label.seed for row in plan.rows] == [row.spec.seed for row in plan.rows if row.spec]
    models = {row.spec.model.digest(): row.spec for row in plan.rows if row.spec}
    for spec in models.values():
        decoder = Decoder(spec.model)
        biases = sum(balancer.bias_E.numel() for balancer in decoder.balancers())
        real = sum(parameter.numel() for parameter in decoder.parameters()) + biases
        assert real == count(spec.model, spec.training.context).total_params


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_arms_are_matched_and_see_the_same_tokens(path: Path) -> None:
    plan = expand(load(path), built)
    assert all(abs(row.label.mismatch) <= LARGEST_MISMATCH for row in plan.rows)
    by_size: dict[str, set[int]] = {}
    for row in plan.rows:
        by_size.setdefault(row.label.size, set()).add(row.tokens)
    assert all(len(tokens) == 1 for tokens in by_size.values())


def test_rows_are_the_product_and_digests_are_distinct() -> None:
    experiment = load(DEMO)
    plan = expand(experiment, built)
    assert len(plan.rows) == 7 * len(experiment.sizes) * len(experiment.seeds)
    assert len(digests(plan)) == len(plan.rows)
    assert expand(experiment, built) == plan


def test_labels_do_not_enter_the_digest() -> None:
    experiment = load(DEMO)
    renamed = experiment.replaced("names.full", "kimi").replaced("name", "other")
    before, after = expand(experiment, built), expand(renamed, built)
    assert [row.label.digest for row in before.rows] == [row.label.digest for row in after.rows]
    assert after.rows[-3].label.arm == "kimi"


def test_another_corpus_is_another_run() -> None:
    experiment = load(DEMO)
    one, two = expand(experiment, built), expand(experiment, lambda _: "other")
    assert not digests(one) & digests(two)


def test_a_plan_without_its_corpus_has_costs_but_no_digests() -> None:
    plan = expand(load(DEMO), unbuilt)
    assert not any(row.spec for row in plan.rows)
    assert {row.label.digest for row in plan.rows} == {UNBUILT}
    assert [row.flops for row in plan.rows] == [row.flops for row in expand(load(DEMO), built).rows]


def test_cost_is_three_forwards_per_token() -> None:
    row = expand(load(DEMO), built).rows[0]
    assert row.flops == 3 * row.counts.flops_per_token * row.tokens
    assert row.spec is not None
    assert row.tokens == row.spec.num_steps * row.spec.training.tokens_per_step


def test_flops_budget_gives_equal_compute() -> None:
    experiment = load(DEMO).replaced("budgets", [{"kind": "flops", "flops": 1e12}])
    for row in expand(experiment, built).rows:
        assert row.flops == pytest.approx(1e12, rel=0.02)


def test_several_budgets_are_points_of_their_own() -> None:
    budgets = [{"kind": "tokens_per_parameter", "ratio": ratio} for ratio in (2, 4)]
    rows = expand(load(DEMO).replaced("tuning", None).replaced("budgets", budgets), built).rows
    assert {row.label.size for row in rows} == {f"{size}@{ratio}tpp" for size in ("xs", "s", "m") for ratio in (2, 4)}
    assert len({(row.label.arm, row.label.size, row.label.seed) for row in rows}) == len(rows)


def test_no_matching_leaves_the_ratios_alone() -> None:
    experiment = load(DEMO).replaced("match", "none")
    widths = {row.spec.model.width for row in expand(experiment, built).rows if row.spec}
    assert widths == {size.width for size in experiment.sizes}


def test_active_parameters_can_be_matched_instead() -> None:
    plan = expand(load(DEMO).replaced("match", "active_parameters"), built)
    baseline = {row.label.size: row.counts.active_params for row in plan.rows if row.label.arm == "k2"}
    for row in plan.rows:
        assert abs(row.counts.active_params / baseline[row.label.size] - 1) <= LARGEST_MISMATCH


def test_arms_that_come_out_alike_are_refused() -> None:
    experiment = load(DEMO.with_name("attnres.yaml")).replaced(
        "sizes", [{"name": "xs", "width": 32, "num_layers": 4, "head_width": 16, "num_active": 2}]
    )
    with pytest.raises(InputError, match=r"arms \+residual=block-4 and \+residual=block-8 are the same run at size xs"):
        expand(experiment, built)


def test_two_sizes_that_are_one_are_refused() -> None:
    size = {"width": 32, "num_layers": 4, "head_width": 8, "num_active": 2}
    experiment = (
        load(DEMO).replaced("tuning", None).replaced("sizes", [{"name": name, **size} for name in ("one", "two")])
    )
    with pytest.raises(InputError, match=r"sizes one and two are the same run for arm k2, seed 0"):
        expand(experiment, built)


def test_budgets_that_share_their_first_digits_stay_apart() -> None:
    budgets = [{"kind": "tokens", "tokens": tokens} for tokens in (1_200_000, 1_201_000)]
    names = {
        row.label.size for row in expand(load(DEMO).replaced("tuning", None).replaced("budgets", budgets), built).rows
    }
    assert {"xs@1200000t", "xs@1201000t"} <= names


def test_a_depth_without_routed_layers_is_refused() -> None:
    experiment = load(DEMO).replaced("sizes", [{"name": "xs", "width": 32, "num_layers": 1, "num_active": 2}])
    with pytest.raises(InputError, match=r"size xs: num_layers 1 leaves no layer .* write at least 2"):
        expand(experiment, built)


def test_one_corpus_for_arms_that_share_their_data() -> None:
    assert len(data_recipes(load(DEMO))) == 1


@pytest.mark.parametrize(
    ("vary", "expected"),
    [
        ("both", {0: (0, None), 1: (1, None), 100: (100, None), 101: (101, None)}),
        ("initialisation", {0: (0, None), 1: (1, 0), 100: (100, 0), 101: (101, 0)}),
        ("data_order", {0: (0, None), 1: (0, 1), 100: (0, 100), 101: (0, 101)}),
    ],
)
def test_seeds_vary_initialisation_and_order_together_or_apart(
    vary: str, expected: dict[int, tuple[int, int | None]]
) -> None:
    rows = expand(load(DEMO).replaced("vary", vary), built).rows
    assert {row.label.seed: (row.spec.seed, row.spec.data_seed) for row in rows if row.spec} == expected
    assert all(row.spec.digest() == row.label.digest for row in rows if row.spec)
    assert {row.label.varied for row in rows} == {vary}
    assert len(digests(Plan("demo", rows))) == len(rows)


def test_the_first_seed_is_one_run_whatever_varies() -> None:
    plans = [expand(load(DEMO).replaced("vary", vary), built) for vary in ("both", "initialisation", "data_order")]
    shared = set.intersection(*map(digests, plans))
    assert shared == {row.label.digest for row in plans[0].rows if row.label.seed == 0}

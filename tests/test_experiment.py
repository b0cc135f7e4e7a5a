"""Reading experiments: every published one loads; every mistake is refused with a message that teaches."""

from pathlib import Path

import pytest

from k3ablate.config import InputError, Tree, read_yaml, write_yaml
from k3ablate.experiment import arm_differences, load, make_arms, setting

EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*.yaml"))
DEMO = Path(__file__).parent.parent / "experiments" / "demo.yaml"


def written(tmp_path: Path, **changes: Tree) -> Path:
    """The demo with top-level keys replaced (or removed where the value is None)."""
    tree = {**read_yaml(DEMO), **changes}
    path = tmp_path / "changed.yaml"
    write_yaml({key: value for key, value in tree.items() if value is not None}, path)
    return path


def component(name: str, changes: Tree, **more: Tree) -> dict[str, Tree]:
    return {name: {"levels": {"off": {}, "on": changes}, **more}}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_published_experiments_load_under_their_own_name(path: Path) -> None:
    experiment = load(path)
    assert experiment.name == path.stem
    assert experiment.question.endswith("?")


def test_demo_has_both_ends_every_single_change_and_a_twin() -> None:
    arms = make_arms(load(DEMO))
    assert [arm.name for arm in arms] == [
        "k2", "+attention", "+residual", "+feed_forward", "+balancing", "k3", "a/a",
    ]  # fmt: skip
    assert arms[-1].levels == arms[0].levels
    assert not set(arms[-1].seeds) & set(arms[0].seeds)


def test_factorial_has_every_coalition_once() -> None:
    experiment = load(DEMO.with_name("components.yaml"))
    arms = [arm for arm in make_arms(experiment) if arm.name != "a/a"]
    assert len(arms) == 16
    assert len({tuple(arm.levels.values()) for arm in arms}) == 16
    assert arms[0].name == "k2"
    assert arms[-1].name == "k3"


def test_leave_one_out_takes_one_level_back(tmp_path: Path) -> None:
    arms = {arm.name: dict(arm.levels) for arm in make_arms(load(written(tmp_path, design="leave_one_out")))}
    assert arms["k3-attention"] == {"attention": "k2", "residual": "k3", "feed_forward": "k3", "balancing": "k3"}
    assert set(arms) == {"k2", "k3-attention", "k3-residual", "k3-feed_forward", "k3-balancing", "k3", "a/a"}


def test_single_changes_stay_in_their_component() -> None:
    changed = arm_differences(load(DEMO))
    assert changed["k2"] == changed["a/a"] == []
    assert {difference.path.split(".")[1] for difference in changed["+attention"]} == {"mixer"}
    assert {difference.path.split(".")[1] for difference in changed["+balancing"]} == {"balancing"}
    kind = next(d for d in changed["+balancing"] if d.path == "model.balancing.kind")
    assert (kind.before, kind.after) == ("sign_update", "quantile")


def test_from_takes_the_same_path_of_the_recipe() -> None:
    experiment = load(DEMO)
    full = next(arm for arm in make_arms(experiment) if arm.name == "k3")
    assert setting(experiment, full).model.mixer.main.kind == "kda"
    assert setting(experiment, full).model.width == 7168


DENSE = {"main": {"kind": "dense", "hidden_width": 64}}
MISTAKES = {
    "unknown key": ({"sezes": []}, r"sezes: unknown key .* did you mean 'sizes'"),
    "unknown tag": (
        {"components": component("balancing", {"model.balancing": {"kind": "quantle"}})},
        r"model.balancing: unknown kind 'quantle'; write one of .*'quantile'",
    ),
    "arm that changes nothing": (
        {"components": component("balancing", {"model.balancing": {"kind": "sign_update", "rate": 0.001}})},
        r"components.balancing.levels.on: model.balancing: this arm changes nothing",
    ),
    "no such path": (
        {"components": component("attention", {"model.mixr": 1})},
        r"model.mixr: no such path here; did you mean 'mixer'",
    ),
    "beyond the component": (
        {"components": component("attention", {"model.residual": {"kind": "full_attnres"}})},
        r"model.residual is not part of attention \(model.mixer\)",
    ),
    "component without paths": (
        {"components": component("colour", {"training.context": 64})},
        r"components.colour: not one of attention, .* write `paths:`",
    ),
    "balancing without a router": (
        {"components": component("feed_forward", {"model.feed_forward": DENSE})},
        r"balancing is 'sign_update' but feed_forward.main is 'dense', which has no router",
    ),
    "width that does not divide": (
        {"sizes": [{"name": "xs", "width": 30, "num_layers": 4}]},
        r"width 30 is not a multiple of 4; write 28 or 32",
    ),
    "batch that does not divide": (
        {"baseline": {**read_yaml(DEMO)["baseline"], "set": {"training.micro_batch_size": 3}}},
        r"micro_batch_size 3 does not divide batch_size 8",
    ),
    "unknown recipe": (
        {"baseline": {"model": "kimi-k9", "data": "python", "training": "cpu"}},
        r"changed.yaml: baseline.model: recipes/model/kimi-k9.yaml: no such model recipe; write one of .*kimi-k2",
    ),
    "unknown from": (
        {"components": component("attention", {"model.mixer.side": {"from": "kimi-k3"}})},
        r"model.mixer.side: recipe model/kimi-k3 has no mixer.side",
    ),
    "from below no recipe": (
        {"components": component("attention", {"mdl.mixer": {"from": "kimi-k3"}})},
        r"components.attention.levels.on.mdl.mixer: no such path here; paths begin with model, data, training",
    ),
    "level that is text": (
        {"components": {"attention": {"levels": {"off": {}, "on": "kimi-k3"}}}},
        r"components.attention.levels.on: found 'kimi-k3'; write a mapping of dotted paths to values",
    ),
    "level that is a list": (
        {"components": {"attention": {"levels": {"off": [], "on": {}}}}},
        r"components.attention.levels.off: found \[\]; write a mapping",
    ),
    "set that is a list": (
        {"baseline": {**read_yaml(DEMO)["baseline"], "set": ["training.batch_size"]}},
        r"baseline.set: found \['training.batch_size'\]; write a mapping of dotted paths to values",
    ),
    "components that are a list": ({"components": ["attention"]}, r"components: found \['attention'\]"),
    "baseline that is text": ({"baseline": "kimi-k2"}, r"baseline: found 'kimi-k2'"),
    "negative seed": ({"seeds": [-1]}, r"seeds.0: found -1; Input should be greater than or equal to 0"),
    "odd heads": (
        {"sizes": [{"name": "xs", "width": 32, "num_layers": 4, "head_width": 7}]},
        r"sizes.0.head_width: found 7; Input should be a multiple of 2",
    ),
    "one active expert": (
        {"sizes": [{"name": "xs", "width": 32, "num_layers": 4, "num_active": 1}]},
        r"sizes.0.num_active: found 1; Input should be greater than or equal to 2",
    ),
    "component named like a column": (
        {"components": component("loss", {"training.context": 64}, paths=["training.context"])},
        r"components.loss: is a column of every table of runs; write another name",
    ),
    "two components on one path": (
        {
            "components": {
                **component("attention", {"model.mixer": {"from": "kimi-k3"}}),
                **component("heads", {"model.mixer.main.num_heads": 32}, paths=["model.mixer.main.num_heads"]),
            }
        },
        r"components.heads and components.attention may both change model.mixer.main.num_heads",
    ),
    "component name": ({"components": component("At tention", {})}, r"components.At tention: found 'At tention'"),
    "size name": ({"sizes": [{"name": "x\ns", "width": 32, "num_layers": 4}]}, r"sizes.0.name: found 'x\\ns'"),
    "empty arm name": ({"names": {"baseline": ""}}, r"names.baseline: found ''"),
    "replicate seed twice": ({"replicate_seeds": [5, 5]}, r"replicate_seeds: 5 stands there twice"),
    "seed beyond 64 bits": ({"seeds": [2**63]}, r"seeds.0: found 9223372036854775808; Input should be less than"),
    "endless budget": (
        {"budgets": [{"kind": "tokens", "tokens": 10**400}]},
        r"budgets.0.tokens: found 1000.*; Input should be less than or equal to",
    ),
    "list that is none": ({"seeds": 3}, r"seeds: found 3; write a list"),
    "budget without kind": ({"budgets": [{"tokens": 5}]}, r"budgets.0: .*write a mapping with `kind:`, one of tokens"),
    "huge width": ({"sizes": [{"name": "x", "width": 10**9, "num_layers": 4}]}, r"sizes.0.width: found 1000000000"),
    "set what sizes decide": (
        {"baseline": {**read_yaml(DEMO)["baseline"], "set": {"model.width": 64}}},
        r"baseline.set.model.width: comes from `sizes`, which would overwrite it; remove it",
    ),
    "set a path that is a number": (
        {"baseline": {**read_yaml(DEMO)["baseline"], "set": {3: 1}}},
        r"baseline.set: 3: no such path here; write one of model, data, training",
    ),
    "level path that is a number": (
        {"components": {"attention": {"levels": {"off": {}, "on": {5: {"from": "kimi-k3"}}}}}},
        r"components.attention.levels.on.5: no such path here; paths begin with model, data, training",
    ),
    "shared seeds": ({"replicate_seeds": [0]}, r"replicate_seeds: \[0\] are the baseline's own seeds"),
    "size twice": (
        {"sizes": [{"name": "xs", "width": 32, "num_layers": 4}, {"name": "xs", "width": 64, "num_layers": 4}]},
        r"sizes: xs stands there twice",
    ),
    "list without arms": ({"design": "list"}, r"`arms` belongs to design: list"),
    "unknown level": (
        {"design": "list", "arms": [{"name": "odd", "levels": {"attention": "k4"}}]},
        r"arms.odd.attention: no level 'k4'; write one of k2, k3",
    ),
    "arm named like the baseline": (
        {"design": "list", "arms": [{"name": "k2", "levels": {"attention": "k3"}}]},
        r"arms: k2 stands for two arms",
    ),
    "arm listed twice": (
        {"design": "list", "arms": [{"name": name, "levels": {"attention": "k3"}} for name in ("one", "two")]},
        r"arms.two: has the levels of one; list each combination once",
    ),
    "first level changes something": (
        {"components": {"attention": {"levels": {"on": {"model.mixer": {"from": "kimi-k3"}}, "off": {}}}}},
        r"the first level 'on' is the baseline's and must be \{\}",
    ),
    "missing question": ({"question": None}, r"question: this key is missing"),
    "no sizes": ({"sizes": []}, r"sizes: found \[\]"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_explained(tmp_path: Path, changes: dict[str, Tree], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load(written(tmp_path, **changes))
    assert str(error.value).count("\n") == 0  # one message


def test_files_that_are_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(InputError, match="is a mapping of keys"):
        load(tmp_path / "list.yaml")

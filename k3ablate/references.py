"""What do the names in an experiment file stand for? Recipes under the baseline, sizes and `tuned`, `from:` in levels.

The tree that comes out names no recipe any more; whether it is an experiment is decided in `experiment`.
"""

from collections.abc import Callable, Mapping

from k3ablate import tuned
from k3ablate.config import InputError, Tree, located, override, parse, read_yaml
from k3ablate.recipes import recipe, recipe_path, tuned_recipes

RECIPE_KINDS = ("model", "data", "training")

# What a run's model does not take from the baseline, whatever stands there.
DERIVED = {
    "model.width": "`sizes`",
    "model.num_layers": "`sizes`",
    "model.vocabulary_size": "the tokenizer of `data`",
}

Complete = Callable[[Tree, str], Tree]  # (baseline, source) -> the baseline with every default written out


def resolved(tree: Mapping[str, Tree], source: str, complete: Complete) -> dict[str, Tree]:
    """`tree` with every name replaced by what it stands for; InputError with the place of a name that is unknown."""
    changed = dict(tree)
    if isinstance(tree.get("baseline"), Mapping):
        changed["baseline"] = _baseline(tree["baseline"], f"{source}: baseline", complete)
    if isinstance(tree.get("sizes"), str):
        with located(f"{source}: sizes"):
            changed["sizes"] = recipe("sizes", tree["sizes"])
    if tree.get("tuned") is not None:
        with located(f"{source}: tuned"):
            changed["tuned"] = tuned.resolved(tree["tuned"], tuned_recipes)
    if isinstance(tree.get("budgets"), list):
        changed["budgets"] = [_budget(one, f"{source}: budgets.{index}") for index, one in enumerate(tree["budgets"])]
    if isinstance(tree.get("components"), Mapping):
        changed["components"] = {
            name: _component(component, f"{source}: components.{name}")
            for name, component in tree["components"].items()
        }
    return changed


def _baseline(tree: Mapping[str, Tree], source: str, complete: Complete) -> Tree:
    """Recipe names under model, data and training become trees; `set:` overrides single values of them."""
    baseline = {key: value for key, value in tree.items() if key != "set"}
    for kind in RECIPE_KINDS:
        if isinstance(baseline.get(kind), str):
            with located(f"{source}.{kind}"):
                baseline[kind] = recipe(kind, baseline[kind])
    if "set" not in tree:
        return baseline
    _require_mapping(tree["set"], f"{source}.set", "dotted paths to values, e.g. {training.batch_size: 8}")
    completed = complete(baseline, source)
    for path, value in tree["set"].items():
        if path in DERIVED:
            raise InputError(f"{source}.set.{path}: comes from {DERIVED[path]}, which would overwrite it; remove it")
        completed = override(completed, str(path), value, source=f"{source}.set")
    return completed


def _budget(budget: Tree, source: str) -> Tree:
    """`{kind: compute_optimal, from: X}` with the law of the ladder that `isoflop X` wrote."""
    if not isinstance(budget, Mapping) or budget.get("kind") != "compute_optimal" or "law" in budget:
        return budget
    name = budget.get("from")
    if not isinstance(name, str):
        raise InputError(f"{source}: found {dict(budget)!r}; write {{kind: compute_optimal, from: X}} with a swept X")
    rest = {key: value for key, value in budget.items() if key != "from"}
    try:
        path = recipe_path("ladders", name)
    except InputError as error:
        raise InputError(f"{source}: {error}; `k3ablate isoflop {name}` writes it") from None
    return {**rest, **parse(tuned.Ladder, read_yaml(path), source=str(path)).budget()}


def _component(component: Tree, source: str) -> Tree:
    if not isinstance(component, Mapping) or not isinstance(component.get("levels"), Mapping):
        return component
    return {**component, "levels": {name: _level(level, f"{source}.levels.{name}")
                                    for name, level in component["levels"].items()}}  # fmt: skip


def _level(level: Tree, source: str) -> Tree:
    _require_mapping(level, source, "dotted paths to values, {} for the baseline's level")
    return {path: _taken(str(path), value, f"{source}.{path}") for path, value in level.items()}


def _taken(path: str, value: Tree, source: str) -> Tree:
    """`{from: kimi-k3}` at path model.mixer is the `mixer` of recipes/model/kimi-k3.yaml."""
    if not isinstance(value, Mapping) or set(value) != {"from"}:
        return value
    kind, *keys = path.split(".")
    if kind not in RECIPE_KINDS:
        raise InputError(f"{source}: no such path here; paths begin with {', '.join(RECIPE_KINDS)}")
    with located(source):
        found = recipe(kind, str(value["from"]))
    for key in keys:
        if not isinstance(found, Mapping) or key not in found:
            raise InputError(f"{source}: recipe {kind}/{value['from']} has no {'.'.join(keys)}")
        found = found[key]
    return found


def _require_mapping(value: Tree, source: str, content: str) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{source}: found {value!r}; write a mapping of {content}")

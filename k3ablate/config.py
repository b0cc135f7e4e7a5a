"""How is a configuration read, checked, identified and compared?

`Config` is the frozen pydantic base of everything that is read from a file or written beside a run.
`read_yaml`, `parse` and `override` turn files into configs and refuse what they do not know;
`digest` names a config by its content. Nothing here knows what a model or an experiment is.
"""

import difflib
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

# What a YAML or JSON file holds. Values are checked by the Config they end up in.
Tree = Any

DIGEST_LENGTH = 16


class InputError(ValueError):
    """Input that a person can mend: the message says where, what was found and what to write instead."""


class Closed(BaseModel):
    """Frozen and typed: a key that is not declared is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def tree(self) -> dict[str, Tree]:
        """Plain JSON values, every default written out."""
        return self.model_dump(mode="json")


class Config(Closed):
    """What a file says or a run is made from; it is known by its content."""

    def digest(self) -> str:
        """Name by content: 16 hex digits of the SHA-256 of the canonical JSON."""
        return digest(self.tree())

    def replaced(self, path: str, value: Tree) -> Self:
        """A checked copy with the subtree at dotted `path` replaced."""
        return parse(type(self), override(self.tree(), path, value, source="override"), source="override")


class Difference(NamedTuple):
    """One leaf that two trees do not share; a missing leaf is None."""

    path: str
    before: Tree
    after: Tree


ConfigType = TypeVar("ConfigType", bound=Config)


def digest(tree: Tree) -> str:
    """16 hex digits of the SHA-256 of `tree` as canonical JSON (sorted keys, no spaces, no NaN)."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def read_yaml(path: Path) -> Tree:
    """The plain tree of a YAML 1.2 file; a missing file, bad syntax or a duplicate key is an InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; {_nearby_files(path)}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a YAML file in it") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    try:
        return YAML(typ="safe", pure=True).load(text)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; write it flatter") from None
    except YAMLError as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{path}: not valid YAML: {problem}") from None


def write_yaml(tree: Tree, path: Path) -> None:
    """Write `tree` as block-style YAML that `read_yaml` reads back unchanged."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # annotated by its default, None
    text = io.StringIO()
    writer.dump(tree, text)
    path.write_text(text.getvalue(), encoding="utf-8")


def parse(config_class: type[ConfigType], tree: Tree, source: str) -> ConfigType:
    """A checked config, or one InputError naming `source`, the dotted path, the value and the remedy."""
    if not isinstance(tree, Mapping):
        raise InputError(f"{source}: expected a mapping of keys to values, found {_shown(tree)}")
    try:
        return config_class.model_validate(tree)
    except ValidationError as error:
        details = _deepest(error.errors(include_url=False))
        raise InputError("\n".join(f"{source}: {_explain(config_class, detail)}" for detail in details)) from None


@contextmanager
def located(place: str) -> Iterator[None]:
    """Put `place` in front of the message of an InputError that is raised inside."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def override(tree: Mapping[str, Tree], path: str, value: Tree, source: str) -> dict[str, Tree]:
    """A copy of `tree` with `value` at dotted `path`; a path that is not there is an InputError."""
    return _override(tree, path.split("."), value, where=f"{source}: {path}")


def _override(tree: Tree, keys: list[str], value: Tree, where: str) -> dict[str, Tree]:
    head, *rest = keys
    if not isinstance(tree, Mapping) or head not in tree:
        known = list(tree) if isinstance(tree, Mapping) else []
        raise InputError(f"{where}: no such path here; {_suggest(head, known)}")
    return {**tree, head: _override(tree[head], rest, value, where) if rest else value}


def differences(before: Tree, after: Tree, path: str = "") -> Iterator[Difference]:
    """Every leaf that differs between two trees, in the order of their keys."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            below = f"{path}.{key}" if path else str(key)
            if key in before and key in after:
                yield from differences(before[key], after[key], below)
            else:
                yield Difference(below, before.get(key), after.get(key))
    elif before != after:
        yield Difference(path, before, after)


def _nearby_files(path: Path) -> str:
    """What the same folder holds instead, for a message about a missing file."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    return _suggest(path.name, sorted(entry.name for entry in path.parent.glob("*.yaml")))


def _suggest(word: str, known: list[str]) -> str:
    """'did you mean ...' where a near word is known, else the list of what is allowed."""
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"write one of {', '.join(known)}" if known else "nothing can be set below it"


def _deepest(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without complaints that a collection is too short because an item of it was refused."""
    places = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(len(place) > len(detail["loc"]) and place[: len(detail["loc"])] == detail["loc"] for place in places)
    ]


def _explain(config_class: type[Config], detail: ErrorDetails) -> str:
    """One pydantic error as 'path: value: what to write instead'."""
    place = _located(config_class, detail["loc"])
    where = f"{place.path}: " if place.path else ""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        known = [name for candidate in place.parents for name in candidate.model_fields]
        remedy = _suggest(str(detail["loc"][-1]), known) if known else "remove it"
        return f"{where}unknown key with value {_shown(detail['input'])}; {remedy}"
    if kind == "missing":
        return f"{where}this key is missing; add it"
    if kind == "union_tag_invalid":
        return f"{where}unknown kind {context.get('tag')!r}; write one of {context.get('expected_tags')}"
    if kind == "union_tag_not_found":
        known_kinds = ", ".join(filter(None, map(_kind, place.classes)))
        return f"{where}found {_shown(detail['input'])}; write a mapping with `kind:`, one of {known_kinds}"
    if "error" in context and isinstance(detail["input"], Mapping | Config):  # a rule between keys names them itself
        return f"{where}{context['error']}"
    return f"{where}found {_shown(detail['input'])}; {context.get('error') or _wanted(detail)}"


def _wanted(detail: ErrorDetails) -> str:
    """What to write, in the words of a YAML file."""
    in_yaml = {"tuple_type": "write a list", "dict_type": "write a mapping", "model_type": "write a mapping"}
    return in_yaml.get(detail["type"], detail["msg"])


class _Place(NamedTuple):
    """Where in a file an error is, and which config classes stand there and one step above."""

    path: str
    classes: list[Any]
    parents: list[Any]


def _located(config_class: type[Config], location: tuple[int | str, ...]) -> _Place:
    """pydantic's location without what is not written in the file: tags of unions, and marks of keys."""
    written: list[str] = []
    classes: list[Any] = [config_class]
    parents: list[Any] = []
    for part in location:
        if part == "[key]":
            continue
        tagged = [candidate for candidate in classes if _kind(candidate) == part]
        if tagged and len(classes) > 1:  # a member's own field may be called like its tag
            classes = tagged
            continue
        written.append(str(part))
        below = [found for candidate in classes for found in _step(candidate, part)]
        if not isinstance(part, int) and any(part in candidate.model_fields for candidate in classes):
            parents, classes = classes, below
        elif not isinstance(part, int):
            parents = classes
    return _Place(".".join(written), classes, parents)


def _step(config_class: Any, part: int | str) -> list[Any]:
    """The config classes that field `part` of a config class may hold."""
    field = config_class.model_fields.get(part)
    return list(_config_classes(field.annotation)) if field is not None else []


def _kind(config_class: Any) -> str | None:
    """The value of a Literal `kind` field: the tag of a union member."""
    field = config_class.model_fields.get("kind")
    arguments = getattr(field.annotation, "__args__", ()) if field is not None else ()
    return arguments[0] if arguments else None


def _config_classes(annotation: Any) -> Iterator[Any]:
    """Every Config class mentioned in a type annotation."""
    if _is_config(annotation):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _config_classes(argument)


def _is_config(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Config)


def _shown(value: Tree) -> str:
    """A value as it is quoted in a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

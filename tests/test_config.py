"""Reading, refusing, overriding and naming configurations."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from k3ablate.config import Config, Difference, InputError, differences, digest, override, parse, read_yaml, write_yaml


class Round(Config):
    kind: Literal["round"] = "round"
    radius: float = Field(gt=0)


class Square(Config):
    kind: Literal["square"] = "square"
    side_length: float = 1.0


class Drawing(Config):
    shape: Annotated[Round | Square, Field(discriminator="kind")]
    copies: int = 1


def test_unknown_key_names_the_path_the_value_and_the_near_key() -> None:
    with pytest.raises(InputError, match=r"d.yaml: copis: unknown key with value 3; did you mean 'copies'\?"):
        parse(Drawing, {"shape": {"kind": "square"}, "copis": 3}, source="d.yaml")


def test_unknown_key_inside_a_union_is_explained_from_its_own_member() -> None:
    with pytest.raises(InputError, match=r"d.yaml: shape\.side_lenght: unknown key .* did you mean 'side_length'"):
        parse(Drawing, {"shape": {"kind": "square", "side_lenght": 2}}, source="d.yaml")


def test_unknown_tag_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"shape: unknown kind 'oval'; write one of 'round', 'square'"):
        parse(Drawing, {"shape": {"kind": "oval"}}, source="d.yaml")


def test_value_out_of_range_is_quoted() -> None:
    with pytest.raises(InputError, match=r"d.yaml: shape\.radius: found -1; Input should be greater than 0"):
        parse(Drawing, {"shape": {"kind": "round", "radius": -1}}, source="d.yaml")


def test_a_union_without_its_tag_lists_the_known_ones() -> None:
    message = r"shape: found \{'radius': 1\}; write a mapping with `kind:`, one of round, square"
    with pytest.raises(InputError, match=message):
        parse(Drawing, {"shape": {"radius": 1}}, source="d.yaml")


def test_nesting_without_end_is_one_message(tmp_path: Path) -> None:
    deep = tmp_path / "deep.yaml"
    deep.write_text("a: " + "[" * 5000 + "]" * 5000)
    with pytest.raises(InputError, match=r"deep.yaml: nested too deeply"):
        read_yaml(deep)


def test_missing_key_and_wrong_top_level() -> None:
    with pytest.raises(InputError, match="shape: this key is missing"):
        parse(Drawing, {}, source="d.yaml")
    with pytest.raises(InputError, match="expected a mapping"):
        parse(Drawing, [1], source="d.yaml")


def test_yaml_1_2_numbers_and_duplicate_keys(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("a: 3e-4\nb: 1e18\nc: no\n")
    assert read_yaml(good) == {"a": 3e-4, "b": 1e18, "c": "no"}
    twice = tmp_path / "twice.yaml"
    twice.write_text("a: 1\na: 2\n")
    with pytest.raises(InputError, match=r"twice.yaml: not valid YAML: .*duplicate key"):
        read_yaml(twice)


def test_missing_file_suggests_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text("a: 1\n")
    with pytest.raises(InputError, match=r"dmo.yaml: no such file; did you mean 'demo.yaml'"):
        read_yaml(tmp_path / "dmo.yaml")
    with pytest.raises(InputError, match="there is no folder"):
        read_yaml(tmp_path / "nowhere" / "x.yaml")
    with pytest.raises(InputError, match="is a folder"):
        read_yaml(tmp_path)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_yaml(binary)


def test_override_replaces_a_subtree_and_leaves_the_original() -> None:
    tree = {"shape": {"kind": "square", "side_length": 1.0}, "copies": 1}
    changed = override(tree, "shape.side_length", 2.0, source="test")
    assert list(differences(tree, changed)) == [Difference("shape.side_length", 1.0, 2.0)]
    assert tree["shape"] == {"kind": "square", "side_length": 1.0}


def test_override_refuses_a_path_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"test: shape.side_lenght: no such path here; did you mean 'side_length'"):
        override({"shape": {"kind": "square", "side_length": 1.0}}, "shape.side_lenght", 2, source="test")
    with pytest.raises(InputError, match=r"test: copies.deep: no such path here; nothing can be set below it"):
        override({"copies": 1}, "copies.deep", 2, source="test")


def test_digest_follows_content_not_spelling() -> None:
    written_out = parse(Drawing, {"copies": 1, "shape": {"side_length": 1.0, "kind": "square"}}, source="a")
    defaults = parse(Drawing, {"shape": {"kind": "square"}}, source="b")
    assert written_out.digest() == defaults.digest()
    assert written_out.replaced("copies", 2).digest() != written_out.digest()
    assert digest({"a": 1}) == "015abd7f5cc57a2d"  # sha256 of '{"a":1}'


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef", min_size=1), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text("abcdef", min_size=1), trees, min_size=1, max_size=4))
def test_yaml_round_trip(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("yaml") / "tree.yaml"
    write_yaml(tree, path)
    assert read_yaml(path) == tree


@given(trees, trees)
def test_differences_are_empty_exactly_for_equal_trees(before: object, after: object) -> None:
    assert not list(differences(before, before))
    if before != after:
        assert list(differences(before, after))

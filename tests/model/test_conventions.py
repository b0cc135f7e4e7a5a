"""Every convention of specification section 3, beside what is published."""

from pathlib import Path

import pytest

from k3ablate.config import parse, read_yaml
from k3ablate.model.census import census
from k3ablate.model.conventions import Published, Reading, outside, readings
from k3ablate.model.decoder import ModelConfig
from k3ablate.recipes import published_path, recipe

RELEASED_CHECKPOINT = 2_722_740_830_208 + 57_179_884_544 + 11_122_432  # MXFP4, BF16 and F32 numbers of K3's files


def published(name: str) -> Published:
    path = published_path(name)
    assert path is not None
    return parse(Published, read_yaml(path), source=str(path))


def model(name: str) -> ModelConfig:
    return parse(ModelConfig, recipe("model", name), source=name)


def found(name: str, facts: Published | None) -> dict[tuple[str, str], Reading]:
    config = model(name)
    counted = census(config)
    every = readings(counted, outside(config, counted, facts), facts)
    return {(reading.counted, reading.convention): reading for reading in every}


MTP = "plus one MTP block"
K2_TABLE = {
    ("total", "both embeddings"): (1.0264e12, -0.0131),
    ("total", "input embedding out"): (1.0252e12, -0.0142),
    ("total", f"both embeddings, {MTP}"): (1.0436e12, 0.0034),
    ("activated", "LM head in, input embedding out"): (31.687e9, -0.0280),
    ("activated", "both embeddings in"): (32.862e9, 0.0080),
    ("activated", "neither embedding"): (30.513e9, -0.0640),
    ("activated", f"LM head in, input embedding out, {MTP}"): (32.290e9, -0.0095),
}
K3_TABLE = {
    ("total", "both embeddings"): (2.7795e12, -0.0002),
    ("total", "input embedding out"): (2.7783e12, -0.0006),
    ("total", f"both embeddings, {MTP}"): (2.8096e12, 0.0107),
    ("total", "both embeddings, as stored"): (2.7795e12, -0.0002),
    ("total", "both embeddings, plus vision tower and projector"): (2.7799e12, 0.0),
    ("activated", "LM head in, input embedding out"): (104.1896e9, -0.0001),
    ("activated", "both embeddings in"): (105.364e9, 0.0112),
    ("activated", "neither embedding"): (103.015e9, -0.0114),
    ("activated", f"LM head in, input embedding out, {MTP}"): (105.243e9, 0.0100),
    ("checkpoint", "every number in the released files"): (RELEASED_CHECKPOINT, 0.0),
}


@pytest.mark.parametrize(("name", "table"), [("kimi-k2", K2_TABLE), ("kimi-k3", K3_TABLE)], ids=["k2", "k3"])
def test_the_published_table(name: str, table: dict[tuple[str, str], tuple[float, float]]) -> None:
    every = found(name, published(name))
    assert every.keys() == table.keys()
    for convention, (parameters, difference) in table.items():
        assert every[convention].parameters == pytest.approx(parameters, rel=5e-5), convention
        assert every[convention].difference == pytest.approx(difference, abs=1e-4), convention


def test_k3_is_its_checkpoint_to_the_last_number() -> None:
    every = found("kimi-k3", published("kimi-k3"))
    assert every["total", "both embeddings, as stored"].parameters == 2_779_484_478_208
    checkpoint = every["checkpoint", "every number in the released files"]
    assert checkpoint.parameters == checkpoint.published == RELEASED_CHECKPOINT
    assert checkpoint.difference == 0.0


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("kimi-k2", {"mtp_block": 17_162_147_200, "stored_padding": 0, "vision_tower": 0, "vision_projector": 0}),
        (
            "kimi-k3",
            {
                "mtp_block": 30_119_929_216,
                "stored_padding": 69 * 32,
                "vision_tower": 401_214_464,
                "vision_projector": 46_144_512,
            },
        ),
    ],
)
def test_what_the_groups_leave_out(name: str, sizes: dict[str, int]) -> None:
    config = model(name)
    left_out = outside(config, census(config), published(name))
    assert {part: getattr(left_out, part) for part in sizes} == sizes


def test_a_model_of_ones_own_has_sizes_and_nothing_published() -> None:
    every = found("kimi-k3", None)
    assert ("total", "both embeddings, as stored") not in every
    assert {(reading.published, reading.difference) for reading in every.values()} == {(None, None)}


def test_nothing_published_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert published_path("nonesuch") is None

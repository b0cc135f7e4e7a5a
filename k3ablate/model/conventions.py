"""Which parameters does a published size include? Totals and activated counts under each convention, by name.

The sizes that are published of K2 and K3 do not share one: K2's 1.04 T includes a multi-token-prediction block, K3's
2.78 T does not (specification, section 3). What is published is data, in `analysis/published/<model>.yaml`, and no
part of a model's recipe. The parameters themselves are counted by `counting.py` and `census.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from k3ablate.config import Config
from k3ablate.model.census import Census, num_parameters, num_visited
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.kda import Decay
from k3ablate.model.mtp import PredictionBlock


class Statement(Config):
    """A number that somebody published, and where."""

    value: PositiveFloat
    source: str = Field(min_length=1)


class Vision(Config):
    """The parts of a released model that see."""

    tower: PositiveInt
    projector: PositiveInt
    source: str = Field(min_length=1)


class Published(Config):
    """What is known of a released model's size from others."""

    total: Statement
    activated: Statement
    checkpoint: Statement | None = Field(default=None, description="numbers in the released files, all parts")
    decay_scalars_multiple: PositiveInt = Field(default=1, description="A_log is stored padded to a multiple of this")
    vision: Vision | None = None


@dataclass(frozen=True)
class Outside:
    """Parameters that the groups leave out and that some count holds."""

    mtp_block: int  # embedding and LM head are shared with the decoder and not in it
    mtp_block_activated: int
    stored_padding: int
    vision_tower: int
    vision_projector: int


@dataclass(frozen=True)
class Reading:
    """A size under one convention, the published number, and by how much of that the size is off; None without one."""

    counted: str  # total, activated or checkpoint
    convention: str
    parameters: int
    published: float | None
    difference: float | None  # parameters / published - 1


def outside(config: ModelConfig, census: Census, published: Published | None) -> Outside:
    """Counted on built modules, and taken from what is published where nothing can be built."""
    with torch.device("meta"):
        block = PredictionBlock(config)
    vision = published.vision if published else None
    return Outside(
        mtp_block=num_parameters(block),
        mtp_block_activated=num_visited(block),
        stored_padding=_padding(census, published.decay_scalars_multiple) if published else 0,
        vision_tower=vision.tower if vision else 0,
        vision_projector=vision.projector if vision else 0,
    )


def readings(census: Census, outside: Outside, published: Published | None) -> list[Reading]:
    """Every convention of specification section 3 that applies to the model."""
    found = [
        *_beside("total", _totals(census, outside), published.total if published else None),
        *_beside("activated", _activated(census, outside), published.activated if published else None),
    ]
    if published and published.checkpoint:
        found += _beside("checkpoint", _stored(census, outside), published.checkpoint)
    return found


def _totals(census: Census, outside: Outside) -> dict[str, int]:
    total, vision = sum(census.groups.values()), outside.vision_tower + outside.vision_projector
    sizes = {
        "both embeddings": total,
        "input embedding out": total - census.groups["input_embedding"],
        "both embeddings, plus one MTP block": total + outside.mtp_block,
    }
    if outside.stored_padding:
        sizes["both embeddings, as stored"] = total + outside.stored_padding
    if vision:
        sizes["both embeddings, plus vision tower and projector"] = total + vision
    return sizes


def _activated(census: Census, outside: Outside) -> dict[str, int]:
    """Weights that multiply one token's activations; an embedding is looked up, so it counts only where it says so."""
    head_in = census.active_params
    return {
        "LM head in, input embedding out": head_in,
        "both embeddings in": head_in + census.groups["input_embedding"],
        "neither embedding": head_in - census.groups["lm_head"],
        "LM head in, input embedding out, plus one MTP block": head_in + outside.mtp_block_activated,
    }


def _stored(census: Census, outside: Outside) -> dict[str, int]:
    vision = outside.vision_tower + outside.vision_projector
    return {"every number in the released files": sum(census.groups.values()) + outside.stored_padding + vision}


def _padding(census: Census, multiple: int) -> int:
    """Zeros with which the released files fill up the decay scalars of every KDA layer."""
    return sum(-part.A_log.numel() % multiple for part in census.decoder.modules() if isinstance(part, Decay))


def _beside(counted: str, sizes: Mapping[str, int], published: Statement | None) -> Iterator[Reading]:
    """Each size and one published number."""
    value = published.value if published else None
    for convention, parameters in sizes.items():
        yield Reading(counted, convention, parameters, value, parameters / value - 1 if value else None)

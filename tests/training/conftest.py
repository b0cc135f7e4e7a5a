"""A corpus and a run small enough to train inside a unit test."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from k3ablate.config import override, parse
from k3ablate.training.corpus import Corpus, CorpusFacts, SetFacts
from k3ablate.training.spec import RunSpec

VOCABULARY = 256
NUM_TOKENS = {"train": 20_000, "validation": 3_000, "out_of_distribution": 2_000}
RECIPE = {"source": {"kind": "files", "format": "text", "train": ["none.txt"]}}
SOFTMAX = {"kind": "softmax", "num_heads": 2, "num_key_value_heads": 2, "head_width": 8}
MOE = {"kind": "moe", "num_experts": 6, "num_active": 2, "expert_width": 12}


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Token files written directly: a random walk over the vocabulary, which a model can learn a little of."""
    folder: Path = tmp_path_factory.mktemp("corpus")
    draw = np.random.default_rng(0)
    for name, num_tokens in NUM_TOKENS.items():
        tokens = (draw.integers(1, 4, num_tokens).cumsum() % 97 + 32).astype(np.uint8)
        tokens.tofile(folder / f"{name}.tokens")
    sets = {
        name: SetFacts(num_tokens=count, num_bytes=count - 1, num_documents=1) for name, count in NUM_TOKENS.items()
    }
    return Corpus(folder, CorpusFacts.model_validate({"name": "c0ffee", "recipe": RECIPE, "sets": sets, "dropped": {}}))


@pytest.fixture
def tiny_spec() -> Callable[..., RunSpec]:
    """Makes a RunSpec of 12 steps of two micro-batches; keyword arguments are dotted paths with `__` for dots."""

    def make(**overrides: object) -> RunSpec:
        tree = {
            "model": {
                "vocabulary_size": VOCABULARY,
                "width": 16,
                "num_layers": 2,
                "mixer": {"main": SOFTMAX, "periodic": None},
                "feed_forward": {"main": MOE, "leading": None},
                "balancing": {"kind": "sign_update", "rate": 0.01},
                "residual": {"kind": "plain"},
            },
            "data": RECIPE,
            "corpus": "c0ffee",
            "training": {
                "optimizer": {"kind": "adamw", "learning_rate": 0.01},
                "schedule": {"kind": "cosine"},
                "context": 16,
                "batch_size": 4,
                "micro_batch_size": 2,
                "gradient_clip": 1.0,
                "precision": "float32",
                "divergence_loss": 20.0,
                "validation_tokens": 320,
            },
            "tokens": 12 * 4 * 16,
            "seed": 0,
            "data_seed": None,
        }
        for path, value in overrides.items():
            tree = override(tree, path.replace("__", "."), value, source="test")
        return parse(RunSpec, tree, source="test")

    return make

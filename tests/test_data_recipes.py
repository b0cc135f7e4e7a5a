"""Data as a component: arms of several texts are measured on one validation set, or refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from k3ablate import verbs
from k3ablate.config import InputError, Tree, write_yaml
from k3ablate.experiment import Experiment, load

DATA = Path(__file__).parent.parent / "experiments" / "data.yaml"
Made = Callable[..., Experiment]


@pytest.fixture
def experiment(tmp_path: Path) -> Made:
    """Two arms at one size on text of this test, with the validation files of each."""
    (tmp_path / "rich.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 600)
    (tmp_path / "poor.txt").write_text("to be or not to be\n" * 1200)
    (tmp_path / "held-out.txt").write_text("whether it is nobler in the mind\n" * 300)
    (tmp_path / "other.txt").write_text("to suffer the slings and arrows\n" * 300)

    def source(train: str, validation: str) -> Tree:
        files = {"train": [str(tmp_path / f"{train}.txt")], "validation": [str(tmp_path / f"{validation}.txt")]}
        return {"kind": "files", "format": "text", **files}

    def make(raw: str = "held-out", curated: str = "held-out", tokenizer: Tree = None) -> Experiment:
        tokenizer = tokenizer or {"kind": "bytes"}
        tree = load(DATA).tree()
        tree["baseline"]["data"] = {"source": source("poor", raw), "tokenizer": tokenizer}
        tree["baseline"]["training"]["validation_tokens"] = 4096
        tree["components"]["data"]["levels"]["curated"] = {
            "data": {"source": source("rich", curated), "tokenizer": tokenizer}
        }
        tree |= {"sizes": tree["sizes"][:1], "budgets": [{"kind": "tokens", "tokens": 4096}], "seeds": [0]}
        tree["replicate_seeds"] = []
        write_yaml(tree, tmp_path / "data.yaml")
        return load(tmp_path / "data.yaml")

    return make


def test_two_texts_with_one_validation_set_are_two_runs(experiment: Made, tmp_path: Path) -> None:
    plan = verbs.plan_from_built_corpora(experiment(), tmp_path / "runs", lambda line: None)
    assert [row.label.levels for row in plan.rows] == [{"data": "raw"}, {"data": "curated"}]
    assert len({row.spec.corpus for row in plan.rows if row.spec}) == 2
    assert len({row.spec.model for row in plan.rows if row.spec}) == 1


def test_byte_pairs_that_are_shared_give_one_validation_set(experiment: Made, tmp_path: Path) -> None:
    taught = {"kind": "files", "format": "text", "train": [str(tmp_path / "rich.txt")]}
    taught["validation"] = [str(tmp_path / "held-out.txt")]
    pairs = {"kind": "bpe", "vocabulary_size": 270, "source": taught}
    plan = verbs.plan_from_built_corpora(experiment(tokenizer=pairs), tmp_path / "runs", lambda line: None)
    assert len({row.spec.corpus for row in plan.rows if row.spec}) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"curated": "other"},
        {"tokenizer": {"kind": "bpe", "vocabulary_size": 270}},  # learnt from each training text
    ],
)
def test_losses_on_other_tokens_are_not_planned(experiment: Made, tmp_path: Path, changes: dict[str, Tree]) -> None:
    with pytest.raises(InputError, match=r"data: its data recipes have different validation sets .* hold out the same"):
        verbs.plan_from_built_corpora(experiment(**changes), tmp_path / "runs", lambda line: None)

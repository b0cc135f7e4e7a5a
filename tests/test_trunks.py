"""Branching from the experiment's file to its table: the plan says what is shared, runs share it, the table tells."""

import random
import sys
from pathlib import Path

import pytest

from k3ablate import verbs
from k3ablate.answers import number
from k3ablate.config import write_yaml
from k3ablate.experiment import load
from k3ablate.jobs import folders
from k3ablate.jobs.progress import reporter
from k3ablate.records import table

pytestmark = pytest.mark.slow

LADDER = Path(__file__).parent.parent / "experiments" / "smoke.yaml"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two arms at one size with two budgets, on text of this test."""
    words = random.Random(0).choices(("to", "be", "or", "not", "that", "is", "the", "question"), k=30_000)
    for name, part in (("train", words[:25_000]), ("validation", words[25_000:])):
        (tmp_path / f"{name}.txt").write_text(" ".join(part))
    found = (
        load(LADDER)
        .replaced("name", "branches")
        .replaced("baseline.data.source", {
            "kind": "files", "format": "text",
            "train": [str(tmp_path / "train.txt")], "validation": [str(tmp_path / "validation.txt")],
        })
        .replaced("baseline.training.schedule", {"kind": "wsd", "warmup_steps": 5})
        .replaced("baseline.training.validation_tokens", 4096)
        .replaced("budgets", [{"kind": "tokens", "tokens": tokens} for tokens in (20_480, 40_960)])
    )  # fmt: skip
    tree = found.tree()
    write_yaml(tree, tmp_path / "branches.yaml")
    return tmp_path / "branches.yaml"


def test_budgets_share_their_trunk(experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "runs"
    unrun = verbs.plan_from_built_corpora(load(experiment), root, print).rows
    (note,) = verbs.plan(str(experiment), root, 1).notes
    saved = verbs.trunks.shared((row.spec, row.flops) for row in unrun if row.spec is not None)
    assert saved is not None
    assert note.endswith(f"what is left is counted in full, and may be {number(saved.flops_saved)} FLOPs less")
    ran = verbs.run(str(experiment), root, 1, reporter(sys.stdout))
    assert ran.counts == {"finished": 4}
    assert f"trunks: 4 checkpoints in {root / 'trunks'}" in capsys.readouterr().out
    planned = verbs.plan(str(experiment), root, 1)
    assert planned.notes[0].startswith("trunks: 4 runs of several budgets share 2, which saves up to ")
    assert "what is left" not in planned.notes[0]
    rows = verbs.plan_from_known_corpora(load(experiment), root).rows
    records = folders.records(root, verbs.digests(rows))
    frame = table([row.label for row in rows], records)
    for _, arm in frame.groupby("arm"):
        assert arm["trunk"].nunique() == 1
        assert sorted(arm["tokens"]) == [20_480, 40_960]
        assert sum(arm["tokens_trained"]) < sum(arm["tokens"])
    spent = sum(record.flops * record.trained_share for record in records.values())
    shared = verbs.trunks.shared((row.spec, row.flops) for row in rows if row.spec is not None)
    assert shared is not None
    assert spent == pytest.approx(shared.flops - shared.flops_saved)

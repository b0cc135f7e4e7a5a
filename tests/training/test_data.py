import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from k3ablate.config import InputError
from k3ablate.training import data
from k3ablate.training.corpus import Corpus, build, open_corpus
from k3ablate.training.data import StepBatches, batch, check_budget, windows
from k3ablate.training.optimizers import AdamW
from k3ablate.training.schedules import Constant
from k3ablate.training.spec import DataRecipe, LocalFiles, TrainingConfig

CONTEXT = 8
NUM_WINDOWS = 62  # of 500 tokens: 499 targets in windows of 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """500 training tokens (499 bytes of text and a separator), 101 validation tokens."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(1)
    for name, num_bytes in (("train", 499), ("validation", 100)):
        (folder / f"{name}.txt").write_bytes(draw.integers(ord("a"), ord("z") + 1, num_bytes, np.uint8).tobytes())
    source = LocalFiles(format="text", train=(str(folder / "train.txt"),), validation=(str(folder / "validation.txt"),))
    return build(DataRecipe(source=source), folder / "corpora", lambda line: None)


@pytest.fixture
def window_of(corpus: Corpus) -> Callable[[np.ndarray], int]:
    """Which training window a row of a batch is; the text is random, so no two are equal."""
    tokens = corpus.tokens("train")
    starts = {tokens[i * CONTEXT : (i + 1) * CONTEXT + 1].tobytes(): i for i in range(NUM_WINDOWS)}
    assert len(starts) == NUM_WINDOWS
    return lambda row: starts[row.astype(np.uint8).tobytes()]


def philox(key: int, num_words: int) -> list[int]:
    """Philox4x64-10 in plain integers (Salmon et al. 2011, table 2); numpy counts from one."""
    mask, words = (1 << 64) - 1, []
    for counter in range(1, -(-num_words // 4) + 1):
        a, b, c, d = counter, 0, 0, 0
        low, high = key & mask, key >> 64
        for _ in range(10):
            left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
            a, b, c, d = right >> 64 ^ b ^ low, right & mask, left >> 64 ^ d ^ high, left & mask
            low, high = low + 0x9E3779B97F4A7C15 & mask, high + 0xBB67AE8584CAA73B & mask
        words += [a, b, c, d]
    return words[:num_words]


TRAINING = TrainingConfig(
    optimizer=AdamW(learning_rate=1e-3), schedule=Constant(), context=CONTEXT, batch_size=6, micro_batch_size=2
)


def test_batch_holds_windows_of_the_text(corpus: Corpus, window_of: Callable[[np.ndarray], int]) -> None:
    tokens_BS = batch(corpus, CONTEXT, 4, seed=0, step=3)
    assert tokens_BS.dtype == np.int64
    assert tokens_BS.shape == (4, CONTEXT + 1)
    assert all(0 <= window_of(row) < NUM_WINDOWS for row in tokens_BS)


def test_an_epoch_repeats_no_window_and_leaves_none_out(corpus: Corpus, window_of: Callable[[np.ndarray], int]) -> None:
    seen = [window_of(row) for step in range(NUM_WINDOWS // 2) for row in batch(corpus, CONTEXT, 2, 0, step)]
    assert sorted(seen) == list(range(NUM_WINDOWS))
    assert seen != sorted(seen)


def test_the_next_epoch_has_another_order(corpus: Corpus, window_of: Callable[[np.ndarray], int]) -> None:
    rows = np.concatenate([batch(corpus, CONTEXT, 4, 0, step) for step in range(NUM_WINDOWS // 2)])  # two epochs
    first, second = np.split(np.array([window_of(row) for row in rows]), 2)  # a batch of 4 straddles the border
    assert sorted(second) == sorted(first) == list(range(NUM_WINDOWS))
    assert first.tolist() != second.tolist()


def test_batches_are_pure(corpus: Corpus) -> None:
    wanted = batch(corpus, CONTEXT, 4, seed=7, step=5)
    for seed, step in ((0, 0), (7, 40), (7, 4)):
        batch(corpus, CONTEXT, 4, seed, step)
    data._order.cache_clear()
    elsewhere = open_corpus(corpus.digest, corpus.folder.parent)
    np.testing.assert_array_equal(batch(elsewhere, CONTEXT, 4, seed=7, step=5), wanted)


@pytest.mark.slow
def test_another_process_reads_the_same_batch(corpus: Corpus) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from k3ablate.training.corpus import open_corpus\nfrom k3ablate.training.data import batch\n"
        "corpus = open_corpus(sys.argv[1], Path(sys.argv[2]))\n"
        "print(batch(corpus, 8, 4, seed=7, step=5).tolist())\n"
    )
    command = [sys.executable, "-c", script, corpus.digest, str(corpus.folder.parent)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.strip() == str(batch(corpus, CONTEXT, 4, seed=7, step=5).tolist())


def test_order_is_the_same_on_every_machine() -> None:
    raw = philox(int.from_bytes(hashlib.sha256(b"abc 1 2").digest()[:16]), num_words=10)
    assert data._order("abc", 1, 2, 10).tolist() == sorted(range(10), key=raw.__getitem__)


def test_seed_and_digest_choose_the_order() -> None:
    orders = {tuple(data._order(*key, 50).tolist()) for key in (("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1))}
    assert len(orders) == 4


@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_runs_of_every_batch_size_read_the_same_order(corpus: Corpus, batch_size: int) -> None:
    rows = np.concatenate([batch(corpus, CONTEXT, batch_size, 0, step) for step in range(12 // batch_size)])
    np.testing.assert_array_equal(rows, batch(corpus, CONTEXT, 12, 0, 0))


def test_windows_are_evenly_spaced_over_the_set(corpus: Corpus) -> None:
    batches = list(windows(corpus, "validation", CONTEXT, num_tokens=6 * CONTEXT, batch_size=4))
    assert [len(tokens_BS) for tokens_BS in batches] == [4, 2]
    tokens = corpus.tokens("validation").astype(np.int64)
    # 100 targets make 12 windows of 8: every second one.
    expected = [tokens[first * CONTEXT : (first + 1) * CONTEXT + 1] for first in (0, 2, 4, 6, 8, 10)]
    np.testing.assert_array_equal(np.concatenate(batches), expected)


def test_windows_round_up_and_can_read_the_whole_set(corpus: Corpus) -> None:
    assert sum(map(len, windows(corpus, "validation", CONTEXT, num_tokens=11 * CONTEXT + 1, batch_size=5))) == 12


def test_too_many_windows_are_refused_at_once(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="13 windows of 8 tokens are asked of the 'validation' set, which holds 12"):
        windows(corpus, "validation", CONTEXT, num_tokens=12 * CONTEXT + 1, batch_size=4)


def test_context_longer_than_the_text_is_refused(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="1 windows of 500 tokens are asked of the 'train' set, which holds 0"):
        batch(corpus, 500, 1, 0, 0)


def fitting(**changes: object) -> TrainingConfig:
    """A configuration whose budget is one epoch and whose validation tokens are there."""
    return TRAINING.model_copy(update={"batch_size": 31, "micro_batch_size": None, "validation_tokens": 96, **changes})


def test_budget_is_one_epoch_to_the_token(corpus: Corpus) -> None:
    check_budget(corpus, fitting(), tokens=NUM_WINDOWS * CONTEXT)
    with pytest.raises(InputError, match=r"reads 744 training tokens in steps of 248.* holds 496 .* at most 496"):
        check_budget(corpus, fitting(), tokens=NUM_WINDOWS * CONTEXT + 1)


def test_a_step_beyond_the_corpus_is_not_told_to_write_zero(corpus: Corpus) -> None:
    with pytest.raises(InputError, match=r"write a smaller batch_size or context, or a data recipe with more text"):
        check_budget(corpus, fitting(batch_size=63), tokens=1)


def test_a_held_out_set_too_small_is_refused_before_training(corpus: Corpus) -> None:
    with pytest.raises(InputError, match=r"13 windows of 8 tokens are asked of the 'validation' set, which holds 12"):
        check_budget(corpus, fitting(validation_tokens=97), tokens=1)


def test_micro_batches_make_up_the_step(corpus: Corpus) -> None:
    micro_batches = [rows for rows, _ in zip(StepBatches(corpus, TRAINING, 3, lambda: 2), range(6), strict=False)]
    assert [tuple(rows.shape) for rows in micro_batches] == [(2, CONTEXT + 1)] * 6
    expected = np.concatenate([batch(corpus, CONTEXT, 6, 3, step) for step in (2, 3)])
    np.testing.assert_array_equal(torch.cat(micro_batches).numpy(), expected)


def test_start_is_asked_when_iteration_begins(corpus: Corpus) -> None:
    step = 0
    loader = DataLoader(StepBatches(corpus, TRAINING, 0, lambda: step), batch_size=None, num_workers=0)
    step = 4
    np.testing.assert_array_equal(next(iter(loader)).numpy(), batch(corpus, CONTEXT, 6, 0, 4)[:2])


# What Lightning does to torch is not about this package.
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*`srun` command is available")  # on machines with Slurm
def test_lightning_resumes_with_the_batches_that_were_left(corpus: Corpus, tmp_path: Path) -> None:
    """10 steps at once, against 4 steps, a checkpoint, and 6 more in a new trainer."""
    whole = fit(corpus, max_steps=10)
    first = fit(corpus, max_steps=4, save=tmp_path / "last.ckpt")
    rest = fit(corpus, max_steps=10, resume=tmp_path / "last.ckpt")
    assert len(whole) == 30
    np.testing.assert_array_equal(torch.stack([*first, *rest]), torch.stack(whole))


def fit(corpus: Corpus, max_steps: int, save: Path | None = None, resume: Path | None = None) -> list[torch.Tensor]:
    """The micro-batches that a Lightning trainer hands to its module."""
    from lightning.pytorch import LightningModule, Trainer

    class Recorder(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[torch.Tensor] = []

        def training_step(self, tokens_BS: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.seen.append(tokens_BS)
            return self.weight * tokens_BS.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-6)

    trainer = Trainer(
        max_steps=max_steps,
        accelerator="cpu",
        accumulate_grad_batches=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Recorder()
    batches = StepBatches(corpus, TRAINING, 0, lambda: trainer.global_step)
    trainer.fit(module, DataLoader(batches, batch_size=None, num_workers=0), ckpt_path=resume)
    if save is not None:
        trainer.save_checkpoint(save)
    return module.seen

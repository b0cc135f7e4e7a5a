"""Several processes for one run: what comes out is what one makes of the same batches, and one of them writes."""

import importlib
import json
import pickle
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import distributed

from k3ablate.config import InputError
from k3ablate.records import RunRecord, Status, read_record, read_routing
from k3ablate.tracking import NoTracking
from k3ablate.training.corpus import Corpus
from k3ablate.training.data import Share, StepBatches, batch, windows
from k3ablate.training.parallel import Place, meeting, place
from k3ablate.training.run import train
from k3ablate.training.spec import Execution, RunSpec

Spec = Callable[..., RunSpec]

MUON = {"kind": "muon", "learning_rate": 0.01, "rest": {"learning_rate": 0.01}}
CLIPPING = MUON | {"cut": "per_head", "qk_clip": {"threshold": 1e-3}}  # of logits that begin at 1e-2
ADAMW_CLIPPING = {"kind": "adamw", "learning_rate": 0.01, "qk_clip": {}}
LATENT = {
    "kind": "mla",
    "num_heads": 3,
    "query_rank": 6,
    "key_value_rank": 5,
    "head_width": 4,
    "position_width": 2,
    "value_width": 3,
}


def execution(strategy: str = "ddp", num_ranks: int = 2, **others: object) -> Execution:
    every_step = {"log_every_steps": 1, "inspect_every_lines": 1, "checkpoint_seconds": 1e-9}
    return Execution.model_validate(every_step | {"strategy": strategy, "num_devices": num_ranks} | others)


ONE = execution("single", 1)


def train_on_ranks(spec: RunSpec, folder: Path, corpus: Corpus, ways: Execution, prepare: str = "") -> list[str]:
    """Every rank as a process of its own; what each raised, or nothing. Records lie beside the folder."""
    store = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    job = folder.with_suffix(".job")
    job.write_bytes(pickle.dumps((spec, corpus, ways, folder, prepare)))
    started = []
    for rank in range(ways.num_ranks):
        place = {"RANK": rank, "WORLD_SIZE": ways.num_ranks, "LOCAL_RANK": rank, "GROUP_RANK": 0}
        place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
        errors = folder.with_name(f"{folder.name}.rank-{rank}.txt")
        process = rank_process().start(job, rank_record(folder, rank), errors, {k: str(v) for k, v in place.items()})
        started.append((process, errors))
    raised = []
    for process, errors in started:
        process.join(240)
        assert process.exitcode is not None, "it hangs"
        raised.append(errors.read_text() if errors.exists() else "died" * (process.exitcode != 0))
        errors.unlink(missing_ok=True)
    return raised


@cache
def rank_process() -> ModuleType:
    """Importable by the processes under the same name."""
    sys.path.insert(0, str(Path(__file__).parent))
    return importlib.import_module("rank_process")


def rank_record(folder: Path, rank: int) -> Path:
    return folder.with_name(f"{folder.name}.rank-{rank}.json")


def trained(spec: RunSpec, folder: Path, corpus: Corpus, ways: Execution, prepare: str = "") -> RunRecord:
    """The record that several ranks left."""
    raised = train_on_ranks(spec, folder, corpus, ways, prepare)
    assert not any(raised), raised
    record = read_record(folder, spec.digest())
    assert record is not None
    return record


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(entries: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    return [{k: v for k, v in entry.items() if k not in ("seconds", "tokens_per_second")} for entry in entries]


def assert_like_one_process(folder: Path, one: Path, record: RunRecord, expected: RunRecord) -> None:
    """Losses to 1e-6, other measurements nearly so, what is counted exactly, and biases to the last bit."""
    assert record.evaluations.keys() == expected.evaluations.keys()
    for name, evaluation in record.evaluations.items():
        assert evaluation.loss == pytest.approx(expected.evaluations[name].loss, rel=1e-6)
        assert evaluation.num_tokens == expected.evaluations[name].num_tokens
    for field in ("status", "num_steps", "tokens", "flops", "active_params", "total_params", "kernels"):
        assert getattr(record, field) == getattr(expected, field), field
    assert len(lines(folder)) == len(lines(one)) == record.num_steps
    for line, other in zip(without_times(lines(folder)), without_times(lines(one)), strict=True):
        assert line["imbalance"] == other["imbalance"]
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert line == {name: pytest.approx(value, rel=2e-5, abs=1e-9) for name, value in other.items()}
    assert read_routing(folder, record.digest) == read_routing(one, record.digest)
    weights, expected_weights = last_weights(folder), last_weights(one)
    assert weights.keys() == expected_weights.keys()
    biases = [name for name in weights if name.endswith("bias_E")]
    assert biases
    assert all(torch.equal(weights[name], expected_weights[name]) for name in biases)
    assert all(expected_weights[name].any() for name in biases)


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the newest checkpoint."""
    path = max((folder / "checkpoints").iterdir())
    weights: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["state_dict"]
    return weights


@pytest.fixture
def _checkpoints_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3ablate.training.run.shutil.rmtree", lambda *arguments, **options: None)


CHECKPOINTS_STAY = "import shutil; shutil.rmtree = lambda *arguments, **options: None"


@pytest.mark.slow
@pytest.mark.usefixtures("_checkpoints_stay")
@pytest.mark.parametrize(
    ("strategy", "overrides"),
    [
        ("ddp", {"training__validation_tokens": 16 * 7}),  # seven windows: an odd one is left
        (
            "ddp",
            {
                "model__balancing": {"kind": "quantile"},
                "model__residual": {"kind": "block_attnres", "num_blocks": 2},
                "training__micro_batch_size": 4,
                "training__optimizer": CLIPPING,
                "model__mixer": {"main": LATENT},
            },
        ),
        ("fsdp", {"training__validation_tokens": 16 * 7}),
        (
            "fsdp",
            {
                "model__balancing": {"kind": "quantile"},
                "model__residual": {"kind": "block_attnres", "num_blocks": 2},
                "training__micro_batch_size": 4,
            },
        ),
    ],
    ids=["ddp-accumulated", "ddp-quantile-muon-attnres", "fsdp-accumulated", "fsdp-quantile-attnres"],
)
def test_two_processes_equal_one_with_the_whole_batch(
    strategy: str,
    overrides: dict[str, object],
    tiny_spec: Spec,
    tiny_corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if strategy == "fsdp":
        monkeypatch.setenv("K3ABLATE_KERNELS", "torch")  # numba's do not go together with it
    spec = tiny_spec(**overrides)
    one = train(spec, tmp_path / "one", tiny_corpus, ONE, NoTracking())
    two = trained(spec, tmp_path / "two", tiny_corpus, execution(strategy), prepare=CHECKPOINTS_STAY)
    assert_like_one_process(tmp_path / "two", tmp_path / "one", two, one)
    assert two.device == "2 x cpu"


CRASH_AT_5 = """
from k3ablate.training.callbacks import BalancingStep
plain = BalancingStep.on_step
def crash(callback, trainer, module, step):
    if step == 5:
        raise ArithmeticError("crashed")
    plain(callback, trainer, module, step)
BalancingStep.on_step = crash
"""


@pytest.mark.slow
def test_a_crashed_run_goes_on_with_any_number_of_processes(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    """All bits are kept where the number stays, three, whose sums have an order; rounding where it changes."""
    spec = tiny_spec(training__batch_size=6, training__micro_batch_size=3, tokens=8 * 6 * 16)
    whole = trained(spec, tmp_path / "whole", tiny_corpus, execution(num_ranks=3))
    raised = train_on_ranks(spec, tmp_path / "three", tiny_corpus, execution(num_ranks=3), prepare=CRASH_AT_5)
    assert ["crashed" in one for one in raised] == [True, True, True], raised
    assert read_record(tmp_path / "three", spec.digest()) is None
    shutil.copytree(tmp_path / "three", tmp_path / "one")
    three = trained(spec, tmp_path / "three", tiny_corpus, execution(num_ranks=3))
    one = train(spec, tmp_path / "one", tiny_corpus, ONE, NoTracking())
    assert (three.num_resumes, one.num_resumes) == (1, 1)
    assert three.evaluations == whole.evaluations
    assert without_times(lines(tmp_path / "three")) == without_times(lines(tmp_path / "whole"))
    assert one.evaluations["validation"].loss == pytest.approx(whole.evaluations["validation"].loss, rel=1e-6)
    assert [line["step"] for line in lines(tmp_path / "one")] == list(range(8))


@pytest.mark.slow
def test_a_run_begun_alone_goes_on_with_two_cut_or_not(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step alone, some with all weights on both, some with each half of them, and the last ones alone again."""
    monkeypatch.setenv("K3ABLATE_KERNELS", "torch")
    spec = tiny_spec()
    whole = train(spec, tmp_path / "whole", tiny_corpus, ONE, NoTracking())
    folder = tmp_path / "run"
    hurried = {"max_hours": 1e-9}
    for num_steps, ways in enumerate((execution("single", 1, **hurried), execution("ddp", **hurried)), start=1):
        stopped = (
            train(spec, folder, tiny_corpus, ways, NoTracking())
            if ways.strategy == "single"
            else trained(spec, folder, tiny_corpus, ways)
        )
        assert stopped.num_steps == num_steps
    raised = train_on_ranks(spec, folder, tiny_corpus, execution("fsdp"), prepare=CRASH_AT_5)
    assert ["crashed" in one for one in raised] == [True, True], raised
    one = train(spec, folder, tiny_corpus, ONE, NoTracking())
    assert one.num_resumes == 3
    assert one.evaluations["validation"].loss == pytest.approx(whole.evaluations["validation"].loss, rel=1e-6)
    assert [line["step"] for line in lines(folder)] == list(range(12))


@pytest.mark.slow
def test_ranks_start_from_a_trunk_together(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    """What two have left, two go on from with the bits of two that trained it all."""
    schedule = {"kind": "wsd", "warmup_steps": 2, "decay_fraction": 0.5}
    short, long = (tiny_spec(tokens=steps * 64, training__schedule=schedule) for steps in (6, 12))
    alone = tmp_path / "alone"
    alone.mkdir()
    whole = trained(long, alone / "run", tiny_corpus, execution())
    trained(short, tmp_path / "short", tiny_corpus, execution(keep_trunks=True))
    branch = trained(long, tmp_path / "long", tiny_corpus, execution())
    assert (whole.branched_at, branch.branched_at) == (0, 3)
    assert branch.evaluations == whole.evaluations
    assert without_times(lines(tmp_path / "long")) == without_times(lines(alone / "run"))


@pytest.mark.slow
def test_what_one_rank_asks_for_all_do_at_the_same_step(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    """The clock of the second rank alone runs out after step 3; both stop there, with one checkpoint of it."""
    late = """
from k3ablate.training.callbacks import TimeLimit
import os
def stop(callback, trainer, module, step):
    trainer.should_stop = step == 3 and os.environ["RANK"] == "1"
TimeLimit.on_step = stop
"""
    spec = tiny_spec()
    record = trained(spec, tmp_path / "run", tiny_corpus, execution(checkpoint_seconds=1e9, max_hours=1), prepare=late)
    other = RunRecord.model_validate_json(rank_record(tmp_path / "run", 1).read_text())
    assert (record.status, record.num_steps) == (other.status, other.num_steps) == (Status.OUT_OF_TIME, 4)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000004.ckpt"]


@pytest.mark.slow
def test_divergence_on_one_rank_ends_all(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    broken = """
import os, torch
from k3ablate.training import module
plain = module.cross_entropy
def cross_entropy(logits_BTV, targets_BT):
    return plain(logits_BTV, targets_BT) * (float("nan") if os.environ["RANK"] == "1" else 1.0)
module.cross_entropy = cross_entropy
"""
    record = trained(tiny_spec(), tmp_path / "run", tiny_corpus, execution(), prepare=broken)
    assert (record.status, record.reason) == (Status.DIVERGED, "training loss nan at step 0")
    assert record.first_loss is None


def test_shares_are_the_batch_cut_in_the_order_of_ranks(tiny_spec: Spec, tiny_corpus: Corpus) -> None:
    training = tiny_spec(training__batch_size=12, training__micro_batch_size=6).training
    parts = [iter(StepBatches(tiny_corpus, training, 7, lambda: 5, Share(rank, 3))) for rank in range(3)]
    for step in (5, 6):
        whole = torch.from_numpy(batch(tiny_corpus, training.context, 12, 7, step))
        for micro_batch in whole.split(6):
            assert torch.equal(torch.cat([next(part) for part in parts]), micro_batch)


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("num_windows", [5, 6, 11, 30])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 7, 60])
def test_evaluated_windows_are_shared_out_once_in_equally_many_batches(
    num_ranks: int, num_windows: int, batch_size: int, tiny_corpus: Corpus
) -> None:
    parts = [
        list(windows(tiny_corpus, "validation", 16, 16 * num_windows, batch_size, Share(rank, num_ranks)))
        for rank in range(num_ranks)
    ]
    assert len({len(part) for part in parts}) == 1
    assert all(len(tokens_BS) > 0 for part in parts for tokens_BS in part)
    whole = np.concatenate(list(windows(tiny_corpus, "validation", 16, 16 * num_windows, batch_size)))
    assert np.array_equal(np.concatenate([tokens_BS for part in parts for tokens_BS in part]), whole)
    at_once = sum(len(tokens_BS) for tokens_BS in (part[0] for part in parts))
    assert at_once <= max(batch_size, num_ranks) + num_ranks


def test_too_few_windows_for_all_ranks_are_refused(tiny_corpus: Corpus) -> None:
    with pytest.raises(InputError, match="2 windows are too few for 3 ranks; write more tokens, or fewer devices"):
        windows(tiny_corpus, "validation", 16, 32, 4, Share(0, 3))


@pytest.mark.parametrize(
    ("ways", "overrides", "message"),
    [
        (execution(num_ranks=3), {}, "3 ranks .* do not share the 2 sequences of a forward pass evenly"),
        (execution(num_nodes=2), {}, r"4 ranks \(num_devices 2 x num_nodes 2\) do not share the 2 sequences"),
        (execution(), {"model__balancing": {"kind": "quantile", "estimator": "exact"}}, "sees one process only"),
        (execution("fsdp"), {"training__optimizer": MUON}, "'fsdp' cuts matrices over ranks, and muon works on whole"),
        (execution("fsdp"), {"training__optimizer": ADAMW_CLIPPING}, r"'fsdp' cuts heads.*write ddp, or qk_clip: null"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_starts(
    ways: Execution,
    overrides: dict[str, object],
    message: str,
    tiny_spec: Spec,
    tiny_corpus: Corpus,
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=message):
        train(tiny_spec(**overrides), tmp_path, tiny_corpus, ways, NoTracking())
    assert list(tmp_path.iterdir()) == []


def test_several_devices_need_a_strategy() -> None:
    with pytest.raises(ValueError, match="strategy is 'single', and num_devices 2 x num_nodes 3 are asked for"):
        Execution(num_devices=2, num_nodes=3)


MET = {"MASTER_ADDR": "node1", "MASTER_PORT": "5000"}


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "GROUP_RANK": "1",
            "SLURM_PROCID": "0",  # of its launcher, as the three that follow
            "SLURM_NTASKS": "1",
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "0",
        },
    ],
    ids=["launcher", "srun", "launcher_in_a_job"],
)
def test_a_place_is_read_from_the_environment(environment: dict[str, str]) -> None:
    found = place(execution(num_nodes=2), environment | MET)
    assert found == Place(rank=3, num_ranks=4, local_rank=1, node=1, address="node1", port=5000)
    assert found.share == Share(3, 4)


def test_a_place_that_nobody_gave_or_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="'ddp' wants one process per device, and 'SLURM_PROCID' is not set"):
        place(execution(), {})
    started = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "GROUP_RANK": "0"} | MET
    with pytest.raises(InputError, match=r"asks for 2 ranks .* and 8 were started"):
        place(execution(), started)


def test_fsdp_on_cpus_needs_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    started = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GROUP_RANK": "0"} | MET
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("K3ABLATE_KERNELS", "kda=torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        pytest.raises(InputError, match="'fsdp' does not go together with the numba kernels of CPUs"),
        meeting(execution("fsdp")),
    ):
        raise AssertionError("nobody to meet")

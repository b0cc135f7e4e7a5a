"""A run from its specification to its record: reproducible, resumable, stopped in time and never repeated."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from k3ablate.config import InputError
from k3ablate.model.balancing import Balancer
from k3ablate.model.decoder import Decoder
from k3ablate.model.inspection import PLACES, Magnitudes
from k3ablate.records import Evaluation, FrozenSpec, RunRecord, Status, read_routing, read_specimen, write_spec
from k3ablate.tracking import NoTracking
from k3ablate.training.corpus import Corpus
from k3ablate.training.data import windows
from k3ablate.training.evaluation import evaluate
from k3ablate.training.metrics import MetricsLog
from k3ablate.training.module import LanguageModule
from k3ablate.training.provenance import versions
from k3ablate.training.run import stream, train
from k3ablate.training.spec import Execution, RunSpec

pytestmark = pytest.mark.slow

Spec = Callable[..., RunSpec]
EVERY_STEP = Execution(log_every_steps=1, inspect_every_lines=1, checkpoint_seconds=1e-9)
MUON = {"kind": "muon", "learning_rate": 0.01, "rest": {"learning_rate": 0.01}}


class Killed(Exception):  # noqa: N818
    """Stands for a crash."""


class Noting(NoTracking):
    """Remembers what it was told, and what lay in the folder then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def finish(self) -> None:
        self.told.append(str(RunRecord.model_validate_json((self.folder / "record.json").read_text()).status))

    def interrupt(self) -> None:
        assert not (self.folder / "record.json").exists()
        self.told.append("interrupt")


@contextmanager
def at_lines(act: Callable[[int], None]) -> Iterator[None]:
    """While the block lasts, `act` is called with every step after its line was written."""
    plain = MetricsLog.on_step

    def on_step(log: MetricsLog, trainer: Trainer, module: LanguageModule, step: int) -> None:
        plain(log, trainer, module, step)
        act(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricsLog, "on_step", on_step)
        yield


@contextmanager
def killed_at(step: int, how: type[BaseException] = Killed) -> Iterator[None]:
    """Training crashes when it has logged `step`, and has to."""

    def act(reached: int) -> None:
        if reached == step:
            raise how

    with at_lines(act), pytest.raises(how):
        yield


def never(step: int) -> None:
    raise AssertionError(f"step {step} was taken")


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(entries: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{k: v for k, v in entry.items() if k not in ("seconds", "tokens_per_second")} for entry in entries]


def test_same_spec_same_bits_and_another_seed_another_loss(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    first, again, other = (
        train(tiny_spec(seed=seed), tmp_path / name, tiny_corpus, EVERY_STEP, NoTracking())
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.evaluations == again.evaluations
    assert first.evaluations != other.evaluations
    assert without_times(lines(tmp_path / "a")) == without_times(lines(tmp_path / "b"))


def test_record_of_a_finished_run(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    tracker = Noting(tmp_path)
    spec = tiny_spec()
    record = train(spec, tmp_path, tiny_corpus, Execution(log_every_steps=5), tracker)
    assert record.status is Status.FINISHED
    assert set(record.evaluations) == {"validation", "out_of_distribution"}
    assert record.evaluations["validation"].num_tokens == 320
    assert record.first_loss == pytest.approx(torch.tensor(256.0).log().item(), rel=0.02)
    assert record.evaluations["validation"].loss < record.first_loss
    assert (record.num_steps, record.tokens) == (12, 12 * 64)
    assert RunRecord.model_validate_json((tmp_path / "record.json").read_text()) == record
    assert [entry["step"] for entry in lines(tmp_path)] == [0, 5, 10, 11]
    assert tracker.told == ["start", "finished"]
    assert {"python", "torch", "lightning", "code"} <= set(record.versions)
    assert not (tmp_path / "checkpoints").exists()


def test_inspected_lines_measure_activations_of_every_layer_and_looking_changes_no_bit(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind:
        def __init__(self, decoder: Decoder) -> None:
            pass

        def take(self) -> dict[str, list[float]]:
            return {}

    made: list[Magnitudes] = []

    def noting(decoder: Decoder) -> Magnitudes:
        made.append(Magnitudes(decoder))
        return made[-1]

    monkeypatch.setattr("k3ablate.training.metrics.Magnitudes", noting)
    often = train(tiny_spec(), tmp_path / "often", tiny_corpus, EVERY_STEP, NoTracking())
    every_second_line = Execution(log_every_steps=4, inspect_every_lines=2)
    seldom = train(tiny_spec(), tmp_path / "seldom", tiny_corpus, every_second_line, NoTracking())
    monkeypatch.setattr("k3ablate.training.metrics.Magnitudes", Blind)
    never = train(tiny_spec(), tmp_path / "never", tiny_corpus, EVERY_STEP, NoTracking())
    assert often.evaluations == seldom.evaluations == never.evaluations
    assert len(made) == 12 + 3  # steps 0, 8 and the last of 12: the others are not looked at
    by_step = {line["step"]: without_times([line]) for line in lines(tmp_path / "often")}
    written = {line["step"]: line for line in lines(tmp_path / "seldom")}
    assert list(written) == [0, 4, 8, 11]
    assert not [name for name in written.pop(4) if name.endswith(("_rms", "_max"))]
    for line in written.values():
        assert without_times([line]) == by_step[line["step"]]
        for place in PLACES:
            for name in (f"{place}_rms", f"{place}_max"):
                assert len(line[name]) == (3 if place == "stream" else 2)
                assert all(0 < value < 100 for value in line[name])


def test_a_finished_run_leaves_how_many_validation_tokens_chose_each_expert(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the choices of the trained model on the same windows, counted one by one."""
    trained: list[Decoder] = []

    def noting(decoder: Decoder, *arguments: object) -> Evaluation | None:
        trained.append(decoder)
        return evaluate(decoder, *arguments)

    monkeypatch.setattr("k3ablate.training.run.evaluate", noting)
    spec = tiny_spec()
    train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    routing = read_routing(tmp_path, spec.digest())
    chosen: dict[int, list[int]] = {0: [], 1: []}
    for index, layer in enumerate(trained[0].layers):
        layer.feed_forward.router.register_forward_hook(
            lambda _, inputs, decision, index=index: chosen[index].extend(decision.chosen.flatten().tolist())
        )
    for tokens_BS in windows(tiny_corpus, "validation", 16, 320, spec.training.sequences_per_pass):
        trained[0].eval()(torch.from_numpy(tokens_BS[:, :-1]))
    assert routing is not None
    assert (routing.validation, routing.num_tokens) == ("validation", 320)
    assert routing.pairs == [[chosen[layer].count(expert) for expert in range(6)] for layer in (0, 1)]
    assert [sum(pairs) for pairs in routing.pairs] == [320 * 2] * 2


def test_a_run_without_routed_experts_leaves_no_routing(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    dense = {"main": {"kind": "dense", "hidden_width": 8}, "leading": None}
    spec = tiny_spec(model__feed_forward=dense, model__balancing={"kind": "none"})
    assert train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking()).status is Status.FINISHED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "record.json", "specimen.json"]


def test_a_finished_run_leaves_what_its_model_did_with_a_few_tokens(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    spec = tiny_spec(model__residual={"kind": "full_attnres"}, training__context=64)
    train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    kept = read_specimen(tmp_path, spec.digest())
    assert kept is not None
    window, scale = tiny_corpus.tokens("validation")[:48], spec.model.feed_forward.main.routed_scale
    assert "".join(kept.texts) == tiny_corpus.decode(window)
    assert [len(layer) for layer in kept.experts] == [48, 48]
    for layer, weights in zip(kept.experts, kept.weights, strict=True):
        assert all(len(set(chosen)) == 2 and max(chosen) < 6 for chosen in layer)
        assert all(one[0] >= one[1] and sum(one) == pytest.approx(scale) for one in weights)
    assert [len(read) for read in kept.read_weights] == [1, 2, 3, 4, 5]
    assert [sum(read) for read in kept.read_weights] == pytest.approx([1.0] * 5)
    assert sum(kept.magnitudes["routed_hidden"]) == 64 * 2 * 2 * 12


def test_the_auxiliary_loss_is_in_no_published_number(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    """A coefficient under which the auxiliary term is larger than the loss of a model that has learned nothing."""
    spec = tiny_spec(model__balancing={"kind": "auxiliary_loss", "coefficient": 5.0})
    record = train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    uniform = torch.tensor(256.0).log().item()
    assert record.first_loss == pytest.approx(uniform, rel=0.02)
    assert all(evaluation.loss < 1.02 * uniform for evaluation in record.evaluations.values())
    assert all(line["auxiliary_loss"] > 9.9 for line in lines(tmp_path))  # two layers, at least the coefficient each
    assert all(line["loss"] < 1.02 * uniform for line in lines(tmp_path))


def test_a_finished_run_is_not_trained_again(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    first = train(tiny_spec(), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    with at_lines(never):
        assert train(tiny_spec(), tmp_path, tiny_corpus, EVERY_STEP, NoTracking()) == first
    with pytest.raises(InputError, match="holds the record of run"):
        train(tiny_spec(seed=1), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"training__optimizer": MUON},
        {"model__balancing": {"kind": "quantile"}, "training__micro_batch_size": 4},
    ],
    ids=["adamw", "muon", "quantile"],
)
def test_a_crashed_run_ends_with_the_bits_of_an_uninterrupted_one(
    overrides: dict[str, object], tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    spec = tiny_spec(**overrides)
    whole = train(spec, tmp_path / "whole", tiny_corpus, EVERY_STEP, NoTracking())
    folder = tmp_path / "crashed"
    tracker = Noting(folder)
    for step in (4, 9):
        with killed_at(step):
            train(spec, folder, tiny_corpus, EVERY_STEP, tracker)
    resumed = train(spec, folder, tiny_corpus, EVERY_STEP, tracker)
    assert resumed.evaluations == whole.evaluations
    assert resumed.first_loss == whole.first_loss
    assert resumed.num_resumes == 2
    assert without_times(lines(folder)) == without_times(lines(tmp_path / "whole"))
    assert tracker.told == ["start", "interrupt", "start", "interrupt", "start", "finished"]


def test_the_record_names_the_code_that_it_was_planned_with_and_that_trained_it(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    spec = tiny_spec(tokens=64)
    write_spec(FrozenSpec(digest=spec.digest(), spec=spec.tree(), versions={"code": "0ther"}), tmp_path)
    record = train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    assert record.versions == versions() | {"planned_code": "0ther"}
    assert record.codes == (versions()["code"],)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train(tiny_spec(), tmp_path / "whole", tiny_corpus, EVERY_STEP, NoTracking())
    folder = tmp_path / "damaged"
    with killed_at(7):
        train(tiny_spec(), folder, tiny_corpus, EVERY_STEP, NoTracking())
    newer = max((folder / "checkpoints").iterdir())
    newer.write_bytes(newer.read_bytes()[:2000])
    resumed = train(tiny_spec(), folder, tiny_corpus, EVERY_STEP, NoTracking())
    assert [record.message for record in caplog.records if record.name == "k3ablate.training.checkpoints"] == [
        f"{newer} is damaged; the checkpoint before it is taken"
    ]
    assert resumed.evaluations == whole.evaluations


def test_a_checkpoint_of_another_run_is_refused(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    with killed_at(3):
        train(tiny_spec(), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    with pytest.raises(InputError, match=r"belongs to run \w+, this is run"):
        train(tiny_spec(seed=1), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())


def test_a_run_that_was_killed_after_its_last_step_only_evaluates(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tiny_spec(), tmp_path / "whole", tiny_corpus, EVERY_STEP, NoTracking())

    def crash(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("k3ablate.training.run.evaluate", crash)
        with pytest.raises(Killed):
            train(tiny_spec(), tmp_path / "killed", tiny_corpus, EVERY_STEP, NoTracking())
    resumed = train(tiny_spec(), tmp_path / "killed", tiny_corpus, EVERY_STEP, NoTracking())
    assert resumed.evaluations == whole.evaluations
    assert resumed.wall_seconds > 0
    assert [entry["step"] for entry in lines(tmp_path / "killed")] == list(range(12))


def test_divergence_stops_at_once_and_is_final(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    spec = tiny_spec(training__divergence_loss=1.0)
    record = train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    assert record.status is Status.DIVERGED
    assert record.num_steps == 1
    assert record.reason == f"training loss {record.first_loss:.6g} at step 0 is above divergence_loss 1"
    with at_lines(never):
        assert train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking()) == record


def test_a_loss_that_is_not_a_number_diverges(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    spec = tiny_spec(training__optimizer={"kind": "adamw", "learning_rate": 1e30}, training__divergence_loss=1e300)
    record = train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    assert record.status is Status.DIVERGED
    assert record.reason.startswith("training loss nan at step ")
    assert record.num_steps < 4


def test_out_of_time_is_resumable(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    whole = train(tiny_spec(), tmp_path / "whole", tiny_corpus, EVERY_STEP, NoTracking())
    hurried = Execution(log_every_steps=1, max_hours=1e-9)
    stopped = train(tiny_spec(), tmp_path / "run", tiny_corpus, hurried, NoTracking())
    assert stopped.status is Status.OUT_OF_TIME
    assert stopped.reason == "max_hours 1e-09 passed after 1 of 12 steps"
    assert train(tiny_spec(), tmp_path / "run", tiny_corpus, EVERY_STEP, NoTracking()).evaluations == whole.evaluations


def test_an_interrupt_stays_an_interrupt(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    tracker = Noting(tmp_path)
    with killed_at(3, KeyboardInterrupt):
        train(tiny_spec(), tmp_path, tiny_corpus, EVERY_STEP, tracker)
    assert tracker.told == ["start", "interrupt"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_under_slurm_lightning_requeues_nothing(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "grid", "SLURM_JOB_ID": "1"}.items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGUSR1)
    handlers: set[object] = set()
    with at_lines(lambda step: handlers.add(signal.getsignal(signal.SIGUSR1))):
        record = train(tiny_spec(), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    assert record.status is Status.FINISHED
    assert handlers == {before}


def test_balancing_moves_once_per_step_on_the_whole_batch_and_never_in_evaluation(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[float] = []
    plain_step = Balancer.step

    def counted(balancer: Balancer) -> None:
        plain_step(balancer)
        loads.append(balancer.load_E.sum().item())

    monkeypatch.setattr(Balancer, "step", counted)
    spec = tiny_spec()
    train(spec, tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    chosen_per_step = spec.training.tokens_per_step * 2  # two experts per token
    assert loads == [chosen_per_step] * 12 * 2  # steps x routed layers


def test_micro_batches_change_no_token_of_the_loss(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    split, whole = (
        train(tiny_spec(training__micro_batch_size=size), tmp_path / str(size), tiny_corpus, EVERY_STEP, NoTracking())
        for size in (1, 4)
    )
    assert split.num_steps == whole.num_steps
    assert split.first_loss == pytest.approx(whole.first_loss, rel=1e-6)
    assert split.evaluations["validation"].loss == pytest.approx(whole.evaluations["validation"].loss, rel=1e-2)


def test_bfloat16_trains(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    record = train(tiny_spec(training__precision="bfloat16"), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())
    full = train(tiny_spec(), tmp_path / "full", tiny_corpus, EVERY_STEP, NoTracking())
    assert record.evaluations["validation"].loss == pytest.approx(full.evaluations["validation"].loss, rel=0.02)
    assert record.evaluations != full.evaluations


def test_another_corpus_is_refused(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the run asks for beef, this one is c0ffee"):
        train(tiny_spec(corpus="beef"), tmp_path, tiny_corpus, EVERY_STEP, NoTracking())


def test_streams_differ_by_name_and_seed() -> None:
    assert len({stream(seed, name) for seed in range(50) for name in ("init", "data")}) == 100


CHILD = """
import pickle, sys
from pathlib import Path
from k3ablate.tracking import NoTracking
from k3ablate.training.run import train
spec, corpus, execution, folder = pickle.loads(Path(sys.argv[1]).read_bytes())
train(spec, folder, corpus, execution, NoTracking())
"""


def test_sigkill_in_the_middle_changes_no_bit(tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path) -> None:
    spec = tiny_spec(tokens=300 * 64)
    execution = Execution(log_every_steps=1, checkpoint_seconds=0.05)
    folder = tmp_path / "killed"
    (tmp_path / "job").write_bytes(pickle.dumps((spec, tiny_corpus, execution, folder)))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "job")])
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and len(metrics.read_bytes().splitlines()) > 60):
        assert child.poll() is None, "the child ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (folder / "record.json").exists()
    resumed = train(spec, folder, tiny_corpus, execution, NoTracking())
    whole = train(spec, tmp_path / "whole", tiny_corpus, execution, NoTracking())
    assert resumed.num_resumes == 1
    assert resumed.evaluations == whole.evaluations
    assert without_times(lines(folder)) == without_times(lines(tmp_path / "whole"))


def test_initialisation_and_order_of_the_data_have_seeds_of_their_own(
    tiny_spec: Spec, tiny_corpus: Corpus, tmp_path: Path
) -> None:
    """At a rate of nothing a trained model is its initialisation, and the loss of the last step is of its batch."""

    def trained(seed: int, data_seed: int | None) -> tuple[float, object]:
        spec = tiny_spec(
            seed=seed,
            data_seed=data_seed,
            model__balancing={"kind": "none"},
            training__optimizer__learning_rate=1e-30,
        )
        folder = tmp_path / f"{seed}-{data_seed}"
        record = train(spec, folder, tiny_corpus, EVERY_STEP, NoTracking())
        return record.evaluations["validation"].loss, lines(folder)[0]["loss"]

    both, order, initialisation = trained(0, None), trained(0, 1), trained(1, 0)
    assert order[0] == both[0]
    assert order[1] != both[1]
    assert initialisation[0] != both[0]
    assert trained(1, None)[0] == initialisation[0]
    assert trained(1, None)[1] != initialisation[1]
    assert tiny_spec(data_seed=1).order_seed == 1
    assert tiny_spec(seed=3).order_seed == 3


def test_one_seed_has_one_name(tiny_spec: Spec) -> None:
    with pytest.raises(InputError, match="data_seed 0 is seed's; write null"):
        tiny_spec(data_seed=0)

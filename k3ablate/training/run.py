"""How does one run go from its specification to its record? `train`, the only place that builds a Trainer.

Everything random comes from streams named after their use and derived from the seed, batches are a function of the
step, and a checkpoint holds the rest, so that an interrupted run ends with the same bits as an uninterrupted one.
Nothing here decides which runs there are (`jobs`) or what a step is (`module`, `callbacks`).
"""

import hashlib
import logging
import math
import shutil
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback, Trainer
from torch import Generator, Tensor

from k3ablate.config import InputError
from k3ablate.kernels import dispatch
from k3ablate.model import ranks
from k3ablate.model.counting import Counts, count
from k3ablate.model.decoder import Decoder, initialise
from k3ablate.model.inspection import counted_pairs
from k3ablate.records import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    PUBLISHED_SET,
    SETTLED,
    Evaluation,
    RoutedPairs,
    RunRecord,
    Status,
    read_record,
    read_spec,
    write_record,
    write_routing,
    write_specimen,
)
from k3ablate.tracking import NoTracking
from k3ablate.training import parallel, trunks
from k3ablate.training.branching import SaveTrunk, start_from
from k3ablate.training.callbacks import (
    BalancingStep,
    Clock,
    Diverged,
    LearningRate,
    StopOnDivergence,
    StopOnRequest,
    TimeLimit,
)
from k3ablate.training.checkpoints import AtomicCheckpoints, SaveCheckpoints, drop_unfinished, newest, saved_steps
from k3ablate.training.clipping import ClipLogits
from k3ablate.training.corpus import Corpus
from k3ablate.training.data import StepBatches
from k3ablate.training.evaluation import evaluate
from k3ablate.training.metrics import MetricsLog
from k3ablate.training.module import LanguageModule
from k3ablate.training.parallel import Place
from k3ablate.training.provenance import versions_beside
from k3ablate.training.sources import TRAIN_SET
from k3ablate.training.spec import Execution, RunSpec
from k3ablate.training.specimens import specimen
from k3ablate.training.stopping import Stopped

# What is said although nothing is wrong: Slurm's own launcher is not used on purpose, Lightning 2.6 asks torch 2.13 for
# a class by its old name, and DDP looks for unused parameters for another reason (`parallel.strategy`).
MEANT = (
    r".*`srun` command is available.*",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"(?s).*find_unused_parameters=True was specified in DDP constructor",
)


def train(spec: RunSpec, folder: Path, corpus: Corpus, execution: Execution, tracker: NoTracking) -> RunRecord:
    """Train `spec` in `folder`, evaluate it, and write `record.json`; a run that has ended before is not repeated.

    Continues from the newest checkpoint in the folder, or starts from one that a run with the same trunk left beside
    the folder (`trunks`). InputError if the corpus or a checkpoint belongs to another
    run; OSError with the path if the disk refuses. Anything raised leaves the run resumable. Where `execution` asks
    for several processes, all of them call this, and the first writes.
    """
    digest = spec.digest()
    if spec.corpus != corpus.digest:
        raise InputError(f"corpus: the run asks for {spec.corpus}, this one is {corpus.digest}; build that corpus")
    execution.require_shares(spec)
    settled = _settled_record(folder, digest)
    if settled is not None:
        return settled
    with parallel.meeting(execution) as place:
        run = _Run(spec, folder, corpus, execution, tracker if place.is_first else NoTracking(), place)
        return run.settle() if place.is_first else run.record()


def stream(seed: int, name: str) -> int:
    """The seed of one named use of randomness: 63 bits of the SHA-256 of seed and name."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


@dataclass
class _Run:
    """One run while it is being carried out."""

    spec: RunSpec
    folder: Path
    corpus: Corpus
    execution: Execution
    tracker: NoTracking
    place: Place

    def settle(self) -> RunRecord:
        """Leave the record in the folder and in the store."""
        self.tracker.start()
        try:
            record = self.record()
            write_record(record, self.folder)
        except BaseException:
            self.tracker.interrupt()
            raise
        self.tracker.finish()
        if record.status in SETTLED:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        return record

    def record(self) -> RunRecord:
        """Train what is left to train, evaluate, and say what came out."""
        torch.set_num_threads(self.execution.num_threads)
        dispatch.forget_used()
        checkpoint = ranks.of_first(self._newest() if self.place.is_first else None)
        if checkpoint is not None and checkpoint.parent != self.checkpoints:
            self.clock.branch(saved_steps(checkpoint))
        try:
            with _quiet_lightning():
                self._fit(checkpoint)
        except Diverged as reason:
            return self._record(Status.DIVERGED, str(reason))
        if self.trainer.global_step < self.spec.num_steps:
            done = f"{self.trainer.global_step} of {self.spec.num_steps} steps"
            if any(ranks.any_of(self.stop_request.was_heard)):
                raise Stopped(f"asked to stop after {done}")
            return self._record(Status.OUT_OF_TIME, f"max_hours {self.execution.max_hours:g} passed after {done}")
        return self._evaluated()

    def _newest(self) -> Path | None:
        """The checkpoint to go on from; one process chooses, since a damaged one may look different to another."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        drop_unfinished(self.checkpoints)
        own = newest(self.checkpoints, self.spec.digest())
        if own is not None or self.trunk is None:
            return own
        return start_from(trunks.folder_of(self.folder.parent, self.trunk), self.trunk, self.folder / METRICS_FILE)

    def _evaluated(self) -> RunRecord:
        """The record with the losses on all sets of the corpus but the one it was trained on."""
        self.module.to(self.trainer.strategy.root_device)  # a Trainer that is done leaves its model on the CPU
        evaluations: dict[str, Evaluation] = {}
        for name in self.corpus.facts.sets:
            if name == TRAIN_SET:
                continue
            with counted_pairs(self.module.decoder) as pairs:
                evaluation = evaluate(self.module.decoder, self.spec.training, self.corpus, name, self.place.share)
            if evaluation is None:
                return self._record(Status.DIVERGED, f"loss on {name} is not finite after the last step")
            evaluations[name] = evaluation
            if name == PUBLISHED_SET and pairs:
                self._keep_routing(pairs, name, evaluation.num_tokens)
        self._keep_specimen()
        return self._record(Status.FINISHED, evaluations=evaluations)

    def _keep_routing(self, pairs: list[Tensor], name: str, num_tokens: int) -> None:
        """Beside the record: several hundred numbers a layer, which no table needs."""
        counts = [ranks.summed(pairs_E).tolist() for pairs_E in pairs]
        routing = RoutedPairs(digest=self.spec.digest(), validation=name, num_tokens=num_tokens, pairs=counts)
        if self.place.is_first:
            write_routing(routing, self.folder)

    def _keep_specimen(self) -> None:
        """All ranks look, since a model that is cut over them runs on all together."""
        found = specimen(self.module.decoder, self.spec, self.corpus)
        if self.place.is_first:
            write_specimen(found, self.folder)

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS_FOLDER

    @cached_property
    def trunk(self) -> trunks.Trunk | None:
        return trunks.trunk(self.spec)

    @cached_property
    def counts(self) -> Counts:
        return count(self.spec.model, self.spec.training.context)

    @cached_property
    def clock(self) -> Clock:
        return Clock()

    @cached_property
    def stop_request(self) -> StopOnRequest:
        return StopOnRequest()

    @cached_property
    def module(self) -> LanguageModule:
        decoder = Decoder(self.spec.model)
        generator = Generator().manual_seed(stream(self.spec.seed, "init"))
        initialise(decoder, generator, self.spec.model.initializer_range)
        return LanguageModule(decoder, self.spec.training)

    @cached_property
    def trainer(self) -> Trainer:
        training = self.spec.training
        return Trainer(
            accelerator="gpu" if torch.cuda.is_available() else "cpu",
            devices=self.execution.num_devices,
            num_nodes=self.execution.num_nodes,
            strategy=parallel.strategy(self.execution),
            precision="bf16-mixed" if training.precision == "bfloat16" else "32-true",
            max_steps=self.spec.num_steps,
            max_epochs=-1,
            accumulate_grad_batches=training.batch_size // training.sequences_per_pass,
            gradient_clip_val=training.gradient_clip,
            # Not Lightning's Slurm environment: it would requeue the job besides its launcher.
            plugins=[self._environment(), AtomicCheckpoints()],
            callbacks=self._callbacks(),
            default_root_dir=self.folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
        )

    def _environment(self) -> ClusterEnvironment:
        return LightningEnvironment() if self.execution.strategy == "single" else parallel.Ranks(self.place)

    def _callbacks(self) -> list[Callback]:
        """In the order they run: time first, so that all others see it; saving last, so that it saves all others."""
        spec, execution = self.spec, self.execution
        balancers = self.module.decoder.balancers()
        limit = math.inf if execution.max_hours is None else execution.max_hours * 3600
        metrics = self.folder / METRICS_FILE
        every, inspect_every = execution.log_every_steps, execution.inspect_every_lines
        qk_clip = spec.training.optimizer.qk_clip
        return [
            self.clock,
            LearningRate(spec.training, spec.num_steps),
            StopOnDivergence(spec.training.divergence_loss),
            BalancingStep(balancers),
            *([] if qk_clip is None else [ClipLogits(qk_clip, self.module.decoder)]),
            MetricsLog(metrics, every, inspect_every, spec, self.counts, self.clock, balancers),
            TimeLimit(limit),
            self.stop_request,
            *self._saving_trunk(metrics),
            SaveCheckpoints(self.checkpoints, spec.digest(), execution.checkpoint_seconds),
        ]

    def _saving_trunk(self, metrics: Path) -> list[Callback]:
        if self.trunk is None:
            return []
        folder = trunks.folder_of(self.folder.parent, self.trunk)
        return [SaveTrunk(folder, self.trunk, metrics, keeps_own=self.execution.keep_trunks)]

    def _fit(self, checkpoint: Path | None) -> None:
        seed, share = stream(self.spec.order_seed, "data"), self.place.share
        batches = StepBatches(self.corpus, self.spec.training, seed, lambda: self.trainer.global_step, share)
        self.trainer.fit(self.module, batches, ckpt_path=checkpoint)

    def _record(
        self, status: Status, reason: str = "", evaluations: Mapping[str, Evaluation] | None = None
    ) -> RunRecord:
        num_steps = self.trainer.global_step
        tokens = num_steps * self.spec.training.tokens_per_step
        seconds = self.clock.seconds - self.clock.seconds_of_trunk
        trained = tokens - self.clock.branched_at * self.spec.training.tokens_per_step
        frozen = read_spec(self.folder, self.spec.digest())
        return RunRecord(
            digest=self.spec.digest(),
            status=status,
            reason=reason,
            evaluations=dict(evaluations or {}),
            first_loss=self.clock.first_loss,
            num_steps=num_steps,
            tokens=tokens,
            flops=self.counts.training_flops(tokens),
            flops_6nd=self.counts.training_flops_6nd(tokens),
            active_params=self.counts.active_params,
            total_params=self.counts.total_params,
            wall_seconds=seconds,
            tokens_per_second=trained / seconds if seconds else 0.0,
            corpus=self.corpus.digest,
            trunk=None if self.trunk is None else self.trunk.digest,
            branched_at=self.clock.branched_at,
            num_resumes=self.clock.num_resumes,
            kernels=dispatch.used(),
            device=self._device_name(),
            versions=versions_beside(frozen.versions if frozen else {}),
            codes=tuple(self.clock.codes),
            ended=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _device_name(self) -> str:
        """Of one, and how many of them worked on the run."""
        device = self.trainer.strategy.root_device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return name if self.place.num_ranks == 1 else f"{self.place.num_ranks} x {name}"


def _settled_record(folder: Path, digest: str) -> RunRecord | None:
    """The record of a run that is not to be trained again."""
    record = read_record(folder, digest)
    return record if record is not None and record.status in SETTLED else None


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """No announcements, no warnings about what is meant, and Ctrl-C as Python has it."""
    logger = logging.getLogger("lightning.pytorch")
    level, interrupt = logger.level, signal.getsignal(signal.SIGINT)
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in MEANT:
                warnings.filterwarnings("ignore", message)
            yield
    except SystemExit:  # what Lightning makes of Ctrl-C, after which it leaves the signal ignored
        signal.signal(signal.SIGINT, interrupt)
        raise KeyboardInterrupt from None
    finally:
        logger.setLevel(level)

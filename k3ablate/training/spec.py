"""What does one run need, and what is it called? `RunSpec` and its parts; nothing here trains.

A RunSpec is resolved and carries no labels, so that its digest is its identity: two experiments that ask for the
same run share it. How a run is carried out (checkpoint interval, device, store) is `Execution` and not part of it.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from k3ablate.config import Config, InputError
from k3ablate.model.decoder import ModelConfig
from k3ablate.training.curation import PythonRules
from k3ablate.training.optimizers import OptimizerConfig
from k3ablate.training.schedules import ScheduleConfig

Seed = Annotated[int, Field(ge=0, lt=2**63)]  # fits a column of whole numbers


class PythonSources(Config):
    """Python files that are on any machine: the standard library and the installed distributions.

    Whole top-level packages are held out: `validation` from the same kind of code, `out_of_distribution` from another.
    What is held out does not depend on `rules`, which the training text alone follows.
    """

    kind: Literal["python_sources"] = "python_sources"
    validation: tuple[str, ...]
    out_of_distribution: tuple[str, ...]
    max_bytes: PositiveInt | None = None  # of training text, before tokenizing; None takes everything
    rules: PythonRules = PythonRules()


class HubDataset(Config):
    """A dataset of the Hugging Face Hub at a pinned revision; the held-out rows are chosen by a hash of the text."""

    kind: Literal["hub"] = "hub"
    name: str
    revision: str = Field(min_length=7, description="a commit, so that the corpus cannot change under an experiment")
    subset: str | None = None
    split: str = "train"
    text_column: str = "text"
    validation_fraction: float = Field(default=0.001, gt=0, lt=0.5)
    max_documents: PositiveInt | None = None


class LocalFiles(Config):
    """Parquet, JSONL or plain-text files; globs are relative to the working folder."""

    kind: Literal["files"] = "files"
    format: Literal["parquet", "jsonl", "text"]
    train: tuple[str, ...] = Field(min_length=1)
    validation: tuple[str, ...] = ()  # empty: held out of `train` by a hash of the text
    out_of_distribution: tuple[str, ...] = ()
    text_column: str = "text"
    validation_fraction: float = Field(default=0.01, gt=0, lt=0.5)


SourceConfig = Annotated[PythonSources | HubDataset | LocalFiles, Field(discriminator="kind")]


class Bytes(Config):
    """One token per byte of UTF-8; byte 0, which text does not hold, separates documents. 256 tokens."""

    kind: Literal["bytes"] = "bytes"


class BytePairs(Config):
    """Byte-level BPE trained on the first `train_bytes` of the training text; token 0 separates documents.

    Recipes of several texts that are to be compared state one `source` here, so that they share their tokens.
    """

    kind: Literal["bpe"] = "bpe"
    vocabulary_size: PositiveInt = Field(ge=257)
    train_bytes: PositiveInt = 50_000_000
    source: SourceConfig | None = None  # whose training text pairs are learnt from; None: the recipe's own


TokenizerConfig = Annotated[Bytes | BytePairs, Field(discriminator="kind")]


class DataRecipe(Config):
    """Which text, cut into which tokens. Built once into a corpus whose digest names its content."""

    source: SourceConfig
    tokenizer: TokenizerConfig = Bytes()

    @property
    def vocabulary_size(self) -> int:
        """Number of distinct token ids."""
        return 256 if isinstance(self.tokenizer, Bytes) else self.tokenizer.vocabulary_size


class TrainingConfig(Config):
    """How a model is trained. Lengths in tokens, batches in sequences per optimizer step."""

    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    context: PositiveInt = Field(default=256, ge=8)
    batch_size: PositiveInt = 16
    micro_batch_size: PositiveInt | None = None  # sequences per forward pass; None: the whole batch
    gradient_clip: PositiveFloat | None = 1.0  # global norm
    precision: Literal["float32", "bfloat16"] = "float32"
    divergence_loss: PositiveFloat = 20.0  # a training cross-entropy above this, or NaN, stops the run
    validation_tokens: PositiveInt = 65_536  # read from each validation set at the end

    @model_validator(mode="after")
    def _micro_batches_divide(self) -> Self:
        if self.batch_size % self.sequences_per_pass:
            raise ValueError(
                f"micro_batch_size {self.micro_batch_size} does not divide batch_size {self.batch_size}; "
                "write a divisor of it"
            )
        return self

    @property
    def sequences_per_pass(self) -> int:
        """Sequences of one forward pass."""
        return self.micro_batch_size or self.batch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.batch_size * self.context


class RunSpec(Config):
    """Everything one run needs. Its digest is its identity."""

    model: ModelConfig
    data: DataRecipe
    corpus: str = Field(min_length=1)  # digest of the built corpus
    training: TrainingConfig
    tokens: PositiveInt  # budget; rounded up to whole optimizer steps
    seed: Seed  # of all that is random
    data_seed: Seed | None = None  # of the order of the data alone, where it is another

    @model_validator(mode="after")
    def _vocabularies_agree(self) -> Self:
        if self.model.vocabulary_size < self.data.vocabulary_size:
            raise ValueError(
                f"model.vocabulary_size is {self.model.vocabulary_size}, "
                f"the tokenizer makes {self.data.vocabulary_size} tokens; write at least that"
            )
        return self

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        if self.data_seed == self.seed:
            raise ValueError(f"data_seed {self.data_seed} is seed's; write null, so that one run has one digest")
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        num_warmup = self.training.schedule.num_warmup(self.num_steps)
        if num_warmup > self.num_steps:
            raise ValueError(
                f"training.schedule.warmup_steps is {num_warmup} and the run has {self.num_steps} steps, so that it "
                "would never reach its learning rate; write fewer, or warmup_fraction"
            )
        return self

    @property
    def order_seed(self) -> int:
        """The seed that the order of the data comes from."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return math.ceil(self.tokens / self.training.tokens_per_step)


class Execution(Config):
    """How runs are carried out. Nothing here may change a result beyond rounding, so nothing here is in a digest."""

    checkpoint_seconds: PositiveFloat = 60.0
    log_every_steps: PositiveInt = 10
    inspect_every_lines: PositiveInt = 5  # logged steps that also measure activations
    num_threads: PositiveInt = Field(default=1, le=1024)  # torch threads of one worker, or of each rank
    keep_trunks: bool = False  # save where a WSD decay begins also for budgets that no plan has yet
    max_hours: PositiveFloat | None = None  # then the run stops as out_of_time, resumable
    strategy: Literal["single", "ddp", "fsdp"] = "single"  # fsdp: weights and optimizer state are cut over ranks, too
    num_devices: PositiveInt = 1  # of one run on each node; one process (rank) each
    num_nodes: PositiveInt = 1  # of one run

    @model_validator(mode="after")
    def _several_need_a_strategy(self) -> Self:
        if self.strategy == "single" and self.num_ranks > 1:
            raise ValueError(
                f"strategy is 'single', and num_devices {self.num_devices} x num_nodes {self.num_nodes} are asked for; "
                "write strategy: ddp, or fsdp for a model that one device cannot hold"
            )
        return self

    @property
    def num_ranks(self) -> int:
        """Processes that work on one run."""
        return self.num_devices * self.num_nodes

    def require_shares(self, spec: RunSpec) -> None:
        """InputError where `spec` cannot be cut over the ranks of one run."""
        if self.strategy == "fsdp" and spec.training.optimizer.kind != "adamw":
            raise InputError(
                f"execution.strategy: 'fsdp' cuts matrices over ranks, and {spec.training.optimizer.kind} works on "
                "whole ones; write ddp, or an optimizer of kind adamw"
            )
        if self.strategy == "fsdp" and spec.training.optimizer.qk_clip is not None:
            raise InputError(
                "execution.strategy: 'fsdp' cuts heads over ranks, and training.optimizer.qk_clip scales whole ones; "
                "write ddp, or qk_clip: null"
            )
        training, balancing = spec.training, spec.model.balancing
        if training.sequences_per_pass % self.num_ranks:
            raise InputError(
                f"execution: {self.num_ranks} ranks (num_devices {self.num_devices} x num_nodes {self.num_nodes}) do "
                f"not share the {training.sequences_per_pass} sequences of a forward pass evenly; write a number of "
                "devices that divides training.micro_batch_size (batch_size where there is none)"
            )
        if self.num_ranks > 1 and balancing.kind == "quantile" and balancing.estimator == "exact":
            raise InputError(
                "balancing.estimator: 'exact' sees one process only; write histogram to train on several, or "
                "execution.strategy: single"
            )

"""What does a cluster ask for, and what does a task get there? `ClusterRecipe`, read from `recipes/cluster/*.yaml`.

A value ends up in a script that a shell runs, so it either matches a pattern that leaves nothing to a shell, or is one
printable line that `slurm` quotes. Which runs go into a task is in `packs`, the script in `slurm`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from k3ablate.config import Config, InputError, parse, read_yaml
from k3ablate.recipes import recipe_path

if TYPE_CHECKING:
    from k3ablate.training.spec import Execution

LOADABLE = r"^[A-Za-z0-9_][A-Za-z0-9_.:+/=@-]*$"
# Slurm's own operators of a constraint: & | , and counts, in any brackets.
FEATURES = r"^[A-Za-z0-9_(\[][A-Za-z0-9_.:,&|*()\[\]-]*$"


def one_line(text: str) -> str:
    """`text`, if a shell that gets it quoted and a line-based script leave it as it is; ValueError otherwise."""
    if not text.isprintable():
        raise ValueError("holds a line break or a control character; write it on one line without")
    return text


def _no_option(text: str) -> str:
    if text.startswith("-"):
        raise ValueError("would be read as an option; write a value that does not begin with '-'")
    return text


Word = Annotated[str, Field(pattern=LOADABLE, description="letters, digits and _ . : + / = @ -")]
Text = Annotated[str, Field(min_length=1), AfterValidator(one_line)]
Argument = Annotated[Text, AfterValidator(_no_option)]
# Strict: YAML's `true` is no number. Bounds as far as Slurm's own counters and any cluster go.
Minutes = Annotated[int, Field(strict=True, ge=1, le=525_600, description="a year at most")]
Count = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Gigabytes = Annotated[float, Field(strict=True, gt=0, le=1e6)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

# What sbatch says of an option that this cluster does not have, and the key that it comes from.
REFUSALS = {
    "invalid partition": "partition",
    "not permitted to use this partition": "partition",
    "invalid account": "account",
    "invalid qos": "qos",
    "invalid feature": "constraint",
    "invalid generic resource": "gpus",
    "memory specification": "memory_gb",
    "time limit is invalid": "minutes",
}


class Container(Config):
    """An image that holds Python with this package. Slurm's own commands must be found inside, too (binds)."""

    runtime: Literal["apptainer", "singularity"] = "apptainer"
    image: Argument  # a file or a URI
    binds: tuple[Argument, ...] = ()  # as the runtime writes them: /from or /from:/to
    python: Argument = "python3"  # in the image

    def command(self, has_gpus: bool) -> list[str]:
        """What stands before a command that is to run in the image."""
        binds = [part for bind in self.binds for part in ("--bind", bind)]
        return [self.runtime, "exec", *(["--nv"] if has_gpus else []), *binds, self.image]


class ClusterRecipe(Config):
    """One kind of task on one cluster. What is None is left to the cluster's defaults."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Annotated[str, Field(pattern=FEATURES)] | None = None
    minutes: Minutes  # time limit of a task
    signal_seconds: Annotated[int, Field(strict=True, ge=10, le=3600)] = (
        120  # before the limit: the longest step, and a checkpoint
    )
    memory_gb: Gigabytes | None = None  # per node
    cpus: Count = 1
    gpus: Annotated[int, Field(strict=True, ge=0, le=1024)] = 0  # per node
    nodes: Count = 1
    modules: tuple[Word, ...] = ()
    container: Container | None = None
    environment: dict[VariableName, Annotated[str, AfterValidator(one_line)]] = Field(default_factory=dict)
    runs: Argument | None = None  # folder of runs that all nodes see; None: as on this machine
    runs_per_job: Annotated[int, Field(strict=True, ge=1)] | None = None  # a task's runs, one after the other
    minutes_per_job: PositiveFloat | None = None  # or as many as are expected to take that long
    flops_per_second: PositiveFloat | None = None  # of one task, for that expectation
    max_running: Annotated[int, Field(strict=True, ge=1, le=4_000_000)] = 256  # tasks at once
    requeue: bool = True  # Slurm may put a task back into its queue; otherwise what is left is submitted as a new job
    tracking: Literal["live", "spool"] = "spool"  # spool: nodes reach no store, `k3ablate sync` sends

    @model_validator(mode="after")
    def _packs_are_stated_once(self) -> Self:
        if self.runs_per_job is not None and self.minutes_per_job is not None:
            raise ValueError("runs_per_job and minutes_per_job both say how many runs a task gets; keep one of them")
        if self.minutes_per_job is not None:
            if self.flops_per_second is None:
                raise ValueError(
                    "minutes_per_job needs flops_per_second; write what one task reaches (`k3ablate plan`)"
                )
            if self.minutes_per_job > self.minutes:
                raise ValueError(f"minutes_per_job {self.minutes_per_job:g} is above minutes {self.minutes}, the limit")
        return self

    @model_validator(mode="after")
    def _signal_leaves_time(self) -> Self:
        if self.signal_seconds >= 60 * self.minutes:
            raise ValueError(f"signal_seconds {self.signal_seconds} leaves nothing of minutes {self.minutes}")
        return self

    def folder_of_runs(self, root: Path) -> Path:
        """Where this cluster's runs lie; `root` is this machine's place for them."""
        return (root if self.runs is None else Path(self.runs)).absolute()

    def refuse(self, answer: str) -> None:
        """InputError if Slurm's `answer` to a submission says that a key of this recipe is wrong for the cluster."""
        for words, key in REFUSALS.items():
            if words in answer.lower():
                found = getattr(self, key)
                told = "not stated, and" if found is None else f"found {found!r}, which"
                raise InputError(
                    f"{key}: {told} Slurm does not take ({answer}); write what this cluster has: `sinfo` shows its "
                    "partitions and nodes, its users' guide accounts and limits"
                )

    def check(self, execution: "Execution") -> None:
        """InputError if a run that is carried out like that does not fit on what a task gets."""
        num_threads = execution.num_threads * execution.num_devices
        for key, found, needed in (
            ("cpus", self.cpus, num_threads),
            ("nodes", self.nodes, execution.num_nodes),
            ("gpus", self.gpus or execution.num_devices, execution.num_devices),
        ):
            if found < needed:
                raise InputError(
                    f"{key}: found {found}, but by the experiment's `execution` a run takes {needed}; "
                    f"write {key}: {needed} or more"
                )


def read_cluster_recipe(name: str) -> ClusterRecipe:
    """The recipe in the file `name`, or called so; InputError where it is wrong."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else recipe_path("cluster", name)
    tree = read_yaml(path)
    if not isinstance(tree, Mapping):
        found = "nothing: the file is empty" if tree is None else f"a {type(tree).__name__}"
        raise InputError(f"{path}: found {found}; write a mapping, e.g. partition: NAME and minutes: 60, a key a line")
    return parse(ClusterRecipe, tree, source=str(path))

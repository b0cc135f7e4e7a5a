"""What is submitted to Slurm? The text of an array's script, made by submitit; the only import of it.

Of submitit only the options and the script are used: a task runs a command on a file, nothing is pickled, and what
goes on after a task has ended is `launch`'s affair. `controller` talks to Slurm; nothing here does.
"""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from submitit import SlurmExecutor

from k3ablate.config import InputError
from k3ablate.jobs.cluster import ClusterRecipe

TRACKING_VARIABLE = "K3ABLATE_TRACKING"
UNSAFE_IN_PATH = "%\\\"'"  # file names in sbatch's options: patterns of its own, escapes and quotes


class _Script(SlurmExecutor):
    """submitit's options and script around a command of ours."""

    @classmethod
    def affinity(cls) -> int:
        """Usable: the text can be made without Slurm's programs."""
        return 2

    def text(self, command: Sequence[str], num_tasks: int) -> str:
        """The script of an array of `num_tasks` tasks that run `command`."""
        self.parameters["map_count"] = num_tasks
        return str(self._make_submission_file_text(shlex.join(command), uid=""))


def script(recipe: ClusterRecipe, folder: Path, name: str, command: Sequence[str], num_tasks: int) -> str:
    """The sbatch text of an array with indices 0 to num_tasks - 1; `folder` takes its logs and is its comment."""
    check_path(folder)
    executor = _Script(folder / "logs")
    executor.update_parameters(
        job_name=name,
        comment=str(folder),
        time=recipe.minutes,
        signal_delay_s=recipe.signal_seconds,
        nodes=recipe.nodes,
        ntasks_per_node=1,
        cpus_per_task=recipe.cpus,
        gpus_per_node=recipe.gpus or None,
        mem=None if recipe.memory_gb is None else f"{math.ceil(1024 * recipe.memory_gb)}M",
        partition=recipe.partition,
        account=recipe.account,
        qos=recipe.qos,
        constraint=recipe.constraint,
        array_parallelism=recipe.max_running,
        stderr_to_stdout=True,
        wckey=None,
        setup=_setup(recipe),
        # Since Slurm 22.05 srun does not take this from the job by itself. One task per job: whatever a run needs
        # beside it, its launcher starts.
        srun_args=[f"--cpus-per-task={recipe.cpus}", "--nodes=1", "--ntasks=1"],
        additional_parameters={"requeue" if recipe.requeue else "no-requeue": True},
    )
    container = recipe.container.command(recipe.gpus > 0) if recipe.container else []
    return executor.text([*container, *command], num_tasks)


def check_path(folder: Path) -> None:
    """InputError for a folder whose name Slurm or a shell would read as something else."""
    text = str(folder)
    if not text.isprintable() or any(character in text for character in UNSAFE_IN_PATH):
        raise InputError(
            f"{text!r}: Slurm reads percent signs, backslashes, quotes and line breaks in file names its own way; "
            "keep runs in a folder without, by K3ABLATE_RUNS or the recipe's `runs`"
        )


def _setup(recipe: ClusterRecipe) -> list[str]:
    """Lines before the command: modules, then variables. The shell stops where one of them fails."""
    variables = {TRACKING_VARIABLE: recipe.tracking, **recipe.environment}
    return [
        "set -e",
        *([f"module load {shlex.join(recipe.modules)}"] if recipe.modules else []),
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
    ]

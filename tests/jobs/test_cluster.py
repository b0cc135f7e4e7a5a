"""Cluster recipes: what they refuse, and that nothing in one reaches a shell as anything but itself."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from k3ablate.config import InputError, parse, read_yaml
from k3ablate.jobs.cluster import ClusterRecipe
from k3ablate.jobs.slurm import script
from k3ablate.training.spec import Execution

RECIPES = Path(__file__).parent.parent.parent / "recipes" / "cluster"
HOSTILE = [
    "a;touch pwned",
    "a`touch pwned`",
    "a\ntouch pwned",
    "$(touch pwned)",
    "a b",
    "a'b",
    'a"b',
    "--uid=0",
    "",
    "é",
]
FIELDS = ["partition", "account", "qos", "constraint", "modules"]


def make(**changes: Any) -> ClusterRecipe:
    return parse(ClusterRecipe, {"minutes": 10, **changes}, source="here.yaml")


def text_of(recipe: ClusterRecipe, folder: Path, command: tuple[str, ...] = ("env", "-0")) -> str:
    return script(recipe, folder, "k3ablate-x", command, num_tasks=3)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", FIELDS)
def test_words_for_slurm_leave_nothing_to_a_shell(field: str, value: str) -> None:
    with pytest.raises(InputError, match=rf"^here\.yaml: {field}"):
        make(**{field: [value] if field == "modules" else value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("partition", "gpu-a100"), ("account", "team.x"), ("qos", "high_1"), ("modules", ["cuda/12.8", "gcc-13"])]
    + [("constraint", value) for value in ("h200", "h200|a100", "[rack1*2&rack2*4]", "(a|b)&c")],
)
def test_what_clusters_use_is_taken(field: str, value: Any) -> None:
    assert getattr(make(**{field: value}), field) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\x00b", "a\x1bb"])
@pytest.mark.parametrize(
    "changes",
    [
        lambda value: {"environment": {"A": value}},
        lambda value: {"container": {"image": value}},
        lambda value: {"runs": value},
    ],
    ids=["environment", "container", "runs"],
)
def test_free_text_is_one_printable_line(changes: Any, value: str) -> None:
    with pytest.raises(InputError, match="holds a line break or a control character"):
        make(**changes(value))


@pytest.mark.parametrize("name", ["A;touch pwned", "A=B", "1A", "", "A B"])
def test_names_of_variables_are_names(name: str) -> None:
    with pytest.raises(InputError, match="environment"):
        make(environment={name: "x"})


@pytest.mark.parametrize("changes", [{"container": {"image": "--writable"}}, {"runs": "-x"}])
def test_what_would_be_an_option_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="would be read as an option"):
        make(**changes)


@pytest.mark.parametrize("field", ["minutes", "signal_seconds", "memory_gb", "cpus", "gpus", "nodes", "max_running"])
@pytest.mark.parametrize("value", [True, -1, 99_999_999_999_999, float("inf")])
def test_numbers_are_numbers_that_slurm_can_count(field: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^here\.yaml: {field}"):
        make(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs_per_job": 2, "minutes_per_job": 3}, "keep one of them"),
        ({"minutes_per_job": 3}, "minutes_per_job needs flops_per_second"),
        ({"minutes_per_job": 11, "flops_per_second": 1e9}, "minutes_per_job 11 is above minutes 10, the limit"),
        ({"minutes": 1, "signal_seconds": 60}, "signal_seconds 60 leaves nothing of minutes 1"),
        ({"setup": "rm -rf /"}, "unknown key"),
    ],
)
def test_recipes_that_contradict_themselves(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("recipe", "execution", "message"),
    [
        ({"cpus": 2}, {"num_threads": 4}, "cpus: found 2, .*write cpus: 4 or more"),
        ({"cpus": 7}, {"num_threads": 4, "num_devices": 2, "strategy": "ddp"}, "write cpus: 8 or more"),
        ({"cpus": 4}, {"num_nodes": 2, "strategy": "ddp"}, "write nodes: 2 or more"),
        ({"cpus": 8, "gpus": 1}, {"num_devices": 2, "strategy": "ddp"}, "write gpus: 2 or more"),
    ],
)
def test_a_task_is_large_enough_for_a_run(recipe: dict[str, Any], execution: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**recipe).check(Execution(**execution))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_recipes_that_come_along_are_valid(path: Path, tmp_path: Path) -> None:
    assert text_of(parse(ClusterRecipe, read_yaml(path), source=str(path)), tmp_path)


def test_the_script_of_a_full_recipe(tmp_path: Path) -> None:
    recipe = make(
        partition="gpu", account="team", qos="high", constraint="a|b", signal_seconds=90, memory_gb=2.5, cpus=4, gpus=2,
        max_running=2, requeue=False, modules=["cuda/12.8"], environment={"A": "1"}, tracking="live",
        container={"image": "k3.sif", "binds": ["/data"]},
    )  # fmt: skip
    lines = text_of(recipe, tmp_path, ("python3", "-m", "x")).splitlines()
    assert {line for line in lines if line.startswith("#SBATCH")} == {
        "#SBATCH --account=team", "#SBATCH --array=0-2%2", f"#SBATCH --comment={tmp_path}", "#SBATCH --mem=2560M",
        "#SBATCH --constraint='a|b'", "#SBATCH --cpus-per-task=4", "#SBATCH --gpus-per-node=2",
        "#SBATCH --job-name=k3ablate-x",
        "#SBATCH --no-requeue", "#SBATCH --nodes=1", "#SBATCH --ntasks-per-node=1", "#SBATCH --open-mode=append",
        f"#SBATCH --output={tmp_path}/logs/%A_%a_0_log.out", "#SBATCH --partition=gpu", "#SBATCH --qos=high",
        "#SBATCH --signal=USR2@90", "#SBATCH --time=10",
    }  # fmt: skip
    assert "module load cuda/12.8" in lines
    assert "export K3ABLATE_TRACKING=live" in lines
    (command,) = (line for line in lines if line.startswith("srun"))
    assert command.endswith(" --ntasks=1 apptainer exec --nv --bind /data k3.sif python3 -m x")


def test_a_shell_hands_every_value_on_as_it_was_written(tmp_path: Path) -> None:
    """The whole script through a real shell, with an `srun` that runs its command."""
    value = "$(touch pwned) `touch pwned`; touch pwned & '\"\\ * ~ é"
    folder = tmp_path / "runs $(touch pwned) `touch pwned`;touch pwned"
    folder.mkdir()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "srun").write_text('#!/bin/sh\nwhile [ "$1" != env ]; do shift; done\nexec "$@"\n')
    (bin_folder / "srun").chmod(0o755)
    text = text_of(make(environment={"A": value}), folder)
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, capture_output=True, check=True,
        env={"PATH": f"{bin_folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert f"A={value}" in done.stdout.decode().split("\0")
    assert not list(tmp_path.rglob("pwned"))
    (comment,) = re.findall(r"^#SBATCH --comment=(.*)$", text, flags=re.MULTILINE)
    assert shlex.split(comment) == [str(folder)]


@pytest.mark.parametrize("name", ["a%j", "a\\b", "a'b", 'a"b', "a\nb"])
def test_folders_that_slurm_would_rename_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep runs in a folder without, by K3ABLATE_RUNS or the recipe's `runs`"):
        text_of(make(), tmp_path / name)

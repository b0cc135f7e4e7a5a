"""Where do experiments and recipes lie? Names are looked up in the working folder first, then beside the package.

A recipe is a YAML file `recipes/<kind>/<name>.yaml`; an experiment is a path, or the name of a file in `experiments/`;
what others published of a model is `analysis/published/<model>.yaml`. This module finds and reads them; it does not
know what is inside.
"""

from pathlib import Path

from k3ablate.config import InputError, Tree, read_yaml
from k3ablate.table_files import TABLE_SUFFIXES

CHECKOUT = Path(__file__).resolve().parent.parent
EXPERIMENTS = Path("experiments")
TUNED = Path("recipes") / "tuned"
EXPERIMENT_SUFFIXES = (".yaml", ".yml")


def recipe(kind: str, name: str) -> Tree:
    """The tree of `recipes/<kind>/<name>.yaml`; an unknown name is an InputError that lists the known ones."""
    return read_yaml(recipe_path(kind, name))


def recipe_path(kind: str, name: str) -> Path:
    """The file of the recipe called `name`."""
    return _find(Path("recipes") / kind, name, what=f"{kind} recipe")


def recipe_names(kind: str) -> list[str]:
    """The names of all recipes of a kind."""
    return _names(Path("recipes") / kind)


def experiment_path(name_or_path: str) -> Path:
    """The file of an experiment given by path or by bare name; InputError where there can be none."""
    path = Path(name_or_path)
    if path.suffix in TABLE_SUFFIXES:
        raise InputError(
            f"{path}: is a table of runs, and an experiment is needed: a YAML file, or one of {_known(EXPERIMENTS)}; "
            "`fit` and `split` take tables, and so does `power EXPERIMENT --pilot`"
        )
    if path.suffix not in EXPERIMENT_SUFFIXES and len(path.parts) == 1:
        return _find(EXPERIMENTS, name_or_path, what="experiment")
    if not path.exists() and not any(path.parent.glob("*.yaml")):
        raise InputError(
            f"{path}: no such file; name an experiment by its YAML file, or one of {_known(EXPERIMENTS)} by its name"
        )
    return path


def tuned_recipes(experiment: str) -> dict[str, Tree]:
    """The trees in `recipes/tuned/<experiment>/` by the names of their files; InputError where nothing is tuned."""
    folder = tuned_folder(experiment)
    if folder is None:
        raise InputError(f"{TUNED}/{experiment}: nothing is tuned there; `k3ablate tune {experiment}` does that")
    return {path.stem: read_yaml(path) for path in sorted(folder.glob("*.yaml"))}


def tuned_folder(experiment: str) -> Path | None:
    """The folder of what the studies of an experiment found; None where nothing is tuned."""
    folders = (place / experiment for place in _places(TUNED))
    return next((folder for folder in folders if any(folder.glob("*.yaml"))), None)


def published_path(model: str) -> Path | None:
    """The file of what is published of the model recipe called `model`; None where nothing is."""
    return _first(Path("analysis") / "published", model)


def published_folder() -> Path:
    """Where the data of public reports lie; InputError where neither the working folder nor the checkout has them."""
    folders = [place for place in _places(Path("analysis") / "published") if place.is_dir()]
    if not folders:
        raise InputError("analysis/published: no such folder; it comes with the repository")
    return folders[0]


def _find(folder: Path, name: str, what: str) -> Path:
    path = _first(folder, name)
    if path is not None:
        return path
    raise InputError(f"{folder}/{name}.yaml: no such {what}; write one of {_known(folder)}")


def _known(folder: Path) -> str:
    """The names in a folder of recipes or experiments."""
    return ", ".join(_names(folder)) or "(none found)"


def _names(folder: Path) -> list[str]:
    return sorted({path.stem for place in _places(folder) for path in place.glob("*.yaml")})


def _first(folder: Path, name: str) -> Path | None:
    paths = (place / f"{name}.yaml" for place in _places(folder))
    return next((path for path in paths if path.is_file()), None)


def _places(folder: Path) -> list[Path]:
    return [Path.cwd() / folder, CHECKOUT / folder]

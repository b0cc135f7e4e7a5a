"""Tables of runs made from planted curves, as fixtures that are functions."""

from collections.abc import Callable

import numpy as np
import pandas
import pytest

from k3ablate.fits.forms import Form, form_named

LEVELS = {
    "k2": ("softmax", "plain"), "k3": ("kda", "block"), "kda": ("kda", "plain"), "again": ("softmax", "plain"),
}  # fmt: skip
MULTIPLIERS = {"k2": 1.0, "k3": 2.5, "kda": 1.4, "again": 1.0}
VALUES = {"power": {"A": 30.0, "a": 0.09}, "power_floor": {"E": 1.2, "A": 40.0, "a": 0.12}}


def build(
    form: str = "power", num_sizes: int = 3, num_seeds: int = 2, deviation: float = 0.003, generator_seed: int = 1
) -> pandas.DataFrame:
    """A finished run per arm, size and seed; runs of the same size and seed share two thirds of their variance."""
    generator = np.random.default_rng(generator_seed)
    curve, compute = form_named(form), np.geomspace(1e13, 1e15, num_sizes) if num_sizes > 1 else np.array([1e13])
    common = {arm_group: generator.standard_normal((num_sizes, num_seeds)) for arm_group in ("shared", "again")}
    rows = []
    for arm, factor in MULTIPLIERS.items():
        shared = common["again" if arm == "again" else "shared"]
        noise = deviation * (np.sqrt(2 / 3) * shared + np.sqrt(1 / 3) * generator.standard_normal(shared.shape))
        rows += [
            _row(arm, size, seed, compute[size], _loss(curve, form, compute[size] * factor, noise[size, seed]))
            for size in range(num_sizes)
            for seed in range(num_seeds)
        ]
    return pandas.DataFrame(rows)


def with_diverged(table: pandas.DataFrame, row: int, reason: str = "loss above 30 at step 12") -> pandas.DataFrame:
    """The table with one run that diverged."""
    changed = table.copy()
    changed.loc[row, ["status", "reason"]] = ["diverged", reason]
    changed.loc[row, "loss"] = np.nan
    return changed


@pytest.fixture
def planted_table() -> Callable[..., pandas.DataFrame]:
    return build


@pytest.fixture
def diverged() -> Callable[..., pandas.DataFrame]:
    return with_diverged


def _loss(curve: Form, form: str, compute: float, noise: float) -> float:
    return float(curve.predict(VALUES[form], compute) * np.exp(noise))


def _row(arm: str, size: int, seed: int, compute: float, loss: float) -> dict[str, object]:
    number = seed + (10 if arm == "again" else 0)
    attention, residual = LEVELS[arm]
    return {
        "digest": f"{arm}-{size}-{number}", "experiment": "planted", "arm": arm, "size": f"s{size}", "seed": number,
        "status": "finished", "reason": "", "loss": loss, "bits_per_byte": loss / 0.7, "flops": compute,
        "flops_6nd": compute, "active_params": 1000, "total_params": 2000, "tokens": 10, "wall_seconds": 1.0,
        "mismatch": 0.0, "corpus": "c0ffee", "validation": "validation", "attention": attention,
        "residual": residual,
    }  # fmt: skip

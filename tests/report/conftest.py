"""An analysis of a small planted table: four arms, three sizes, two seeds, one run diverged."""

from collections.abc import Callable, Container

import numpy as np
import pandas
import pytest

from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.report.tables import Provenance

ARMS = {"k2": (1.0, "softmax", "plain"), "k3": (2.5, "kda", "block"), "kda": (1.4, "kda", "plain"),
        "again": (1.0, "softmax", "plain")}  # fmt: skip
REASON = "loss above 30 at step 12"


def build(
    num_sizes: int = 3, renamed: dict[str, str] | None = None, unfinished: Container[str] = (), form: str | None = None,
    steeper: float = 0.0,
) -> Analysis:  # fmt: skip
    """`unfinished`: arms of which every run diverged; `steeper`: what k3 has more of the exponent."""
    generator = np.random.default_rng(7)
    rows = [
        {"arm": (renamed or {}).get(arm, arm), "size": f"s{size}", "seed": seed + 5 * (arm == "again"),
         "status": "finished", "reason": "", "flops": 10.0 ** (13 + size), "attention": attention, "residual": residual,
         "loss": 30 * (factor * 10.0 ** (13 + size)) ** -0.09 * np.exp(0.002 * generator.standard_normal())
         * 10.0 ** (-steeper * size * (arm == "k3"))}
        for arm, (factor, attention, residual) in ARMS.items() for size in range(num_sizes) for seed in (0, 1)
    ]  # fmt: skip
    diverged = {"status": "diverged", "reason": REASON, "loss": None}
    rows = [row | diverged if row["arm"] in unfinished else row for row in rows[:-1]] + [rows[-1] | diverged]
    return analyse(
        pandas.DataFrame(rows), (renamed or {}).get("k2", "k2"), form, np.random.default_rng(0), num_draws=100
    )


@pytest.fixture
def analyses() -> Callable[..., Analysis]:
    return build


@pytest.fixture(scope="session")
def analysis() -> Analysis:
    return build()


@pytest.fixture(scope="session")
def provenance() -> Provenance:
    return Provenance("demo", "0123456789abcdef", "c0ffee", "3 x counted forward FLOPs", "0.1.0", "k3ablate demo")

"""What seeds and points have in common is said wherever curves are fitted through them."""

import numpy as np
import pandas

from k3ablate.fits.analysis import analyse
from k3ablate.fits.caveats import caveats
from k3ablate.fitting import fit


def branches() -> pandas.DataFrame:
    """Two arms at two sizes with two budgets each; only those of k2 are branches."""
    return pandas.DataFrame([
        {"arm": arm, "size": f"s{size}@{budget}tpp", "seed": seed, "flops": 10.0 ** (17 + size) * budget,
         "loss": 3.0 * (10.0**size * budget) ** -0.05 * (1 + 0.001 * seed), "status": "finished",
         "trunk": f"{size}{seed}" if arm == "k2" else None}
        for arm in ("k2", "k3") for size in range(2) for budget in (10, 20) for seed in range(2)
    ])  # fmt: skip


def test_arms_whose_points_share_a_trunk_are_named() -> None:
    (sentence,) = caveats(branches())
    assert sentence.startswith("k2: points of one seed at several budgets share a trunk")


def test_one_budget_or_another_table_has_nothing_to_say() -> None:
    table = branches()
    assert caveats(table[table["size"].str.endswith("@10tpp")]) == ()
    assert caveats(table.drop(columns="trunk")) == ()
    assert caveats(table.assign(trunk=None)) == ()
    assert caveats(table.assign(status=["finished", "failed"] * 8)) != ()
    unfinished = np.where(table["size"].str.endswith("@20tpp"), "failed", "finished")
    assert caveats(table.assign(status=unfinished)) == ()


def test_fits_and_analyses_say_so() -> None:
    expected = caveats(branches())
    assert set(expected) <= set(fit(branches(), "power", num_draws=39).notes)
    analysis = analyse(branches(), "k2", "power", np.random.default_rng(0), num_draws=39)
    assert set(expected) <= set(analysis.warnings)


def test_noise_that_is_held_is_named() -> None:
    table = branches().drop(columns="trunk")
    assert caveats(table.assign(varied="both")) == ()
    assert caveats(table.assign(varied="initialisation")) == (
        "seeds vary initialisation alone: intervals leave out the noise of the order of the data",
    )
    assert "leave out the noise of initialisation" in caveats(table.assign(varied="data_order"))[0]

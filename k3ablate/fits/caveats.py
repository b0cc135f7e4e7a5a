"""What do the runs of a table have in common that intervals, which take them as independent, do not know?

Reads columns of a table of records: `trunk`, one digest for runs of several budgets that share the constant part of a
schedule, and `varied`, what two seeds have different. Nothing is corrected here or elsewhere; how intervals come about
is `uncertainty`.
"""

from collections.abc import Iterator

import pandas

from k3ablate.records import Status, Varied

LEFT_OUT = {Varied.INITIALISATION: "the order of the data", Varied.DATA_ORDER: "initialisation"}


def caveats(table: pandas.DataFrame) -> tuple[str, ...]:
    """A sentence for each; nothing for a table that does not tell."""
    finished = table if "status" not in table else table[table["status"].astype(str) == Status.FINISHED]
    return (*_common_trunks(finished), *_held_noise(finished))


def _common_trunks(finished: pandas.DataFrame) -> Iterator[str]:
    """Arms with points that are branches of one run."""
    if "trunk" not in finished:
        return
    branches = finished[finished["trunk"].notna()]
    sizes = branches.groupby(["arm", "trunk"], sort=False)["size"].nunique()
    arms = list(dict.fromkeys(str(arm) for arm, _ in sizes[sizes > 1].index))
    if arms:
        yield (
            f"{', '.join(arms)}: points of one seed at several budgets share a trunk, so that their noise is common: "
            "intervals, which take points as independent, are too narrow for the level of a curve"
        )


def _held_noise(finished: pandas.DataFrame) -> Iterator[str]:
    """What is the same in all seeds."""
    varied = set(finished["varied"].dropna()) if "varied" in finished else set()
    for name, left_out in LEFT_OUT.items():
        if name in varied:
            yield f"seeds vary {name} alone: intervals leave out the noise of {left_out}"

"""Which points of a curve are branches of one run? Their noise is common, and what is fitted through them says so.

Reads the column `trunk` of a table of records: runs of several budgets that share the constant part of a schedule have
one digest there. Nothing is corrected; intervals take points as independent (`uncertainty`).
"""

import pandas

from k3ablate.records import Status

COLUMN = "trunk"


def common_trunks(table: pandas.DataFrame) -> tuple[str, ...]:
    """One sentence where points of a curve share a trunk; nothing for a table that has none."""
    if COLUMN not in table:
        return ()
    finished = table if "status" not in table else table[table["status"].astype(str) == Status.FINISHED]
    branches = finished[finished[COLUMN].notna()]
    sizes = branches.groupby(["arm", COLUMN], sort=False)["size"].nunique()
    arms = list(dict.fromkeys(str(arm) for arm, _ in sizes[sizes > 1].index))
    if not arms:
        return ()
    return (
        f"{', '.join(arms)}: points of one seed at several budgets share a trunk, so that their noise is common: "
        "intervals, which take points as independent, are too narrow for the level of a curve; seeds do not share one",
    )

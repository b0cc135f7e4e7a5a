"""What scores did the vendor publish for its model and others? The table of analysis/published/, as an exhibit.

Nothing of it is measured by us, and every place that shows it says so.
"""

from pathlib import Path

import pandas

from k3ablate.config import InputError
from k3ablate.report.exhibits import Score, Standing

TABLE = "k3_table2.csv"
COLUMNS = ("category", "benchmark", "model", "setting", "score")
SOURCE = (
    "Kimi K3 technical report (arXiv 2607.24653), Table 2, scores as printed: percent, except the benchmarks named "
    "Elo. Claude Fable 5 ran Agents’ Last Exam at lower effort, with 40 % of the tasks annotated as downgraded."
)
NAMES = {
    "kimi_k3": "Kimi K3", "claude_fable_5": "Claude Fable 5", "gpt_5_6_sol": "GPT-5.6 Sol",
    "claude_opus_4_8": "Claude Opus 4.8", "gpt_5_5": "GPT-5.5", "glm_5_2": "GLM-5.2",
}  # fmt: skip


def published_standing(folder: Path) -> Standing | None:
    """The scores of the table in `folder`; None where there is none, InputError where a column is missing."""
    path = folder / TABLE
    if not path.is_file():
        return None
    frame = pandas.read_csv(path, keep_default_na=False)
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; write {', '.join(COLUMNS)}")
    rows = frame[list(COLUMNS)].itertuples(index=False, name=None)
    return Standing(
        SOURCE,
        tuple(
            Score(category, benchmark, NAMES.get(model, model), setting, float(score))
            for category, benchmark, model, setting, score in rows
        ),
    )

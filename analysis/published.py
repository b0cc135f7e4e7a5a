"""What do the published numbers say when they are computed again from the published data?

    python analysis/published.py

prints one line per result with its interval and what it must be read with. The data lie in analysis/published/, each
with a note on its source; the arithmetic is in k3ablate.fits.
"""

from pathlib import Path

from k3ablate.answers import table
from k3ablate.report.published import Result, results

DATA = Path(__file__).parent / "published"


def cells(found: Result) -> tuple[str, ...]:
    """One line of the table."""
    value = "refused" if found.value is None else f"{found.value:.4g}"
    interval = f"{found.interval.low:.3f} to {found.interval.high:.3f}" if found.interval else ""
    return found.source, found.quantity, value, interval, found.note


if __name__ == "__main__":
    print(table([cells(found) for found in results(DATA)], ["source", "quantity", "value", "95 %", "to be read with"]))

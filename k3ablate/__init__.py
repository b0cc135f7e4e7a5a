"""k3ablate: train language models from swappable pieces over a ladder of sizes and split the gain into its parts."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k3ablate.comparing import compare as compare
    from k3ablate.fitting import fit as fit
    from k3ablate.planning import power as power
    from k3ablate.splitting import split as split

__version__ = "0.1.0"

# Verbs over pandas frames, imported when they are asked for.
VERBS = {
    "compare": "k3ablate.comparing",
    "fit": "k3ablate.fitting",
    "power": "k3ablate.planning",
    "split": "k3ablate.splitting",
}


def __getattr__(name: str) -> object:
    """A verb over frames: k3ablate.fit(frame, ...)."""
    if name not in VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(VERBS[name]), name)

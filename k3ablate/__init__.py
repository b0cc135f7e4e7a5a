"""k3ablate: train language models from swappable pieces over a ladder of sizes and split the gain into its parts."""

__version__ = "0.1.0"

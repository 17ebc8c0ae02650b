"""Statistics: arrays in, numbers out; no files and no questions."""

__all__ = [
    "bootstrap",
    "bounds",
    "exchangeability",
    "group_betting",
    "intervals",
    "reliability",
    "sequential",
]

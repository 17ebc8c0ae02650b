"""Statistics: arrays in, numbers out; no files and no questions."""

__all__ = [
    "adaptive_labels", "bootstrap", "bounds", "exchangeability", "group_betting", "group_test",
    "intervals", "reliability", "sequential", "trinomial"
]  # fmt: skip

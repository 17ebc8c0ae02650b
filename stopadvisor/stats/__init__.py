"""Statistics: arrays in, numbers out; no files and no questions."""

__all__ = [
    "adaptive_labels", "binomial", "bounds", "exchangeability",
    "intervals", "label_sample", "reliability", "sequential", "trinomial"
]  # fmt: skip

"""Statistics: arrays in, numbers out; no files and no questions."""

__all__ = [
    "adaptive_labels", "binomial", "bootstrap", "bounds", "exchangeability",
    "intervals", "label_sample", "reliability", "sequential", "trinomial"
]  # fmt: skip

"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and settings."""

__all__ = [
    "assess", "cases", "classifiers", "costs", "diagnostics", "gain_bootstrap", "map", "peaks",
    "protocol", "proxies", "transfer_gains"
]  # fmt: skip

"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and settings."""

__all__ = [
    "assess",
    "cases",
    "classifiers",
    "diagnostics",
    "gain_bootstrap",
    "map",
    "peaks",
    "protocol",
    "proxies",
]

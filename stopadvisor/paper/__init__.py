"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and settings."""

__all__ = ["analysis", "cases", "classifiers", "diagnostics", "map", "peaks", "protocol", "proxies"]

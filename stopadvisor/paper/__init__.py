"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and settings."""

__all__ = ["analysis", "cases", "classifiers", "map", "peaks", "protocol", "proxies"]

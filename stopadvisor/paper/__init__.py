"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and published figures."""

__all__ = ["analysis", "cases", "classifiers", "map", "peaks", "protocol", "proxies"]

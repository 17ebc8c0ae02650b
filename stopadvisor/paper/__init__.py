"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and published figures."""

__all__ = ["analysis", "classifiers", "map", "peaks", "protocol", "proxies"]

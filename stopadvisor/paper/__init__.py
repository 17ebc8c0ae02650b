"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and published figures."""

__all__ = ["analysis", "map", "peaks", "protocol", "proxies"]

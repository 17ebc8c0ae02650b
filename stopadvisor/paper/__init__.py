"""The paper's own protocol: its costs, thresholds, peaks, bootstraps and settings."""

__all__ = ["assess", "cases", "classifiers", "diagnostics", "map", "peaks", "protocol", "proxies"]

"""From a workload to graded probes: pilot, preflight, probing in batches, grades."""

__all__ = ["collect", "grades", "model_checks", "probe_settings", "probing"]

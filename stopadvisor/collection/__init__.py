"""From a workload to graded probes: pilot, preflight, probing in batches, labels."""

__all__ = [
    "gold_labels", "labels", "markers", "model_checks",
    "probe_settings", "probe_summary", "probing", "rung_recording",
]  # fmt: skip

"""From a workload to graded probes: pilot, preflight, probing in batches, labels."""

__all__ = [
    "labels", "model_checks", "probe_settings", "probing", "rung_recording",
]  # fmt: skip

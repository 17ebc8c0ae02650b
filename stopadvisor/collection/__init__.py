"""From a workload to graded probes: pilot, preflight, probing in batches, labels."""

__all__ = [
    "cues", "gold_labels", "grader_check", "labels", "markers", "model_checks",
    "probe_settings", "probe_summary", "probing", "rung_recording",
]  # fmt: skip

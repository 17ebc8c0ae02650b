"""From a workload to graded probes: pilot, preflight, probing in batches, labels."""

__all__ = [
    "collect",
    "cues",
    "labels",
    "markers",
    "pilot",
    "preflight",
    "probing",
    "progress",
    "recorded",
    "schedule",
    "settings",
]

"""The frozen policy: its file, read with distrust, and the stepper that decides; numpy at most."""

__all__ = [
    "budgets",
    "checks",
    "engine_settings",
    "file",
    "frozen",
    "golden",
    "opcodes",
    "requests",
    "schema",
    "session",
    "signature",
    "source",
    "stepper",
    "terms",
    "triggers",
    "upgrade",
    "values",
]

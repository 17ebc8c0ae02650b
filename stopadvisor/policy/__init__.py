"""The frozen policy: its file, read with distrust, and the stepper that decides; numpy at most."""

__all__ = [
    "budgets", "claims", "engine_settings", "file", "folder", "frozen", "promises",
    "requests", "schema", "session", "signature", "stepper", "template_arguments", "triggers"
]  # fmt: skip

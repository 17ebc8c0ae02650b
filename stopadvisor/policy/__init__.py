"""The frozen policy: its file, read with distrust, and the stepper that decides; numpy at most."""

__all__ = [
    "budgets", "claims", "file", "folder", "frozen", "inspected", "promises", "requests",
    "session", "shown", "signature", "stepper", "template_arguments", "terms", "triggers"
]  # fmt: skip

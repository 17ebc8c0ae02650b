"""The frozen policy: its file, read with distrust, and the stepper that decides; numpy at most."""

__all__ = [
    "claims", "climber", "evidence", "file", "frozen", "inspected", "probed_positions", "requests",
    "run_policies", "rung_policies", "session", "shown", "signature", "stepper",
    "template_arguments", "terms", "triggers",
]  # fmt: skip

"""The frozen policy: its file, read with distrust, and the stepper that decides; numpy at most."""

__all__ = [
    "claims", "climber", "evidence", "file", "frozen", "probed_positions", "requests",
    "run_policies", "rung_policies", "session", "shown", "signature", "stepper", "terms",
]  # fmt: skip

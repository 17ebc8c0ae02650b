"""The frozen policy: its file, which is never trusted, and the stepper that decides."""

__all__ = [
    "claims", "climber", "evidence", "file", "frozen", "requests",
    "run_policies", "rung_policies", "session", "shown", "signature", "stepper", "terms",
]  # fmt: skip

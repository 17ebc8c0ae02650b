"""What is shown about one fixed rule: calibration, export, verification and transfer."""

__all__ = [
    "calibration", "certify", "check_policy", "issue", "labelling", "looks",
]  # fmt: skip

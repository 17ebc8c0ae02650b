"""What is shown about one fixed rule: calibration, export, verification and transfer."""

__all__ = [
    "calibrated_risk", "calibration", "certify", "certify_transfer", "check_policy", "issue",
    "labelling", "looks", "transfer"
]  # fmt: skip

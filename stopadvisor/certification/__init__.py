"""Certify one fixed rule and check it: calibration, labels, export, transfer, verification."""

__all__ = [
    "calibration", "certify", "check_policy", "issue", "labelling", "looks",
]  # fmt: skip

"""What is shown about one fixed rule: calibration, export, verification and transfer."""

__all__ = [
    "calibration",
    "certify",
    "certify_transfer",
    "export",
    "hold",
    "opened",
    "transfer",
    "verification",
]

"""Results as JSON documents: for each command its fields as types, and what fills them."""

__all__ = [
    "assess",
    "calibrate",
    "fields",
    "import_log",
    "import_probes",
    "inspect",
    "parts",
    "plan",
    "probe",
    "profile_serving",
    "program",
    "report",
    "run",
    "simulate",
    "study",
    "transfer",
    "verify",
    "workload",
]

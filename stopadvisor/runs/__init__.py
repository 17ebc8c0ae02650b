"""Files of a run, and who may see which outcome."""

__all__ = [
    "access",
    "archives",
    "compatibility",
    "directory",
    "ledger",
    "manifest",
    "results",
    "simulated",
    "sources",
    "storage",
]

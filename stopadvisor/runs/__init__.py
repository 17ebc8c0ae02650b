"""Files of a run, and who may see which outcome."""

__all__ = [
    "access",
    "archives",
    "compatibility",
    "directory",
    "imported",
    "ledger",
    "manifest",
    "recording",
    "results",
    "simulated",
    "sources",
    "storage",
]

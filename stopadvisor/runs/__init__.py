"""Files of a run, and who may see which outcome."""

__all__ = [
    "access",
    "archives",
    "chain",
    "checks",
    "compatibility",
    "directory",
    "imported",
    "ledger",
    "manifest",
    "neighbours",
    "recording",
    "simulated",
    "sources",
    "storage",
]

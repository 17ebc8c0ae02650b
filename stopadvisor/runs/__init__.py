"""Files of a run, and who may see which outcome."""

__all__ = [
    "access", "archives", "chain", "checks", "compatibility", "directory", "imported",
    "labels", "ledger", "manifest", "neighbours", "recording", "samples", "simulated",
    "sources", "storage"
]  # fmt: skip

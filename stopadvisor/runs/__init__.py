"""Files of a run, and who may see which outcome."""

__all__ = [
    "access", "archives", "directory", "imported", "labels", "ladder", "look_log",
    "manifest", "prices", "recording", "replies", "samples",
    "sources", "storage", "verdicts",
]  # fmt: skip

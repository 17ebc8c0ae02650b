"""Files of a run, and who may see which outcome."""

__all__ = [
    "access", "archives", "compatibility", "directory", "imported", "labels", "ladder",
    "look_log", "look_rules", "manifest", "neighbours", "recording", "replies", "samples",
    "server_regime", "simulated", "sources", "storage"
]  # fmt: skip

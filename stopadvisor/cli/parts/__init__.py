"""What commands share: options, what is made of them, the layout of help, progress, exit codes."""

__all__ = [
    "auditing", "config", "declare", "exit_codes", "failed", "gateway", "help_page",
    "label_loop", "ladder", "model", "pricing", "probe_like", "probing", "settings",
]  # fmt: skip

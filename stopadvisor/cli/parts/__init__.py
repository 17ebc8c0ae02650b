"""What commands share: options, what is made of them, the layout of help, progress, exit codes."""

__all__ = [
    "config", "declare", "exit_codes", "gateway", "help_page", "model", "probing", "settings",
]  # fmt: skip

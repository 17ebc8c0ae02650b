"""A vLLM endpoint plugin that answers covered chat requests under a policy."""

__all__ = ["plugin", "plugin_settings"]

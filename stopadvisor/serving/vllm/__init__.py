"""The policy inside vLLM's own process, as an endpoint plugin.

Nothing here imports vLLM before vLLM loads the plugin.
"""

__all__ = ["plugin", "plugin_settings"]

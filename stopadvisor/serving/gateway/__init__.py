"""A proxy in front of OpenAI-compatible servers that answers covered requests under a policy."""

__all__ = ["server"]

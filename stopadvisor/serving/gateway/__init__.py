"""The policy before any OpenAI-compatible server: a proxy that stops what the policy covers."""

__all__ = ["server"]

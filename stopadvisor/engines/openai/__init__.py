"""The engine over OpenAI-compatible HTTP servers such as vLLM.

The public name is `open_servers`; no HTTP library is imported until it is called.
"""

from stopadvisor.engines.openai.opening import open_servers

__all__ = ["open_servers"]

"""The engine over OpenAI-compatible HTTP servers such as vLLM and SGLang.

Public is `open_servers`.  Importing this package imports no HTTP library; calling it does.
"""

from stopadvisor.engines.openai.opening import open_servers

__all__ = ["open_servers"]

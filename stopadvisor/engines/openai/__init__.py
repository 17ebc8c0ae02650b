"""The engine over OpenAI-compatible HTTP servers such as vLLM and SGLang.

Public are `open_servers` (probing) and `open_model` (one served model, asynchronous).  Importing
this package imports no HTTP library; calling them does.
"""

from stopadvisor.engines.openai.opening import open_model, open_servers

__all__ = ["open_model", "open_servers"]

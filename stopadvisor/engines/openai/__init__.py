"""The engine over OpenAI-compatible HTTP servers such as vLLM and SGLang.

Importing this package imports no HTTP library; `load_engine` and `open_model` do.  The client is
`stopadvisor.engines.openai.client`, what a server can do is `capabilities`, one question is
`model`, and the engine itself is `stopadvisor.engines.openai.engine`.
"""

from stopadvisor.engines.openai.load import load_engine, open_model

__all__ = ["load_engine", "open_model"]

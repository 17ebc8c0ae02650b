"""The engine over OpenAI-compatible HTTP servers such as vLLM and SGLang.

Importing this package imports no HTTP library; `load_engine` does.  The client is
`stopadvisor.engines.openai.client`, what a server can do is `capabilities`, and the engine itself
is `stopadvisor.engines.openai.engine`.
"""

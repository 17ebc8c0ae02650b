"""Engines: what draws traces and forced answers, one module or folder each.

`stopadvisor.engines.hf.load_engine` runs a model through transformers, and
`stopadvisor.engines.openai.load_engine` asks a server; nothing here imports either, so that the
command line starts without torch.
"""

from stopadvisor.engines.errors import OutOfMemory

__all__ = ["OutOfMemory"]

"""Engines: what draws traces and forced answers, one module or folder each.

`stopadvisor.engines.hf.load_engine` runs a model through transformers; nothing here imports it,
so that the command line starts without torch.
"""

from stopadvisor.engines.errors import OutOfMemory

__all__ = ["OutOfMemory"]

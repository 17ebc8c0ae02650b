"""Engines that run a model: `hf` in this process, `openai` at a server.

The public names are `OutOfMemory`, `hf.load_engine` and `openai.open_servers`.  They are imported
from there, so that the command line starts without torch.
"""

from stopadvisor.engines.errors import OutOfMemory

__all__ = ["OutOfMemory"]

"""Models that draw traces and forced answers: here in `hf`, at servers in `openai`.

Public are `OutOfMemory`, `hf.load_engine` and `openai.open_servers`; README.md says what they need.
Nothing here imports them, so that the command line starts without torch.
"""

from stopadvisor.engines.errors import OutOfMemory

__all__ = ["OutOfMemory"]

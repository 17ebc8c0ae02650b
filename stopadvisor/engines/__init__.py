"""Models that draw traces and forced answers: here in `hf`, at servers in `openai`.

Public are `OutOfMemory`, and `load_engine` of either folder; README.md says what each needs.
Nothing here imports them, so that the command line starts without torch.
"""

from stopadvisor.engines.errors import OutOfMemory

__all__ = ["OutOfMemory"]

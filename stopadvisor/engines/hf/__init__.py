"""The engine for models that run here, through transformers.

Public is `load_engine`.  Importing this package imports neither torch nor transformers;
`load_engine` does so only after it has refused what can be refused without them.
"""

from stopadvisor.engines.hf.load import load_engine

__all__ = ["load_engine"]

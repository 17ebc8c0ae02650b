"""The engine that runs a model in this process, through transformers.

The public name is `load_engine`.  Importing this package imports neither torch nor transformers;
`load_engine` does, once the checks that need neither have passed.
"""

from stopadvisor.engines.hf.load import load_engine

__all__ = ["load_engine"]

"""The transformers engine.

Importing this package imports neither torch nor transformers; `load_engine` does, after it has
refused what needs neither to be refused.  The engine itself is `stopadvisor.engines.hf.engine`.
"""

from stopadvisor.engines.hf.load import load_engine

__all__ = ["load_engine"]

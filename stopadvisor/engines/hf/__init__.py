"""The engine for models that run here, through transformers.

Public are `load_engine` (probing), `wrap` (an engine around a loaded model) and `generate` (early
exit with a policy).  Importing this package imports neither torch nor transformers; `load_engine`
does so only after it has refused what can be refused without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stopadvisor.engines.hf.load import load_engine

if TYPE_CHECKING:
    from stopadvisor.engines.hf.assemble import wrap
    from stopadvisor.engines.hf.generation import generate

__all__ = ["generate", "load_engine", "wrap"]

_MODULES = {"generate": "generation", "wrap": "assemble"}
"""Module of each name that needs torch."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    return globals().setdefault(name, getattr(module, name))

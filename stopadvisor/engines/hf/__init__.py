"""The transformers engine.

Importing this package imports neither torch nor transformers; `load_engine` does, after it has
refused what needs neither to be refused, and so do `generate` and `wrap`.  The engine itself is
`stopadvisor.engines.hf.engine`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stopadvisor.engines.hf.load import load_engine

if TYPE_CHECKING:
    from stopadvisor.engines.hf.assemble import wrap
    from stopadvisor.engines.hf.online import generate

__all__ = ["generate", "load_engine", "wrap"]

_HOMES = {"generate": "online", "wrap": "assemble"}
"""Module of each name that needs torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    return globals().setdefault(name, getattr(home, name))

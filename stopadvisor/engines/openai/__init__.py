"""The engine over OpenAI-compatible HTTP servers such as vLLM and SGLang.

Public are `open_servers` (probing), `open_model` (one served model, asynchronous) and `connect`
(early exit with a policy).  Importing this package imports no HTTP library; calling them does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stopadvisor.engines.openai.opening import open_model, open_servers

if TYPE_CHECKING:
    from stopadvisor.engines.openai.policy_server import connect

__all__ = ["connect", "open_model", "open_servers"]


def __getattr__(name: str) -> Any:
    if name != "connect":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, import_module(f"{__name__}.policy_server").connect)

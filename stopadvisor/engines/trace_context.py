"""W3C trace context (`traceparent`, `tracestate`) of the request being answered.

Upstream requests made for it carry it on, so thinking and probes appear below it in a trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

__all__ = ["TRACE_CONTEXT", "trace_context"]

TRACE_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar(
    "trace_context", default=MappingProxyType({})
)
"""Headers by name; empty if the request is not traced."""


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Extract the trace context from a request's lower-case headers."""
    return {
        name.decode(): value.decode()
        for name, value in headers
        if name in (b"traceparent", b"tracestate") and value.isascii()
    }

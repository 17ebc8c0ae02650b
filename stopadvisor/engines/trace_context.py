"""The trace context of the request that is being answered: W3C's `traceparent` and `tracestate`.

Requests that are asked on its behalf carry it, so that thinking and probes stand below it in a
trace.  Knows headers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

__all__ = ["TRACE_CONTEXT", "trace_context"]

TRACE_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar(
    "trace_context", default=MappingProxyType({})
)
"""By header; empty where the request is in no trace."""


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Take the trace context out of a request's headers, whose names are in lower case."""
    return {
        name.decode(): value.decode()
        for name, value in headers
        if name in (b"traceparent", b"tracestate") and value.isascii()
    }

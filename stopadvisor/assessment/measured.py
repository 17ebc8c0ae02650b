"""Costs counted as the server was measured to be, unless the user chose another costing.

Knows what `probe` wrote down of a server, and asks none.
"""

from __future__ import annotations

from dataclasses import replace

from stopadvisor.assessment.choice import Settings
from stopadvisor.runs.server_regime import RegimeMeasure

__all__ = ["measured_settings", "remark_on_serving"]


def measured_settings(settings: Settings, server: RegimeMeasure | None) -> Settings:
    """Settings that cost as the server was measured to be; unmeasured, one that keeps nothing."""
    if server is None or server.regime is None:
        return replace(settings, serving="black-box")
    block = server.cache_block or settings.cache_block
    return replace(settings, serving=server.regime, cache_block=block)


def remark_on_serving(server: RegimeMeasure | None, settings: Settings) -> str:
    """What the server was measured to be, and whether costs are counted so."""
    if server is None or server.regime is None:
        why = (
            "was not measured: `stopadvisor probe` again does, with the server up"
            if server is None
            else f"is not clear: {server.reason}"
        )
        return (
            f"the serving regime {why}; costs are those of {settings.serving}, --serving says "
            "another"
        )
    block = server.cache_block or settings.cache_block
    measured = f"this server is {server.regime}, as measured: {server.reason}"
    if settings.serving != server.regime:
        return f"{measured}; costs are those of {settings.serving}, as asked"
    if server.regime == "prefix-cache" and server.cache_block is None:
        return f"{measured}; blocks of {block} tokens are taken for granted"
    return measured

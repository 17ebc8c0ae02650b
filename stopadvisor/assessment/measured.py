"""Costs counted as the server was measured to be, unless the user chose another costing.

Knows what `probe` wrote down of a server, and asks none.
"""

from __future__ import annotations

from dataclasses import replace

from stopadvisor.assessment.choice import Settings
from stopadvisor.engines.openai.regime import RegimeMeasure
from stopadvisor.rules.costs import NOTHING_CACHED

__all__ = ["measured_settings", "remark_on_serving"]


def measured_settings(
    settings: Settings, server: RegimeMeasure | None, *, paper: bool = False
) -> Settings:
    """Settings that cost as the server was measured to be; unmeasured, as one that keeps nothing.

    The paper has no regime `overlap`, so that its protocol keeps the settings there.
    """
    if server is None or server.regime is None:
        return replace(settings, serving="black-box")
    if paper and server.regime == "overlap":
        return settings
    return replace(settings, serving=server.regime, cache_block=_block(settings, server))


def _block(settings: Settings, server: RegimeMeasure) -> int:
    """Tokens per block as measured; of what nobody saw caching, nothing counts as cached."""
    unseen = NOTHING_CACHED if server.regime == "overlap" else settings.cache_block
    return server.cache_block or unseen


def remark_on_serving(server: RegimeMeasure | None, settings: Settings, *, asked: bool) -> str:
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
    block = _block(settings, server)
    measured = f"this server is {server.regime}, as measured: {server.reason}"
    if settings.serving != server.regime:
        why = "as asked" if asked else "as the paper has no such regime"
        return f"{measured}; costs are those of {settings.serving}, {why}"
    if server.regime in ("prefix-cache", "overlap") and settings.cache_block != block:
        return f"{measured}; costs are those of blocks of {settings.cache_block}, as asked"
    if server.regime == "prefix-cache" and server.cache_block is None:
        return f"{measured}; blocks of {block} tokens are taken for granted"
    return measured

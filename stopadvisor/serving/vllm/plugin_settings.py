"""The plugin's settings, as environment variables, and the vLLM versions it was tried with.

`stopadvisor serve` sets the variables, or you set them yourself.  Knows no engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from stopadvisor.ground.errors import ModelError, PolicyError

if TYPE_CHECKING:
    from stopadvisor.serving.audits import AuditSettings

__all__ = ["NAME", "TRIED", "PluginSettings", "check_vllm", "is_tried"]

NAME = "stopadvisor"
"""Of the plugin, in ``VLLM_PLUGINS``."""
TRIED = ("0.32",)
"""Series of vLLM that the plugin was tried with, the oldest first."""
_POLICY, _SHADOW = "STOPADVISOR_POLICY", "STOPADVISOR_SHADOW"
_KEYS, _ANY_TEXT = "STOPADVISOR_REQUIRE_SIGNATURE", "STOPADVISOR_ANY_TEXT"
_AUDIT = "STOPADVISOR_AUDIT"


@dataclass(frozen=True)
class PluginSettings:
    """Which policies, and how they are followed."""

    policy: Path
    """A policy's file, or a folder with one for each model and task."""
    shadow: bool = False
    """Judge, never stop, and count what would have been stopped."""
    require_signature: tuple[Path, ...] = ()
    """Public keys, of which one must have signed each policy."""
    audit: AuditSettings | None = None
    any_text: bool = False
    """Cover requests without the policy's prompt template around the question."""

    @classmethod
    def of_environment(cls, found: Mapping[str, str] = os.environ) -> PluginSettings:
        """Read the variables.

        Raises
        ------
        PolicyError
            No policy is named, or a switch is neither 0 nor 1.
        """
        if not found.get(_POLICY):
            raise PolicyError(f"{_POLICY}: expected a policy's file or a folder, got none")
        keys, audit = found.get(_KEYS, ""), None
        if found.get(_AUDIT):
            from stopadvisor.serving.audits import AuditSettings

            audit = AuditSettings.of_json(found[_AUDIT])
        return cls(
            policy=Path(found[_POLICY]),
            shadow=_switch(found, _SHADOW),
            require_signature=tuple(Path(key) for key in keys.split(os.pathsep) if key),
            any_text=_switch(found, _ANY_TEXT),
            audit=audit,
        )

    def environment(self) -> dict[str, str]:
        """Return the variables, ``VLLM_PLUGINS`` apart."""
        return {
            _POLICY: str(self.policy.absolute()),
            _SHADOW: str(int(self.shadow)),
            _KEYS: os.pathsep.join(str(key.absolute()) for key in self.require_signature),
            _ANY_TEXT: str(int(self.any_text)),
            _AUDIT: "" if self.audit is None else self.audit.to_json(),
        }


def _switch(found: Mapping[str, str], name: str) -> bool:
    value = found.get(name) or "0"
    if value not in ("0", "1"):
        raise PolicyError(f"{name}: expected 0 or 1, got {value!r}")
    return value == "1"


def check_vllm(found: str | None = None) -> str:
    """Return vLLM's version, unless it is older than the plugin was tried with.

    A newer one is let in: `self_test` decides at start.

    Raises
    ------
    ModelError
        It is older, or there is no vLLM.
    """
    tried = ", ".join(f"{series}.*" for series in TRIED)
    if found is None:
        try:
            found = version("vllm")
        except PackageNotFoundError as error:
            raise ModelError(
                f"there is no vLLM in this environment (tried with {tried}): "
                "pip install 'stopadvisor[vllm]' into vLLM's; a gateway before servers that run "
                "(--upstream URL) needs 'stopadvisor[serve]'"
            ) from error
    if _series(found) < _series(TRIED[0]):
        raise ModelError(
            f"the plugin was tried with vLLM {tried} and takes no older one, got {found}: "
            f"pip install 'vllm>={TRIED[0]}'"
        )
    return found


def is_tried(found: str) -> bool:
    """Whether the plugin's tests ran with this series of vLLM."""
    return _series(found) in map(_series, TRIED)


def _series(found: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", found)[:2])

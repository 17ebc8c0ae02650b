"""The plugin's settings as environment variables, and the vLLM versions that were tried."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stopadvisor.ground.errors import ModelError, PolicyError
from stopadvisor.serving.serve_settings import AuditSettings, ServeSettings

__all__ = ["NAME", "check_vllm", "is_tried", "settings_of", "variables_of"]

NAME = "stopadvisor"
"""Name of the plugin in ``VLLM_PLUGINS``."""
_TRIED = ("0.31", "0.32")
"""vLLM release series that passed the plugin's tests, oldest first."""
_POLICY, _SHADOW = "STOPADVISOR_POLICY", "STOPADVISOR_SHADOW"
_KEYS, _ANY_TEXT = "STOPADVISOR_REQUIRE_SIGNATURE", "STOPADVISOR_ANY_TEXT"
_AUDIT = "STOPADVISOR_AUDIT"


def settings_of(variables: Mapping[str, str]) -> ServeSettings:
    """Read the settings from environment variables.

    Raises `PolicyError` if no policy is named, or a switch is neither 0 nor 1.
    """
    if not variables.get(_POLICY):
        raise PolicyError(f"{_POLICY}: expected a policy's file or a folder, got none")
    for name in (_SHADOW, _ANY_TEXT):
        if (value := variables.get(name)) not in (None, "", "0", "1"):
            raise PolicyError(f"{name}: expected 0 or 1, got {value!r}")
    audit, keys = variables.get(_AUDIT), variables.get(_KEYS, "").split(os.pathsep)
    return ServeSettings(
        policy=Path(variables[_POLICY]),
        shadow=variables.get(_SHADOW) == "1",
        any_text=variables.get(_ANY_TEXT) == "1",
        require_signature=tuple(Path(key) for key in keys if key),
        audit=AuditSettings.of_json(audit) if audit else None,
    )


def variables_of(settings: ServeSettings) -> dict[str, str]:
    """Return the settings as environment variables, without ``VLLM_PLUGINS``."""
    return {
        _POLICY: str(settings.policy.absolute()),
        _SHADOW: str(int(settings.shadow)),
        _KEYS: os.pathsep.join(str(key.absolute()) for key in settings.require_signature),
        _ANY_TEXT: str(int(settings.any_text)),
        _AUDIT: "" if settings.audit is None else settings.audit.to_json(),
    }


def check_vllm() -> str:
    """Return vLLM's version; accept untried newer ones, as the self-test at start decides.

    Raises `ModelError` if vLLM is older than any tried version, or is not installed.
    """
    tried = ", ".join(f"{series}.*" for series in _TRIED)
    try:
        found = version("vllm")
    except PackageNotFoundError as error:
        raise ModelError(
            f"there is no vLLM in this environment (tried with {tried}): "
            "pip install 'stopadvisor[vllm]' into vLLM's; a gateway to running servers "
            "(--upstream URL) needs 'stopadvisor[serve]'"
        ) from error
    if _series(found) < _series(_TRIED[0]):
        raise ModelError(
            f"the plugin was tried with vLLM {tried} and takes no older one, got {found}: "
            f"pip install 'vllm>={_TRIED[0]}'"
        )
    return found


def is_tried(found: str) -> bool:
    """Whether this vLLM series passed the plugin's tests."""
    return _series(found) in map(_series, _TRIED)


def _series(found: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", found)[:2])

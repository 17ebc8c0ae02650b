"""Whether a model's files can be had at all, judged before its loading is begun.

Knows the Hugging Face Hub's cache and address; nothing of models.
"""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

from stopadvisor.errors import ModelError

__all__ = ["require_hub"]


def require_hub(model: str) -> None:
    """Refuse at once what is not in the cache and cannot be fetched.

    The Hub's own client tries five times and half a minute to reach a host that is not there.

    Raises
    ------
    ModelError
        The model is in neither place.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    host = urlsplit(constants.ENDPOINT)
    proxied = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    try:
        if constants.HF_HUB_OFFLINE:
            raise ConnectionError("HF_HUB_OFFLINE is set")
        if not proxied:
            port = host.port or (443 if host.scheme == "https" else 80)
            socket.create_connection((host.hostname or "", port), timeout=10).close()
    except OSError as error:
        raise ModelError(
            f"model {model!r} is neither a local folder nor in the local cache, and "
            f"{host.hostname} cannot be reached ({error})"
        ) from error

"""A model's files: whether they can be reached, and a hash that tells them from others.

Knows local folders and the Hugging Face Hub's cache and address; reads no configuration and no
weights into a model.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from stopadvisor.ground.errors import ModelError

__all__ = ["content_revision", "require_hub"]

_PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "*.bin")
_WHOLE = 2**26
"""Files up to this size are read whole."""
_PIECE = 2**20
_PIECES = 32


def content_revision(folder: Path) -> str:
    """Hash a folder's configuration and weights.

    Notes
    -----
    Of a file above 64 MB, its length and 32 pieces of one megabyte, evenly spaced from its first
    byte to its last, are hashed: enough to tell fine-tunes and formats apart at the speed of a
    look, and no defence against somebody who wants two models to look alike.
    """
    digest = hashlib.sha256()
    files = sorted({file for pattern in _PATTERNS for file in folder.glob(pattern)})
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _WHOLE:
                digest.update(stream.read())
                continue
            for piece in range(_PIECES):
                stream.seek((size - _PIECE) * piece // (_PIECES - 1))
                digest.update(stream.read(_PIECE))
    return f"sha256:{digest.hexdigest()}"


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

"""A model's files without its weights: availability, revision hash, tokenizer.

Needs no torch, because the model may run at a server; imports transformers on first use.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stopadvisor.engines.errors import first_line, require_packages
from stopadvisor.engines.sampling import identity_settings
from stopadvisor.ground.errors import ModelError

__all__ = [
    "LoadedTokenizer",
    "content_revision",
    "load_tokenizer",
    "quiet",
    "require_hub",
    "served_identity",
    "stop_ids",
    "token_counter",
]

_PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "*.bin")
_WHOLE = 2**26
"""Larger files are hashed in part, in bytes."""
_PIECE = 2**20
_PIECES = 32


def content_revision(folder: Path) -> str:
    """Hash a folder's configuration and weights.

    For files above 64 MB, hash the length and 32 evenly spaced pieces of one megabyte.  That tells
    fine-tunes and formats apart, but does not stop someone who wants two models to look alike.
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


def served_identity(
    engine: str,
    version: str | None,
    model: str,
    *,
    generation: Any,
    dtype: str | None = None,
    quantization: str | None = None,
) -> dict[str, Any]:
    """Return the known properties of a served model that determine its outcomes.

    `model` is a folder or a name.
    """
    root = Path(model)
    local = (root / "config.json").is_file()
    return {
        "engine": engine,
        "engine_version": version,
        # A folder goes by its base name, as with the hf engine.
        "model": root.resolve().name if local or root.is_absolute() else model,
        # Only the files show which weights the server loaded.
        "model_revision": content_revision(root) if local else None,
        "dtype": dtype,
        "attention": None,
        "device": None,
        "quantization": quantization,
        "generation_config": identity_settings(generation),
    }


def require_hub(model: str) -> None:
    """Raise `ModelError` at once if a model is not cached and the Hub cannot be reached.

    The Hub's own client would retry five times, for half a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except ValueError as error:  # such as 'qwen3:8b', or a path
        raise ModelError(
            f"model {model!r} is neither a local folder nor a name on the Hugging Face Hub"
        ) from error
    if isinstance(cached, str):
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


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer and the generation settings of its model."""

    tokenizer: Any
    generation: Any
    """A transformers ``GenerationConfig``."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a generation."""
        return stop_ids(self.generation, self.tokenizer)


def load_tokenizer(model: str, *, settings_of: str | None = None) -> LoadedTokenizer:
    """Load a tokenizer and generation settings, by default both of `model`.

    Both models are folders or Hub names.  Raise `ModelError` if the tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    if not Path(model).is_dir():
        require_hub(model)
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        except Exception as error:  # the Hub's client and the parsers raise many kinds
            raise ModelError(
                f"cannot load the tokenizer of model {model!r}: {first_line(error)}"
            ) from error
        return LoadedTokenizer(tokenizer, _generation_settings(settings_of or model))


def token_counter(model: str) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text; raises as `load_tokenizer`."""
    require_packages("openai", "transformers", what="counting tokens")
    tokenizer = load_tokenizer(model).tokenizer
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def _generation_settings(model: str) -> Any:
    """Read a model's generation settings, or derive them from its configuration."""
    from transformers import AutoConfig, GenerationConfig

    with suppress(OSError):
        return GenerationConfig.from_pretrained(model)
    with suppress(OSError, ValueError):  # as transformers does
        return GenerationConfig.from_model_config(
            AutoConfig.from_pretrained(model, trust_remote_code=False)
        )
    return GenerationConfig()  # a folder with only a tokenizer


def stop_ids(generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return the model's and the tokenizer's token ids that end a generation."""
    ids = getattr(generation, "eos_token_id", None)
    ends = {int(i) for i in (ids if isinstance(ids, list) else [ids]) if i is not None}
    if tokenizer.eos_token_id is not None:
        ends.add(int(tokenizer.eos_token_id))
    if not ends:
        raise ModelError("neither the model nor its tokenizer names a token that ends an answer")
    return tuple(sorted(ends))


@contextmanager
def quiet(*, bars: bool = True) -> Iterator[None]:
    """Silence the log messages of transformers, and its progress bars unless `bars`."""
    import huggingface_hub
    import transformers

    log: Any = transformers.utils.logging
    hub: Any = huggingface_hub.utils.logging
    verbosity, shown = (log.get_verbosity(), hub.get_verbosity()), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    hub.set_verbosity_error()
    if not bars:
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity[0])
        hub.set_verbosity(verbosity[1])
        if shown:
            log.enable_progress_bar()

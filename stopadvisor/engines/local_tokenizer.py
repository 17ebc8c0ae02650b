"""A model's tokenizer and generation settings, without its weights and without torch.

For a model that runs at a server.  Importing this module imports transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import transformers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from stopadvisor.engines.errors import first_line
from stopadvisor.engines.model_files import require_hub
from stopadvisor.ground.errors import ModelError

__all__ = ["LoadedTokenizer", "generation_settings", "load_tokenizer", "quiet", "stop_ids"]


@dataclass(frozen=True)
class LoadedTokenizer:
    """What can be known of a model without its weights."""

    tokenizer: Any
    generation: Any
    """The model's generation settings, a transformers ``GenerationConfig``."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation."""
        return stop_ids(self.generation, self.tokenizer)


def load_tokenizer(model: str) -> LoadedTokenizer:
    """Load a tokenizer with the model's generation settings, from a folder or from the Hub.

    Raises
    ------
    ModelError
        There is no such model here or there, or it has no tokenizer.
    """
    if not Path(model).is_dir():
        require_hub(model)
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        except Exception as error:  # the hub, its client and the parsers raise many
            raise ModelError(
                f"cannot load the tokenizer of model {model!r}: {first_line(error)}"
            ) from error
        return LoadedTokenizer(tokenizer, generation_settings(model))


def generation_settings(model: str) -> Any:
    """Read a model's generation settings; a model without them has those of its configuration."""
    with suppress(OSError):
        return GenerationConfig.from_pretrained(model)
    with suppress(OSError, ValueError):  # as transformers itself does for such a model
        return GenerationConfig.from_model_config(
            AutoConfig.from_pretrained(model, trust_remote_code=False)
        )
    return GenerationConfig()  # a folder with nothing but a tokenizer


def stop_ids(generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return every id that ends a generation, the model's and the tokenizer's.

    Raises
    ------
    ModelError
        There is none.
    """
    ids = getattr(generation, "eos_token_id", None)
    found = {int(i) for i in (ids if isinstance(ids, list) else [ids]) if i is not None}
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    if not found:
        raise ModelError("neither the model nor its tokenizer names a token that ends an answer")
    return tuple(sorted(found))


@contextmanager
def quiet(*, bars: bool = True) -> Iterator[None]:
    """Silence transformers' advice, and its bars where nothing is downloaded."""
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

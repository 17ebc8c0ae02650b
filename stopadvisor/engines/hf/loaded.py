"""An engine around a model that is loaded already, as a serving loop has it.

The same checks as when loading, and the same identity, so that a policy recognises the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from stopadvisor.engines.chat import Chat
from stopadvisor.engines.hf.assemble import around, check_layers
from stopadvisor.engines.hf.cache import register_attention
from stopadvisor.engines.hf.engine import HfEngine
from stopadvisor.errors import ModelError

__all__ = ["wrap"]


def wrap(
    model: Any,
    tokenizer: Any,
    *,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> HfEngine:
    """Make an engine out of a loaded model and its tokenizer.

    Parameters
    ----------
    model : transformers model
        A causal language model.  It is put into evaluation mode and its attention set to the one
        that branches over a kept cache; by itself it goes on working as before.
    tokenizer : transformers tokenizer
        With a chat template.
    think_open, think_close : str, optional
        The thinking markers, where they are not found by themselves.
    chat_template_kwargs : mapping, optional
        Passed to the chat template.

    Raises
    ------
    ModelError
        The model is of a kind that cannot be probed here, takes no attention but its own, or has
        no chat template or thinking markers.
    """
    if not isinstance(model, transformers.PreTrainedModel):
        raise ModelError(f"model must be a loaded transformers model, got {type(model).__name__}")
    name = model.name_or_path or type(model).__name__
    folder = Path(name) if (Path(name) / "config.json").is_file() else None
    window = check_layers(name, model.config)
    chat = Chat.of(
        tokenizer,
        think_open=think_open,
        think_close=think_close,
        template_kwargs=chat_template_kwargs,
    )
    try:
        model.set_attn_implementation(register_attention())
    except ValueError as error:
        raise ModelError(f"{name} does not take another attention: {error}") from error
    return around(name, folder, model.config, model.eval(), chat, window)

"""Which arguments of a chat template a policy or a user may set.

A policy is bound to the hash of the model's own template.  An argument that puts another template,
another conversation or another way of rendering in its place would leave that hash standing and
mean something else; a template from a file is also a program that need not end.  So these names are
reserved for the code that renders.  Knows no template and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RESERVED", "reserved_arguments"]

RESERVED = frozenset(
    (
        *("chat_template", "conversation", "conversations", "messages", "tools", "documents"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "tokenizer_kwargs"),
        *("sanitize_control_tokens", "padding", "truncation", "max_length", "self"),
        # Variables of every template: transformers lets arguments replace them.
        *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"),
        *("mask_token", "raise_exception", "strftime_now"),
    )
)
"""Parameters and variables of `apply_chat_template`; every ``return_…`` is reserved too."""


def reserved_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Give the names that nobody but the rendering code may set, sorted; usually none."""
    return sorted(name for name in arguments if name in RESERVED or name.startswith("return_"))

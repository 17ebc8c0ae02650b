"""The tokenizer: whole words and numbers where the samples use them, single bytes elsewhere.

Built, not trained: the vocabulary follows from the texts that the model sees.  Text is cut by one
regular expression; a piece that is in the vocabulary is one token, any other is split into its
bytes.  So every text can be encoded, and decoding gives it back unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from stopadvisor.ground.constants import CUES, PROMPT_TEMPLATES

__all__ = ["END", "END_THINK", "PAD", "THINK", "build_tokenizer", "save_tokenizer"]

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"

PIECES = r"\n+| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]|\s"
"""Pieces of text.  A number carries its leading space, so that an answer is one token."""

WORDS = """
user assistant system
Compute modulo Working from left to right, compute Which range contains
A) B) C) D) - + * = . , : ; ? ! "
So so is Wait Alternatively Hold on again step by check
"""

# As in Qwen3: thinking is left open to the model, and an empty block turns it off.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer with its chat template."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cut = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    texts = [*PROMPT_TEMPLATES.values(), *CUES.values(), WORDS]
    pieces = [piece for text in texts for piece, _ in cut.pre_tokenize_str(text)]
    words = {piece.strip(" ") for piece in pieces if piece.strip()}
    numbers = [str(n) for n in range(101)]
    forms = sorted(word for word in words if word.isascii() and not word.isdigit())
    vocabulary = [PAD, START, END, THINK, END_THINK, *sorted(byte_level.alphabet())]
    for form in ["\n", "\n\n", *(s + w for s in ("", " ") for w in (*numbers, *forms))]:
        [(token, _)] = byte_level.pre_tokenize_str(form)
        if token not in vocabulary:
            vocabulary.append(token)
    model = BPE(
        vocab={token: index for index, token in enumerate(vocabulary)},
        merges=[],
        ignore_merges=True,
    )
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    backend.decoder = decoders.ByteLevel()
    for token in (PAD, START, END):
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    # Not special, as in Qwen3: the markers must survive decoding that skips special tokens.
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in (THINK, END_THINK)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1536,
    )


def save_tokenizer(folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`.

    The configuration is written by hand because the library's own depends on its version: newer
    ones name a class that older ones do not have, and move the template to a file of its own.
    """
    build_tokenizer().backend_tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1536,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

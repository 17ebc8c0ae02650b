"""Read samples of lm-evaluation-harness: ``samples_TASK_DATE.jsonl``, from ``--log_samples``.

A line is a question under one filter, with all replies to it.  It gives neither a reply's tokens
nor why it ended: a tokenizer counts them, and a reply close to its limit counts as cut.

References
----------
lm-evaluation-harness, https://github.com/EleutherAI/lm-evaluation-harness
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stopadvisor.ground.fields import MOST_TOKENS
from stopadvisor.workload.lines import check_text, read_rows, refuse
from stopadvisor.workload.logged import LogContent, Logged, gold_text, plain_text
from stopadvisor.workload.traces import Markers, split_thinking

__all__ = ["read_lm_eval"]

_CUT = 0.98
"""Share of its limit from which a reply counts as cut: encoding its text again may give a few
tokens fewer than were decoded."""
_SOLUTION_ENDS = "####"
"""Stands before the answer in GSM8K's solutions."""


def read_lm_eval(
    path: Path, markers: Markers, count: Callable[[str], int], *, limit: int | None
) -> LogContent:
    """Read the samples of a generation task.

    Parameters
    ----------
    count : callable
        Counts the tokens of a text as the model that was asked does.
    limit : int or None
        Limit on a reply, in tokens, if a sample names no ``max_gen_toks``.
    """
    entries: list[Logged] = []
    left_out: list[str] = []
    filters: dict[str, Any] = {}  # a question has a line per filter, of which we read the first
    for where, row in read_rows(path)[1]:
        name = plain_text(row.get("doc_id"), where, "doc_id")
        if name is None:
            refuse(where, "doc_id", "the number of a question", name)
        if filters.setdefault(name, row.get("filter")) == row.get("filter"):
            gold = gold_text(row.get("target"), where, "target", left_out)
            if gold is not None and _SOLUTION_ENDS in gold:
                gold = gold.rpartition(_SOLUTION_ENDS)[2].strip().replace(",", "")
            entries += _replies(where, row, name, gold, markers, count, limit)
    return LogContent(tuple(entries), tuple(left_out))


def _replies(
    where: str,
    row: dict[str, Any],
    name: str,
    gold: str | None,
    markers: Markers,
    count: Callable[[str], int],
    limit: int | None,
) -> Iterator[Logged]:
    doc, texts = row.get("doc"), row.get("resps")
    if not isinstance(doc, dict):
        refuse(where, "doc", "the question as its data set holds it", doc)
    if isinstance(texts, list) and texts and isinstance(texts[0], list):
        texts = texts[0]
    if not (isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)):
        refuse(where, "resps", "the texts of a generation task", texts)
    prompt, settings = _request(where, row.get("arguments"))
    check_text(prompt, where, "arguments")  # tokenizers refuse other text
    for text in texts:
        check_text(text, where, "resps")
    most = settings.get("max_gen_toks", limit)
    if type(most) is not int or not 1 <= most <= MOST_TOKENS:
        what = "max_gen_toks, or max_tokens of the rung, to tell replies that were cut"
        refuse(where, "arguments", what, most)
    # The prompt that was sent depends on the model's chat template; the question does not.
    asked = {"role": "user", "content": json.dumps(doc, sort_keys=True, default=str)}
    prompt_tokens = count(prompt)
    for epoch, text in enumerate(texts, start=1):
        thinking, reply = split_thinking(text, markers)
        tokens = count(text)
        yield Logged(
            where,
            (asked,),
            gold=gold,
            name=name,
            thinking=thinking,
            reply=reply,
            ended=tokens < _CUT * most,
            epoch=epoch,
            usage={"input_tokens": prompt_tokens, "output_tokens": tokens},
        )


def _request(where: str, arguments: Any) -> tuple[str, dict[str, Any]]:
    """The prompt that was sent, and the settings of generation."""
    request = next(iter(arguments.values()), None) if isinstance(arguments, dict) else None
    if isinstance(request, dict):
        prompt, settings = request.get("arg_0"), request.get("arg_1")
        if isinstance(prompt, list) and len(prompt) == 1:  # a chat's messages, as text
            prompt = prompt[0]
        if isinstance(prompt, str) and isinstance(settings, dict):
            return prompt, settings
    refuse(where, "arguments", "a prompt and the settings of its generation", arguments)

"""A language model at an endpoint that says whether an answer is right: a grader to start from.

In this file's folder, `stopadvisor probe ... --grader judge:judge` (extra `openai`) asks the
server that the environment names: STOPADVISOR_JUDGE_URL (as --base-url), STOPADVISOR_JUDGE_MODEL
and, where it needs one, STOPADVISOR_JUDGE_KEY.  A judge errs: how often it differs from the plain
comparison with gold is counted, and said by `probe` and `assess`.
"""

from __future__ import annotations

import asyncio
import os
import re

from stopadvisor.engines.http.client import Client, Key
from stopadvisor.ground.errors import EngineError

_PROMPT = """\
A question, its reference answer and a candidate answer follow. Does the candidate answer say the \
same as the reference answer, as an answer to this question? Ignore form, wording and units that \
are understood. Judge the final result alone, and trust the reference answer.

Question:
{question}

Reference answer:
{gold}

Candidate answer:
{answer}

Reply with one word: CORRECT or INCORRECT."""
_VERDICT = re.compile(r"\b(IN)?CORRECT\b")
_THINKING = re.compile(r".*</think>", re.DOTALL)
_MAX_TOKENS = 4096
"""Most tokens of the judge's reply; it may think first."""
_SECONDS = 120.0
"""For one reply, and for asking again; together less than a grader may take over one answer."""


def judge(question: str, gold: str, answer: str) -> bool | None:
    """True or False; None where the reply holds no verdict, or was cut off."""
    url, model = (os.environ.get(f"STOPADVISOR_JUDGE_{name}") for name in ("URL", "MODEL"))
    if not url or not model:
        missing = "MODEL" if url else "URL"
        raise EngineError(f"the judge needs STOPADVISOR_JUDGE_{missing} in the environment")
    prompt = _PROMPT.format(question=question, gold=gold, answer=answer)
    # Thinking that stands in the text weighs both verdicts.
    text = _THINKING.sub("", asyncio.run(_ask(url, model, prompt)))
    found = _VERDICT.findall(text.upper())
    return None if not found else found[-1] != "IN"


judge.workers = 8  # type: ignore[attr-defined]  # servers answer several requests at once
judge.version = os.environ.get("STOPADVISOR_JUDGE_MODEL", "")  # type: ignore[attr-defined]


async def _ask(url: str, model: str, prompt: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.0,
        "max_tokens": _MAX_TOKENS,
    }
    key = Key.of_environment("STOPADVISOR_JUDGE_KEY", required=False)
    async with Client(
        [url], model, key=key, request_timeout=_SECONDS, retry_timeout=_SECONDS
    ) as client:
        reply = await client.ask("POST", "/chat/completions", body)
    try:
        return str(reply["choices"][0]["message"]["content"] or "")
    except (LookupError, TypeError) as error:
        raise EngineError(f"{url}: the judge's reply holds no message") from error

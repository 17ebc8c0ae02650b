"""Checks of preflight that only a server needs: limits, resuming, caching, log-probabilities.

Servers accept unknown fields in silence, so each is shown to have an effect.  Knows one prompt and
the plan; no workload.
"""

from __future__ import annotations

from collections.abc import Sequence

from stopadvisor.engines.http.completion import Completion
from stopadvisor.engines.openai.served_model import NO_ENTROPY, ServedModel
from stopadvisor.probes.asking import Check, ProbePlan

__all__ = ["server_checks"]

_TOKENS = 8


async def server_checks(
    model: ServedModel, prompt_ids: Sequence[int], plan: ProbePlan
) -> list[Check]:
    """Try the server with one prompt."""
    return [
        await _obeys(model, prompt_ids),
        await _continues(model, prompt_ids),
        _caches(model),
        _top_k(model, plan),
    ]


async def _obeys(model: ServedModel, ids: Sequence[int]) -> Check:
    """The server obeys limits and stops, and takes ids as they are."""
    drawn = await model.client.complete(ids, max_tokens=_TOKENS)
    tokens = drawn.token_ids or ()
    wrong = await _wrong_ends(model, ids, drawn)
    if drawn.prompt_tokens != len(ids):
        wrong.append(f"counts {drawn.prompt_tokens} prompt tokens for {len(ids)} ids")
    if max(drawn.decoded_tokens, len(tokens)) > _TOKENS:
        wrong.append(f"decodes {drawn.decoded_tokens} tokens under max_tokens={_TOKENS}")
    if wrong:
        return Check(
            "server-obeys",
            "fail",
            f"the server {'; '.join(wrong)}",
            "the server ignores limits or ids: use a current vLLM or SGLang",
        )
    taken = f"{len(ids)} ids taken as they are"
    return Check("server-obeys", "pass", f"{taken}, max_tokens and stop_token_ids obeyed")


async def _wrong_ends(model: ServedModel, ids: Sequence[int], drawn: Completion) -> list[str]:
    """What is wrong with where it ends: too early, or not at a stop id."""
    tokens, wrong = drawn.token_ids or (), []
    if len(tokens) < _TOKENS and drawn.finish_reason != "stop":
        wrong.append(f"decodes {len(tokens)} tokens under max_tokens={_TOKENS}")
    new = [i for i, token in enumerate(tokens) if i and token not in tokens[:i]]
    if new:
        at = new[0]
        cut = await model.client.complete(ids, max_tokens=_TOKENS, stop_token_ids=[tokens[at]])
        if len(cut.token_ids or ()) not in (at, at + 1):
            wrong.append(
                f"does not stop at stop_token_ids=[{tokens[at]}], which is its token {at + 1}, but "
                f"decodes {len(cut.token_ids or ())} tokens"
            )
    return wrong


async def _continues(model: ServedModel, ids: Sequence[int]) -> Check:
    """A resumed trace continues with the tokens that it would have had anyway."""
    client = model.client
    whole = (await client.complete(ids, max_tokens=_TOKENS)).token_ids or ()
    half = len(whole) // 2
    rest = await client.complete([*ids, *whole[:half]], max_tokens=len(whole) - half)
    if whole[half:] == rest.token_ids:
        return Check("resumes", "pass", f"resumed after {half} tokens, greedy tokens are the same")
    detail = (
        f"resumed after {half} tokens, the server continues with {list(rest.token_ids or ())}; "
        f"without the interruption it continued with {list(whole[half:])}"
    )
    advice = "resumed traces differ in half precision; where stops must not, serve in float32"
    return Check("resumes", "warn", detail, advice)


def _caches(model: ServedModel) -> Check:
    """A prompt that is sent again comes from the cache."""
    endpoint = model.endpoint
    if endpoint.cached_tokens is None:
        return Check(
            "server-caches",
            "warn",
            "the server does not say how many prompt tokens it cached",
            "vLLM says so with --enable-prompt-tokens-details; otherwise costs are estimates",
        )
    cached, sent = endpoint.cached_tokens, endpoint.repeated_tokens
    detail = f"{cached} of {sent} repeated prompt tokens were cached"
    if cached == 0:
        return Check(
            "server-caches",
            "warn",
            detail,
            "every probe reads its whole prefix again: switch prefix caching on, or assess with "
            "--serving black-box",
        )
    return Check("server-caches", "pass", detail)


def _top_k(model: ServedModel, plan: ProbePlan) -> Check:
    """The plan's log-probabilities are given."""
    limit = model.endpoint.top_limit
    if plan.entropy == NO_ENTROPY:
        return Check(
            "top-k",
            "pass" if limit == 0 else "warn",
            f"the server gives {limit} log-probabilities per token, none are asked for",
            "" if limit == 0 else f"--entropy top-k:{limit} lets every family be compared",
        )
    k = model.check_entropy(plan.entropy)
    return Check(
        "top-k", "pass", f"the server gives {limit} log-probabilities per token, {k} are asked for"
    )

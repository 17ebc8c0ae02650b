"""Discover what an endpoint can do, through test requests.

Servers silently accept unknown fields, so a capability counts only if an answer shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stopadvisor.engines.http.client import FINAL, Client, Refused, Unreachable
from stopadvisor.engines.http.completion import read_count
from stopadvisor.ground.errors import EngineError, ModelError

__all__ = ["USUAL_TOP", "Endpoint", "find_endpoint", "find_model"]

_NEEDED = (
    "use a server whose /v1/completions takes and returns token ids; with others, the full budget "
    "and the provider's own effort setting remain"
)
USUAL_TOP = 20
"""vLLM's default limit on log-probabilities per token."""
_MOST_TOP = 1024
"""Largest number of log-probabilities tried."""
_REPEATED = 600
"""Length of the prompt sent twice: longer than most servers' cache blocks."""
_LONGEST_NAME = 255
"""Limit on the length of a server's names."""
_ANY_IDS = tuple(range(11, 19))
"""Every vocabulary has these token ids."""


@dataclass(frozen=True)
class Endpoint:
    """What an endpoint has shown that it can do."""

    context: int | None
    """Longest sequence; None if not reported."""
    root: str | None
    """Where the server got the model: a Hub name or a folder."""
    server: str | None = None
    """Server version; None if not reported."""
    top_limit: int = 0
    """Limit on top log-probabilities per token."""
    cached_tokens: int | None = None
    """Cached tokens of a repeated prompt; None if not reported."""
    repeated_tokens: int = 0
    """Length of that prompt."""

    def described(self) -> str:
        """Describe the endpoint in one line for the user."""
        name = "the server" if self.server is None else f"the server (version {self.server})"
        logprobs = (
            f"{self.top_limit} log-probabilities per token"
            if self.top_limit
            else "no log-probabilities: only families that read answers' texts can be used"
        )
        cached = "cached prompt tokens not reported (vLLM: --enable-prompt-tokens-details)"
        if self.cached_tokens is not None:
            cached = f"{self.cached_tokens} of {self.repeated_tokens} repeated prompt tokens cached"
        return f"{name} resumes token ids; {logprobs}; {cached}"


async def find_endpoint(client: Client) -> Endpoint:
    """Test what every server of a client can do.

    Raises
    ------
    ModelError
        A server rejects the key, does not serve the model, or does not complete token ids; or the
        servers differ in version, context or capabilities.
    Unreachable
        A server is down, busy or silent for longer than the client waits.
    """
    first, *others = [await _endpoint_of(client, number) for number in range(len(client.urls))]
    for url, other in zip(client.urls[1:], others, strict=True):
        for name in ("server", "context", "root", "top_limit"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs and not (name == "root" and _same_root(ours, theirs)):
                raise ModelError(
                    f"all --base-url must be equal servers: {name} is {theirs!r} at {url}, "
                    f"{ours!r} at {client.urls[0]}"
                )
    return first


def _same_root(ours: str | None, theirs: str | None) -> bool:
    """Whether two roots, on different machines, may name the same model."""
    if ours is None or theirs is None:
        return True
    here, there = Path(ours), Path(theirs)
    if here.is_absolute() != there.is_absolute():
        return True  # a Hub name, and the folder it was downloaded to
    return here.is_absolute() and here.name == there.name


async def _endpoint_of(client: Client, number: int) -> Endpoint:
    """Test one server, and no other in its place."""
    url = client.urls[number]
    listed = await find_model(client, number)
    await _check_ids(client, number)
    length = min(_REPEATED, (listed.context or _REPEATED) - 8)
    repeated = (list(_ANY_IDS) * (length // len(_ANY_IDS) + 1))[:length]
    try:
        top = await _top_limit(client, number)
        for _ in range(2):
            answer = await client.complete(repeated, max_tokens=1, replica=number, opening=True)
    except Unreachable:
        raise
    except EngineError as error:
        raise ModelError(f"{url} fails when it is asked what it can do: {error}") from error
    try:  # vLLM and some others have ``/version`` next to ``/v1``
        version = await client.ask("GET", "//version", replica=number, opening=True, optional=True)
    except EngineError:
        version = {}
    return replace(
        listed,
        server=_name(version.get("version")),
        top_limit=top,
        cached_tokens=answer.cached_tokens,
        repeated_tokens=answer.prompt_tokens,
    )


async def find_model(client: Client, number: int) -> Endpoint:
    """Look up the model in a server's list, and set `client.model` to its name there.

    Returns what the list shows.  Raises as `find_endpoint`, and `ModelError` if there is no list.
    """
    url = client.urls[number]
    try:
        listed = await client.ask("GET", "/models", replica=number, opening=True)
    except Refused as error:
        _raise_if_final(error)
        if error.status == 404:
            raise ModelError(f"{url} has no /models: is it the base URL, ending in /v1?") from error
        return Endpoint(None, None)  # some gateways have no list; later requests will tell
    except Unreachable as error:
        raise Unreachable(f"cannot reach the server: {error}") from error
    except EngineError as error:
        raise ModelError(f"cannot use the server: {error}") from error
    data = listed.get("data")
    folder = Path(client.model)  # the model may be given as a name or as a folder
    entries = [
        entry
        for entry in (data if isinstance(data, list) else ())
        if isinstance(entry, dict) and _name(entry.get("id"))
    ]
    for entry in entries:
        names = {_name(entry.get("id")), _name(entry.get("root"))} - {None}
        folders = {Path(str(name)).resolve() for name in names} if folder.is_dir() else set()
        if client.model in names or folder.resolve() in folders:
            client.model = entry["id"]
            try:
                context = read_count(entry.get("max_model_len"), "max_model_len") or None
            except ValueError as error:
                raise ModelError(f"{url}/models: {error}") from None
            return Endpoint(context, _name(entry.get("root")))
    served = ", ".join(repr(entry["id"]) for entry in entries[:5]) or "none"
    raise ModelError(f"{url} does not serve the model {client.model!r}; it serves {served}")


def _name(value: Any) -> str | None:
    """Return a server's value if it is a printable name of reasonable length."""
    if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable():
        return value
    return None


async def _check_ids(client: Client, number: int) -> None:
    """Refuse a server whose completions do not take and return token ids."""
    try:
        # Without log-probabilities, as for traces: some servers return ids only with them.
        answer = await client.complete(_ANY_IDS, max_tokens=2, replica=number, opening=True)
    except EngineError as error:
        _raise_if_final(error)
        wrong = f"completions on token ids: {error}"
    else:
        if answer.prompt_tokens == len(_ANY_IDS) and answer.token_ids is not None:
            return
        wrong = "completions return only text, no token ids"
        # A server that misreads ids counts a different prompt.
        if answer.prompt_tokens != len(_ANY_IDS):
            wrong = (
                f"completions on token ids: it counts {answer.prompt_tokens} prompt tokens for "
                f"{len(_ANY_IDS)} ids"
            )
    raise ModelError(f"{client.urls[number]} cannot be probed ({wrong}): {_NEEDED}")


def _raise_if_final(error: EngineError) -> None:
    """Re-raise errors that say nothing about the server's capabilities."""
    if isinstance(error, Unreachable):
        raise error
    if isinstance(error, Refused) and error.status in FINAL:
        raise ModelError(str(error)) from error


async def _top_limit(client: Client, number: int) -> int:
    """Find the largest number of log-probabilities per token, by bisection."""

    async def gives(k: int) -> bool:
        try:
            answer = await client.complete(
                _ANY_IDS, max_tokens=1, logprobs=k, replica=number, opening=True
            )
        except EngineError as error:
            _raise_if_final(error)
            return False
        # Empty if the first token ends the answer and the server does not return it.
        return any(len(top) >= k for top in answer.top_logprobs or ())

    low, high = 0, USUAL_TOP
    if await gives(USUAL_TOP):
        low, high = USUAL_TOP, _MOST_TOP + 1
        if not await gives(USUAL_TOP + 1):
            return USUAL_TOP
    while high - low > 1:
        middle = (low + high) // 2
        if await gives(middle):
            low = middle
        else:
            high = middle
    return low

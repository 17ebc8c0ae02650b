"""What an endpoint can do, learned by asking it.

Servers accept unknown fields in silence, so a capability counts only where an answer shows it.
Knows the client; nothing of thinking, probes or policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stopadvisor.engines.http.client import FINAL, Client, Refused, Unreachable
from stopadvisor.engines.http.completion import read_count
from stopadvisor.ground.errors import EngineError, ModelError

__all__ = ["Endpoint", "ListedModel", "find_endpoint", "find_model"]

NEEDED = (
    "needed is a server whose /v1/completions takes and returns token ids, such as vLLM or SGLang; "
    "elsewhere the full budget and the provider's own effort setting remain"
)
USUAL_TOP = 20
"""Most log-probabilities that vLLM gives by default."""
MOST_TOP = 1024
"""Above this number, no more are looked for."""
_REPEATED = 600
"""Tokens of the prompt that is sent twice: longer than the cache blocks of most servers."""
_LONGEST_NAME = 255
"""Characters of a name or a folder that a server gives."""
_ANY_IDS = (11, 12, 13, 14, 15, 16, 17, 18)
"""Exist in every vocabulary."""


@dataclass(frozen=True)
class Endpoint:
    """What the endpoint showed it can do."""

    server: str | None
    """Name and version as the server gives them; None where it does not."""
    context: int | None
    """Most tokens of a sequence; None where the server does not say."""
    root: str | None
    """Where the server says it took the model from: a name or a folder."""
    top_limit: int
    """Most likeliest tokens whose log-probabilities it gives; 0 for none."""
    cached_tokens: int | None
    """How many of a repeated prompt's tokens came from its cache; None where it does not say."""
    repeated_tokens: int
    """Length of that prompt."""

    @property
    def counts_cached(self) -> bool:
        """It says how many prompt tokens came from its cache."""
        return self.cached_tokens is not None


async def find_endpoint(client: Client) -> Endpoint:
    """Ask every server of a client what it can do.

    Raises
    ------
    ModelError
        A server does not accept the key, does not serve the model, or does not complete token
        ids; or the servers differ in version, context, or in what they can do.
    Unreachable
        A server is down, busy or silent for longer than the client waits: what it can do is not
        known.
    """
    found = [await _endpoint_of(client, number) for number in range(len(client.urls))]
    first = found[0]
    for url, other in zip(client.urls[1:], found[1:], strict=True):
        ours, theirs = asdict(first), asdict(other)
        for name in ("server", "context", "root", "top_limit"):
            same = ours[name] == theirs[name]
            if name == "root":
                same = _same_root(ours[name], theirs[name])
            if not same:
                raise ModelError(
                    f"all --base-url must be equal servers: {name} is {theirs[name]!r} at {url}, "
                    f"{ours[name]!r} at {client.urls[0]}"
                )
    return first


def _same_root(ours: str | None, theirs: str | None) -> bool:
    """Whether two servers may have their models from the same place, each on its own machine."""
    if ours is None or theirs is None:
        return True
    here, there = Path(ours), Path(theirs)
    if here.is_absolute() != there.is_absolute():
        return True  # a name, and where it was downloaded to
    return here.name == there.name if here.is_absolute() else ours == theirs


def _opening(number: int) -> dict[str, Any]:
    """How a server is asked while it is opened: no other in its place."""
    return {"replica": number, "opening": True}


async def _endpoint_of(client: Client, number: int) -> Endpoint:
    url = client.urls[number]
    model = await find_model(client, number)
    context = model.context
    logprobs = await _completes_ids(client, number)
    try:
        top = await _top_limit(client, number) if logprobs else 0
        length = min(_REPEATED, (context or _REPEATED) - 8)
        repeated = (list(_ANY_IDS) * (length // len(_ANY_IDS) + 1))[:length]
        cached, length = await _cached(client, repeated, number)
    except Unreachable:
        raise
    except EngineError as error:
        raise ModelError(f"{url} fails when it is asked what it can do: {error}") from error
    return Endpoint(
        server=await _version(client, number),
        context=context,
        root=model.root,
        top_limit=top,
        cached_tokens=cached,
        repeated_tokens=length,
    )


@dataclass(frozen=True)
class ListedModel:
    """What a server's list of models says of the model."""

    context: int | None
    """Most tokens of a sequence; None where the server does not say."""
    root: str | None
    """Where the server says it took the model from: a name or a folder."""


async def find_model(client: Client, number: int) -> ListedModel:
    """Look the model up in a server's list, and call it by that name from now on.

    Raises
    ------
    ModelError
        The server does not serve the model, or has no such list.
    Unreachable
        The server is down, busy or silent for longer than the client waits.
    """
    url = client.urls[number]
    try:
        listed = await client.ask("GET", "/models", **_opening(number))
    except Refused as error:
        _raise_if_final(error)
        if error.status == 404:
            raise ModelError(f"{url} has no /models: is it the base URL, ending in /v1?") from error
        return ListedModel(
            None, None
        )  # some gateways keep their list to themselves; asking will tell
    except Unreachable as error:
        raise Unreachable(f"cannot reach the server: {error}") from error
    except EngineError as error:
        raise ModelError(f"cannot use the server: {error}") from error
    found = listed.get("data")
    entries = [
        entry
        for entry in (found if isinstance(found, list) else ())
        if isinstance(entry, dict) and _is_name(entry.get("id"))
    ]
    for entry in entries:
        if any(_same(entry.get(name), client.model) for name in ("id", "root")):
            client.model, root = entry["id"], entry.get("root")
            return ListedModel(_context(entry, url), root if _is_name(root) else None)
    served = ", ".join(repr(entry["id"]) for entry in entries[:5]) or "none"
    raise ModelError(f"{url} does not serve the model {client.model!r}; it serves {served}")


def _context(entry: Mapping[str, Any], url: str) -> int | None:
    """Return the most tokens of a sequence, where an entry says so."""
    try:
        return read_count(entry.get("max_model_len"), "max_model_len") or None
    except ValueError as error:
        raise ModelError(f"{url}/models: {error}") from None


def _is_name(value: Any) -> bool:
    """Whether a server gives a name that can be shown, and looked for in the file system."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


def _same(name: Any, model: str) -> bool:
    """Whether a server's name for a model is ours, or both are the same folder."""
    if not _is_name(name):
        return False
    return name == model or (Path(model).is_dir() and Path(name).resolve() == Path(model).resolve())


async def _completes_ids(client: Client, number: int) -> bool:
    """Check that completions take and return token ids; return whether log-probabilities come.

    Raises `ModelError` where they do not.
    """
    try:
        # Without log-probabilities first, as traces are asked for: some servers name ids with
        # log-probabilities only.
        answer = await client.complete(_ANY_IDS, max_tokens=2, **_opening(number))
    except EngineError as error:
        _raise_if_final(error)
        wrong = f"completions on token ids: {error}"
    else:
        # A server that took the ids for something else counts another prompt.
        if answer.prompt_tokens != len(_ANY_IDS):
            wrong = (
                f"completions on token ids: it counts {answer.prompt_tokens} prompt tokens for "
                f"{len(_ANY_IDS)} ids"
            )
        elif answer.token_ids is None:
            wrong = "completions return text alone, no token ids"
        else:
            return await _gives_logprobs(client, number)
    raise ModelError(f"{client.urls[number]} cannot be probed ({wrong}): {NEEDED}")


async def _gives_logprobs(client: Client, number: int) -> bool:
    """Whether log-probabilities come with completions."""
    try:
        answer = await client.complete(_ANY_IDS, logprobs=1, max_tokens=2, **_opening(number))
    except EngineError as error:
        _raise_if_final(error)
        return False
    return answer.logprobs is not None


def _raise_if_final(error: EngineError) -> None:
    """Pass on what no other way of asking will change, or leaves open what the server can do."""
    if isinstance(error, Unreachable):
        raise error
    if isinstance(error, Refused) and error.status in FINAL:
        raise ModelError(str(error)) from error


async def _top_limit(client: Client, number: int) -> int:
    """Find the most log-probabilities per token, by asking for more and more."""

    async def gives(k: int) -> bool:
        try:
            answer = await client.complete(_ANY_IDS, max_tokens=1, logprobs=k, **_opening(number))
        except Refused as error:
            _raise_if_final(error)
            return False
        # Empty where the first token ends the answer and the server does not return it.
        return any(len(top) >= k for top in answer.top_logprobs or ())

    if await gives(USUAL_TOP):
        if not await gives(USUAL_TOP + 1):
            return USUAL_TOP
        low, high = USUAL_TOP + 1, MOST_TOP + 1
    else:
        low, high = 0, USUAL_TOP
    while high - low > 1:
        middle = (low + high) // 2
        if await gives(middle):
            low = middle
        else:
            high = middle
    return low


async def _cached(client: Client, prompt: Sequence[int], number: int) -> tuple[int | None, int]:
    """Send a long prompt twice; return how much of it came from the cache then, and its length."""
    for _ in range(2):
        answer = await client.complete(prompt, max_tokens=1, **_opening(number))
    return answer.cached_tokens, answer.prompt_tokens


async def _version(client: Client, number: int) -> str | None:
    """Return the server's version; vLLM and its kin give one next to ``/v1``."""
    try:
        found = await client.ask("GET", "//version", optional=True, **_opening(number))
    except EngineError:
        return None
    version = found.get("version")
    return version if _is_name(version) else None

"""What an endpoint can do, learned by asking it.

Servers accept unknown fields in silence, so a capability counts only where an answer shows it.
Knows the client; nothing of thinking, probes or policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stopadvisor.engines.chat import Chat
from stopadvisor.engines.http.client import FINAL, Client, Refused
from stopadvisor.engines.http.retries import OPENING_TIMEOUT
from stopadvisor.engines.openai.chat_backend import ChatBackend, shows_reasoning
from stopadvisor.engines.openai.requests import Backend
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.probes.plan import OnStop

__all__ = ["Endpoint", "Way", "check_streams", "find_endpoint", "open_backend"]

Way = Literal["completions", "visible-stream"]
"""How reasoning is reached: resumed on token ids, or watched in a chat's stream."""

NEEDED = (
    "needed is a server whose /v1/completions takes and returns token ids, such as vLLM or SGLang, "
    "or a chat that shows its reasoning and answers behind reasoning given to it; elsewhere the "
    "full budget and the provider's own effort setting remain"
)
NO_STREAM = (
    "early exit with overlap needs an endpoint that streams token ids, such as vLLM's "
    "/v1/completions; this one is resumed part by part (--serving resume)"
)
USUAL_TOP = 20
"""Most log-probabilities that vLLM gives by default."""
MOST_TOP = 1024
"""Above so many, no more are looked for."""
_REPEATED = 600
"""Tokens of the prompt that is sent twice: longer than the cache blocks of most servers."""
_ANY_IDS = (11, 12, 13, 14, 15, 16, 17, 18)
"""Exist in every vocabulary."""


@dataclass(frozen=True)
class Endpoint:
    """What the endpoint showed it can do."""

    way: Way
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
    def resumes(self) -> bool:
        """Thinking can be resumed where it was left, and token ids go both ways."""
        return self.way == "completions"

    @property
    def counts_cached(self) -> bool:
        """It says how many prompt tokens came from its cache."""
        return self.cached_tokens is not None

    def check_on_stop(self, on_stop: OnStop) -> None:
        """Refuse visible answers where thinking cannot be closed without beginning the answer."""
        if on_stop == "answer" and not self.resumes:
            raise ModelError(
                "a chat endpoint completes an answer that has begun: visible answers behind "
                "closed thinking cannot be asked of it, got --on-stop answer"
            )


async def find_endpoint(client: Client) -> Endpoint:
    """Ask every server of a client what it can do.

    Raises
    ------
    ModelError
        A server cannot be reached, does not accept the key, does not serve the model, or gives no
        access to its reasoning; or the servers differ in version, context, or in what they can do.
    """
    found = [await _endpoint_of(client, number) for number in range(len(client.urls))]
    first = found[0]
    for url, other in zip(client.urls[1:], found[1:], strict=True):
        ours, theirs = asdict(first), asdict(other)
        for name in ("way", "server", "context", "root", "top_limit"):
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


async def open_backend(client: Client, chat: Chat, endpoint: Endpoint) -> Backend:
    """Return what a server with such an endpoint is asked through.

    Raises
    ------
    ModelError
        Its chat cannot answer behind given reasoning.
    """
    if endpoint.resumes:
        return client
    return await ChatBackend.of(client, chat, retry_timeout=OPENING_TIMEOUT)


async def check_streams(backend: Backend) -> None:
    """Find out whether every server streams token ids, as overlap needs it.

    Raises
    ------
    ModelError
        One does not.
    """
    for number, url in enumerate(backend.urls):
        try:
            answer = await backend.stream(
                _ANY_IDS, lambda new: True, max_tokens=2, temperature=0.0, **_opening(number)
            )
        except EngineError as error:
            raise ModelError(f"{url}: {NO_STREAM}: {error}") from error
        if not answer.token_ids:
            raise ModelError(f"{url}: {NO_STREAM}")


def _opening(number: int) -> dict[str, Any]:
    """How a server is asked while it is opened: no other in its place, and not for long."""
    return {"replica": number, "retry_timeout": OPENING_TIMEOUT}


async def _endpoint_of(client: Client, number: int) -> Endpoint:
    url = client.urls[number]
    entry = await _model_entry(client, number)
    context, root = entry.get("max_model_len"), entry.get("root")
    way, logprobs = await _way(client, number)
    top, cached, length = 0, None, 0
    if way == "completions":
        try:
            top = await _top_limit(client, number) if logprobs else 0
            length = min(_REPEATED, (int(context) if context else _REPEATED) - 8)
            repeated = (list(_ANY_IDS) * (length // len(_ANY_IDS) + 1))[:length]
            cached, length = await _cached(client, repeated, number)
        except EngineError as error:
            raise ModelError(f"{url} fails when it is asked what it can do: {error}") from error
    return Endpoint(
        way=way,
        server=await _version(client, number),
        context=int(context) if context else None,
        root=str(root) if root else None,
        top_limit=top,
        cached_tokens=cached,
        repeated_tokens=length,
    )


async def _model_entry(client: Client, number: int) -> dict[str, Any]:
    """Return the server's own entry for the model, and call the model as that does from now on."""
    url = client.urls[number]
    try:
        listed = await client.ask("GET", "/models", **_opening(number))
    except Refused as error:
        _raise_if_final(error)
        if error.status == 404:
            raise ModelError(f"{url} has no /models: is it the base URL, ending in /v1?") from error
        return {}  # some gateways keep their list to themselves; asking will tell
    except EngineError as error:
        raise ModelError(f"cannot reach the server: {error}") from error
    entries = [e for e in listed.get("data") or () if isinstance(e, dict)]
    for entry in entries:
        if any(_same(entry.get(name), client.model) for name in ("id", "root")):
            client.model = str(entry["id"])
            return entry
    served = ", ".join(repr(e.get("id")) for e in entries[:5]) or "none"
    raise ModelError(f"{url} does not serve the model {client.model!r}; it serves {served}")


def _same(name: Any, model: str) -> bool:
    """Whether a server's name for a model is ours, or both are the same folder."""
    if not isinstance(name, str):
        return False
    return name == model or (Path(model).is_dir() and Path(name).resolve() == Path(model).resolve())


async def _way(client: Client, number: int) -> tuple[Way, bool]:
    """Try completions on token ids, then a chat stream; also, whether log-probabilities come.

    Raises `ModelError` where neither gives access to the reasoning, or nothing gets an answer.
    """
    tried: list[str] = []
    for logprobs in (1, None):
        try:
            answer = await client.complete(
                _ANY_IDS, logprobs=logprobs, max_tokens=2, **_opening(number)
            )
        except EngineError as error:
            _raise_if_final(error)
            if logprobs is None:
                tried.append(f"completions on token ids: {error}")
            continue
        # A server that took the ids for something else counts another prompt.
        if answer.prompt_tokens == len(_ANY_IDS) and answer.token_ids is not None:
            return "completions", answer.logprobs is not None
        tried.append(
            "completions return text alone, no token ids"
            if answer.prompt_tokens == len(_ANY_IDS)
            else f"completions on token ids: it counts {answer.prompt_tokens} prompt tokens for "
            f"{len(_ANY_IDS)} ids"
        )
        break
    url = client.urls[number]
    try:
        shown = await shows_reasoning(client, number, retry_timeout=OPENING_TIMEOUT)
    except Refused as error:
        _raise_if_final(error)
        tried.append(f"chat: {error}")
    except EngineError as error:
        reasons = "; ".join((*tried, f"chat: {error}"))
        raise ModelError(f"cannot use the server: {reasons}") from error
    else:
        if shown is not False:
            return "visible-stream", False
        tried.append("chat: no reasoning is shown")
    raise ModelError(f"{url} cannot be probed ({'; '.join(tried)}): {NEEDED}")


def _raise_if_final(error: EngineError) -> None:
    """Pass on what no other way of asking will change."""
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
    """Return the server's version; vLLM and its kin give one beside ``/v1``."""
    try:
        found = await client.ask("GET", "//version", **_opening(number))
    except EngineError:
        return None
    version = found.get("version")
    return str(version) if version else None

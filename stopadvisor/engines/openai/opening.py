"""From base URLs to a checked engine: what the server can do, then the model's tokenizer.

Refuses by name what cannot be probed.  Importing this module imports neither an HTTP library nor
transformers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.engines.errors import require_packages
from stopadvisor.ground.errors import EngineError, ModelError

if TYPE_CHECKING:
    from stopadvisor.engines.chat import Chat
    from stopadvisor.engines.http.client import Client
    from stopadvisor.engines.local_tokenizer import LoadedTokenizer
    from stopadvisor.engines.openai.endpoint import Endpoint
    from stopadvisor.engines.openai.engine import OpenAiEngine
    from stopadvisor.engines.openai.served_model import ServedModel

__all__ = ["DEFAULT_KEY", "open_client", "open_model", "open_servers"]

DEFAULT_KEY = "OPENAI_API_KEY"
"""Environment variable that may hold the key."""

_PACKAGES = ("httpx2", "tenacity", "anyio", "transformers", "jinja2")


def open_servers(
    model: str, base_urls: Sequence[str], *, concurrency: int = 32, **options: Any
) -> OpenAiEngine:
    """Make the engine of a served model, with at most `concurrency` requests at once.

    What `open_model` takes and raises holds here too.
    """
    require_packages("openai", *_PACKAGES)
    from anyio.from_thread import start_blocking_portal

    from stopadvisor.engines.openai.engine import OpenAiEngine

    thread = start_blocking_portal()
    portal = thread.__enter__()
    try:
        served = portal.call(partial(open_model, model, base_urls, **options))
    except BaseException as error:
        # Given the error, it cancels what is still under way, as at Ctrl-C, and waits for nothing.
        thread.__exit__(type(error), error, error.__traceback__)
        raise
    return OpenAiEngine(
        served_model=served,
        model_identity=served.identity(),
        portal=portal,
        thread=thread,
        concurrency=concurrency,
        remarks=_remarks(served),
    )


async def open_model(
    model: str,
    base_urls: Sequence[str],
    *,
    tokenizer: str | None = None,
    api_key_env: str | None = None,
    request_timeout: float = 600.0,
    retry_timeout: float = 300.0,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> ServedModel:
    """Open a served model within a running event loop; close it with ``await model.aclose()``.

    Parameters
    ----------
    model
        Its name as the server knows it, or the folder or name the server took it from.
    base_urls
        Such as ``http://host:8000/v1``; several equal servers share the questions.
    tokenizer
        Folder or name to load the tokenizer from; by default what the server names as the model's
        origin, else `model`.
    api_key_env
        Environment variable that holds the key; ``OPENAI_API_KEY`` is used when it is set.
    request_timeout, retry_timeout
        Seconds for one answer, and for which a request that fails is sent again.
    on_wait
        Told, in one line, when a server that is down or busy is waited for.

    Raises
    ------
    ModelError
        A package is missing; the server does not accept the key, does not serve the model, or
        does not complete token ids; or the tokenizer cannot be found.
    Unreachable
        The server is down, busy or silent for longer than `retry_timeout`.
    """
    require_packages("openai", *_PACKAGES)
    from stopadvisor.engines.http.client import Client, Key

    key = Key.of_environment(api_key_env or DEFAULT_KEY, required=api_key_env is not None)
    client = Client(
        base_urls,
        model,
        key=key,
        request_timeout=request_timeout,
        retry_timeout=retry_timeout,
        on_wait=on_wait,
    )
    return await open_client(
        client,
        tokenizer=tokenizer,
        think_open=think_open,
        think_close=think_close,
        chat_template_kwargs=chat_template_kwargs,
    )


async def open_client(
    client: Client,
    *,
    tokenizer: str | None = None,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Open the model of a client, as `open_model` does; the client is closed with it."""
    # Transformers says on import that torch is missing; nothing here needs it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from anyio import CancelScope
    from anyio.to_thread import run_sync

    from stopadvisor.engines.answer_end import AnswerStops
    from stopadvisor.engines.chat import Chat
    from stopadvisor.engines.openai.endpoint import find_endpoint
    from stopadvisor.engines.openai.served_model import ServedModel

    model, key = client.model, client.key
    try:
        endpoint = await find_endpoint(client)
        # May download: what is waited for can be interrupted, what holds the loop up cannot.
        load = partial(_load_tokenizer, tokenizer, _origin(endpoint, model))
        found = await run_sync(load, abandon_on_cancel=True)
        chat = Chat.of(
            found.tokenizer,
            think_open=think_open,
            think_close=think_close,
            template_kwargs=chat_template_kwargs,
        )
        if key is not None:
            chat = replace(chat, hide=key.hide_in_text)
        # Decodes a whole vocabulary, which would hold up the event loop.
        stops = await run_sync(AnswerStops.of, chat, found.stop_ids, len(found.tokenizer))
        await _check_tokenizer(client, chat)
        return ServedModel(
            client=client,
            chat=chat,
            stop_ids=found.stop_ids,
            stops=stops,
            generation=found.generation,
            endpoint=endpoint,
        )
    except BaseException:
        with CancelScope(shield=True):  # cancelled, it would close nothing
            await client.aclose()
        raise


def _load_tokenizer(named: str | None, origin: str) -> LoadedTokenizer:
    """Load the tokenizer from where the user says it is, else from where the model came from."""
    from stopadvisor.engines.local_tokenizer import load_tokenizer

    try:
        return load_tokenizer(named or origin)
    except ModelError as error:
        if named is not None:
            raise
        raise ModelError(
            f"{error}; the served model's own tokenizer is needed here: name its folder or its "
            "name on the Hub with --tokenizer"
        ) from error


def _origin(endpoint: Endpoint, asked_for: str) -> str:
    """Say where the tokenizer is: here in a folder, or under the name the server gives."""
    for place in (asked_for, endpoint.root):
        if place and Path(place).is_dir():
            return place
    # A path of the server's machine is no name that anything here could be found under.
    return endpoint.root if endpoint.root and not Path(endpoint.root).is_absolute() else asked_for


async def _check_tokenizer(client: Client, chat: Chat) -> None:
    """Refuse our tokenizer where the server shows that its own splits text differently."""
    text = chat.render([{"role": "user", "content": "What is 17 + 25?"}])
    body = {"model": client.model, "prompt": text, "add_special_tokens": False}
    for number, url in enumerate(client.urls):
        try:
            found = await client.ask(
                "POST", "//tokenize", body, replica=number, opening=True, optional=True
            )
        except EngineError:
            continue  # not every server has it
        theirs, ours = found.get("tokens"), chat.encode(text)
        if theirs is not None and theirs != ours:
            raise ModelError(
                f"the tokenizer of {chat.name!r} is not the one that {url} "
                "uses: they split the same text differently; name the right one with --tokenizer"
            )


def _remarks(served: ServedModel) -> list[str]:
    """What the user should know of this endpoint."""
    endpoint = served.endpoint
    name = "the server" if endpoint.server is None else f"the server (version {endpoint.server})"
    logprobs = (
        f"{endpoint.top_limit} log-probabilities per token"
        if endpoint.top_limit
        else "no log-probabilities: only families that read answers' texts can be used"
    )
    cached = "cached prompt tokens not reported (vLLM: --enable-prompt-tokens-details)"
    if endpoint.cached_tokens is not None:
        repeated = f"{endpoint.repeated_tokens} repeated prompt tokens"
        cached = f"{endpoint.cached_tokens} of {repeated} cached"
    return [f"{name} resumes token ids; {logprobs}; {cached}"]

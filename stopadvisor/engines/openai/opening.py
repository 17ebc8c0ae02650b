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
    from stopadvisor.engines.openai.engine import OpenAiEngine
    from stopadvisor.engines.openai.served_model import ServedModel

__all__ = ["DEFAULT_KEY", "open_client", "open_servers"]

DEFAULT_KEY = "OPENAI_API_KEY"
"""Environment variable that may hold the key."""

_PACKAGES = ("httpx2", "anyio", "transformers", "jinja2")


def open_servers(
    model: str,
    base_urls: Sequence[str],
    *,
    concurrency: int = 32,
    api_key_env: str | None = None,
    request_timeout: float = 600.0,
    retry_timeout: float = 300.0,
    on_wait: Callable[[str], None] | None = None,
    **chat: Any,
) -> OpenAiEngine:
    """Make the engine of a served model.

    Parameters
    ----------
    model
        Its name as the server knows it, or the folder or name the server took it from.
    base_urls
        Such as ``http://host:8000/v1``; several equal servers share the questions.
    concurrency
        Most requests at once.
    api_key_env
        Environment variable that holds the key; ``OPENAI_API_KEY`` is used when it is set.
    request_timeout, retry_timeout
        Seconds for one answer, and for which a request that fails is sent again.
    on_wait
        Told, in one line, when a server that is down or busy is waited for.
    **chat
        See `open_client`.

    Raises
    ------
    ModelError
        A package is missing; the server does not accept the key, does not serve the model, or
        does not complete token ids; or the tokenizer cannot be found.
    Unreachable
        The server is down, busy or silent for longer than `retry_timeout`.
    """
    require_packages("openai", *_PACKAGES)
    from anyio.from_thread import start_blocking_portal

    from stopadvisor.engines.http.client import Client, Key
    from stopadvisor.engines.openai.engine import OpenAiEngine

    key = Key.of_environment(api_key_env or DEFAULT_KEY, required=api_key_env is not None)
    client = Client(
        base_urls,
        model,
        key=key,
        request_timeout=request_timeout,
        retry_timeout=retry_timeout,
        on_wait=on_wait,
    )
    thread = start_blocking_portal()
    portal = thread.__enter__()
    try:
        served = portal.call(partial(open_client, client, **chat))
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
        remarks=[served.endpoint.described()],
    )


async def open_client(
    client: Client,
    *,
    tokenizer: str | None = None,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Open the model of a client within a running event loop; refused, the client is closed.

    `tokenizer` is a folder or a name; by default what the server names as the model's origin, else
    the model.  Errors are those of `open_servers`.
    """
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
        load = partial(_load_tokenizer, tokenizer, model, endpoint.root)
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


def _load_tokenizer(named: str | None, model: str, root: str | None) -> LoadedTokenizer:
    """Load the tokenizer from where the user says it is, else from where the model came from."""
    from stopadvisor.engines.local_tokenizer import load_tokenizer

    if named is not None:
        return load_tokenizer(named)
    # A path of the server's machine is no name that anything here could be found under.
    name = root if root and not Path(root).is_absolute() else model
    folders = (place for place in (model, root) if place and Path(place).is_dir())
    try:
        return load_tokenizer(next(folders, name))
    except ModelError as error:
        raise ModelError(
            f"{error}; the served model's own tokenizer is needed here: name its folder or its "
            "name on the Hub with --tokenizer"
        ) from error


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
        if found.get("tokens") not in (None, chat.encode(text)):
            raise ModelError(
                f"the tokenizer of {chat.name!r} is not the one that {url} "
                "uses: they split the same text differently; name the right one with --tokenizer"
            )

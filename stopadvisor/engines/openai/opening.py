"""From base URLs to a checked engine, in a thread of its own.

Importing this module imports neither an HTTP library nor transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stopadvisor.engines.errors import require_packages

if TYPE_CHECKING:
    from stopadvisor.engines.openai.engine import OpenAiEngine

__all__ = ["DEFAULT_KEY", "open_servers"]

DEFAULT_KEY = "OPENAI_API_KEY"
"""Environment variable that may hold the key."""


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
        See `served_model.open_client`.

    Raises
    ------
    ModelError
        A package is missing; the server does not accept the key, does not serve the model, or
        does not complete token ids; or the tokenizer cannot be found.
    Unreachable
        The server is down, busy or silent for longer than `retry_timeout`.
    """
    require_packages("openai", "httpx2", "anyio", "transformers", "jinja2")
    from anyio.from_thread import start_blocking_portal

    from stopadvisor.engines.http.client import Client, Key
    from stopadvisor.engines.openai.engine import OpenAiEngine
    from stopadvisor.engines.openai.served_model import open_client

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
        chat=served.chat,
        model_identity=served.identity(),
        portal=portal,
        thread=thread,
        concurrency=concurrency,
        remarks=[served.endpoint.described()],
    )

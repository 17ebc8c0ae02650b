"""Connect to servers and return a checked engine.

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
"""Default environment variable of the API key."""


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
    """Open a served model as an engine.

    Parameters
    ----------
    model
        Its name at the server, or the folder or Hub name it was loaded from.
    base_urls
        Such as ``http://host:8000/v1``; several replicas share the questions.
    concurrency
        Limit on requests in flight.
    api_key_env
        Environment variable of the API key; by default ``OPENAI_API_KEY``, if set.
    request_timeout, retry_timeout
        Seconds for one answer, and for retrying a failing request.
    on_wait
        Called with one line when a server is down or busy.
    **chat
        See `served_model.open_client`.

    Raises
    ------
    ModelError
        A package is missing; the server rejects the key, does not serve the model, or does not
        complete token ids; or the tokenizer cannot be found.
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
        # Passing the error, such as Ctrl-C, cancels running tasks instead of waiting for them.
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

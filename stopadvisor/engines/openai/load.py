"""From base URLs to a checked engine: what the server can do, then the model's tokenizer.

Refuses by name what cannot be probed.  Importing this module imports neither an HTTP library nor
transformers.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stopadvisor.errors import EngineError, ModelError

if TYPE_CHECKING:
    from stopadvisor.engines.chat import Chat
    from stopadvisor.engines.http.client import Client
    from stopadvisor.engines.local_tokenizer import LoadedTokenizer
    from stopadvisor.engines.openai.endpoint import Endpoint
    from stopadvisor.engines.openai.engine import OpenAiEngine
    from stopadvisor.engines.openai.model import ServedModel

__all__ = ["DEFAULT_KEY", "identity_of", "load_engine", "open_model"]

DEFAULT_KEY = "OPENAI_API_KEY"
"""Environment variable that may hold the key."""

_SETTINGS = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Generation settings that are a part of the identity."""
_PACKAGES = ("httpx2", "tenacity", "anyio", "transformers")


def load_engine(
    model: str,
    base_urls: Sequence[str],
    *,
    tokenizer: str | None = None,
    concurrency: int | None = None,
    api_key_env: str | None = None,
    request_timeout: float | None = None,
    patience: float | None = None,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> OpenAiEngine:
    """Make the engine of a served model.

    Parameters
    ----------
    model : str
        Its name as the server knows it, or the folder or name the server took it from.
    base_urls : sequence of str
        Such as ``http://host:8000/v1``; several equal servers share the questions.
    tokenizer : str, optional
        Folder or name to load the tokenizer from; by default what the server names as the model's
        origin, else `model`.
    concurrency : int, optional
        Most requests at once; found by a short ramp when not given.
    api_key_env : str, optional
        Environment variable that holds the key; ``OPENAI_API_KEY`` is used when it is set.
    request_timeout, patience : float, optional
        Seconds for one answer, and for which a request may go on failing; see `Client`.
    think_open, think_close, chat_template_kwargs
        As for the hf engine.

    Raises
    ------
    ModelError
        A package is missing; the server cannot be reached, does not accept the key, does not
        serve the model, or cannot resume reasoning; or the tokenizer cannot be found.
    """
    _require_packages()
    from anyio.from_thread import start_blocking_portal

    from stopadvisor.engines.openai.engine import OpenAiEngine

    opening = partial(
        open_model,
        model,
        base_urls,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        request_timeout=request_timeout,
        patience=patience,
        think_open=think_open,
        think_close=think_close,
        chat_template_kwargs=chat_template_kwargs,
    )
    thread = start_blocking_portal()
    portal = thread.__enter__()
    try:
        served = portal.call(opening)
    except BaseException as error:
        # Told of the error it cancels what is still under way, as at Ctrl-C, and awaits no answer.
        thread.__exit__(type(error), error, error.__traceback__)
        raise
    return OpenAiEngine(
        served_model=served,
        model_identity=identity_of(served),
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
    request_timeout: float | None = None,
    patience: float | None = None,
    think_open: str | None = None,
    think_close: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Open a served model within a running event loop, as a serving loop does.

    Parameters and errors are those of `load_engine`; close it with ``await model.aclose()``.
    """
    _require_packages()
    # Transformers says on import that torch is missing; nothing here needs it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from anyio import CancelScope

    client = _client(model, base_urls, api_key_env, request_timeout, patience)
    try:
        return await _open(client, tokenizer, think_open, think_close, chat_template_kwargs)
    except BaseException:
        with CancelScope(shield=True):  # cancelled, it would close nothing
            await client.aclose()
        raise


def _client(
    model: str,
    base_urls: Sequence[str],
    api_key_env: str | None,
    request_timeout: float | None,
    patience: float | None,
) -> Client:
    from stopadvisor.engines.http.client import REQUEST_TIMEOUT, RETRY_TIMEOUT, Client, Key

    return Client(
        base_urls,
        model,
        key=Key.of_environment(api_key_env or DEFAULT_KEY, required=api_key_env is not None),
        request_timeout=REQUEST_TIMEOUT if request_timeout is None else request_timeout,
        retry_timeout=RETRY_TIMEOUT if patience is None else patience,
    )


async def _open(
    client: Client,
    tokenizer: str | None,
    think_open: str | None,
    think_close: str | None,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> ServedModel:
    """Ask what the server can do, and load the tokenizer of what it serves."""
    from anyio.to_thread import run_sync

    from stopadvisor.engines.answer_end import AnswerStops
    from stopadvisor.engines.chat import Chat
    from stopadvisor.engines.openai.endpoint import find_endpoint, open_backend
    from stopadvisor.engines.openai.model import ServedModel

    asked_for = client.model
    endpoint = await find_endpoint(client)
    found = _load_tokenizer(tokenizer, _origin(endpoint, asked_for))

    def make() -> tuple[Chat, AnswerStops]:
        chat = Chat.of(
            found.tokenizer,
            think_open=think_open,
            think_close=think_close,
            template_kwargs=chat_template_kwargs,
        )
        return chat, AnswerStops.of(chat, found.stop_ids, len(found.tokenizer))

    chat, stops = await run_sync(make)
    await _check_tokenizer(client, chat)
    return ServedModel(
        client=client,
        backend=await open_backend(client, chat, endpoint),
        chat=chat,
        stop_ids=found.stop_ids,
        stops=stops,
        generation=found.generation,
        endpoint=endpoint,
    )


def _load_tokenizer(named: str | None, origin: str) -> LoadedTokenizer:
    """Load the tokenizer from where the user says it is, else from where the model came from.

    Raises
    ------
    ModelError
        It is not there.
    """
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
    """Hold our tokenizer against the server's, where that shows it.

    Raises
    ------
    ModelError
        They cut the same text differently.
    """
    from stopadvisor.engines.http.retries import OPENING_TIMEOUT

    text = chat.render([{"role": "user", "content": "What is 17 + 25?"}])
    body = {"model": client.model, "prompt": text, "add_special_tokens": False}
    for number, url in enumerate(client.urls):
        try:
            found = await client.ask(
                "POST", "//tokenize", body, replica=number, retry_timeout=OPENING_TIMEOUT
            )
        except EngineError:
            continue  # not every server has it
        theirs, ours = found.get("tokens"), chat.encode(text)
        if theirs is not None and theirs != ours:
            raise ModelError(
                f"the tokenizer of {chat.name!r} is not the one that {url} "
                "uses: they cut the same text differently; name the right one with --tokenizer"
            )


def identity_of(served: ServedModel) -> dict[str, Any]:
    """Return what is known of the model that decides the outcome; not where it is served."""
    from stopadvisor.engines.revision import content_revision

    name = served.endpoint.root or served.client.model
    root = Path(name)
    local = (root / "config.json").is_file()
    return {
        "engine": _engine(served),
        "engine_version": served.endpoint.server,
        # A folder goes by its own name, as with the hf engine, wherever it lies.
        "model": root.resolve().name if local or root.is_absolute() else name,
        # Of a model that lies elsewhere nothing shows which weights the server loaded.
        "model_revision": content_revision(root) if local else None,
        "dtype": None,
        "attention": None,
        "device": None,
        "quantization": None,
        "generation_config": {name: getattr(served.generation, name, None) for name in _SETTINGS},
        "tokenizer_sha256": served.chat.tokenizer_sha256(),
        "template_sha256": served.chat.template_sha256(),
        "think_open": served.chat.opener.to_json(),
        "think_close": served.chat.closer.to_json(),
        "stop_ids": list(served.stop_ids),
        "chat_template_kwargs": dict(served.chat.template_kwargs),
    }


def _engine(served: ServedModel) -> str:
    """The engine's name, by how its probes come about: those of one are not another's."""
    from stopadvisor.engines.openai.chat_backend import ChatBackend

    if isinstance(served.backend, ChatBackend):
        return f"openai-chat ({served.backend.form.name})"
    return "openai"


def _remarks(served: ServedModel) -> list[str]:
    """What the user should know of this endpoint."""
    endpoint = served.endpoint
    if not endpoint.resumes:
        return _remarks_on_chat(served)
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


def _remarks_on_chat(served: ServedModel) -> list[str]:
    from stopadvisor.engines.openai.chat_backend import ChatBackend

    backend = served.backend
    form = backend.form.name if isinstance(backend, ChatBackend) else None
    return [
        "the endpoint is a chat that shows its reasoning and cannot resume it (visible-stream); it "
        f"answers behind given reasoning ({form}): probed and served with overlap, no "
        "log-probabilities: only families that read answers' texts can be used",
        "thinking is cut into tokens of the local tokenizer, word by word: a policy from these "
        "probes is for endpoints of this kind",
    ]


def _require_packages() -> None:
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise ModelError(
                f"the openai engine needs {package}, which is not installed: "
                "pip install 'stopadvisor[openai]'"
            )

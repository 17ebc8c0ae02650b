"""Words that only the server has: asked of its ``/tokenize`` and ``/detokenize``, as vLLM has them.

The vocabulary as a whole, the template's text and the model's generation settings cannot be seen
there, and are not made up: hashes are over what is shown, and what ends an answer is tried out.
Knows a client; nothing of probes or policies.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import lru_cache, partial
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread

from stopadvisor.engines.http.client import Client, Completion, Refused
from stopadvisor.engines.http.retries import OPENING_PATIENCE
from stopadvisor.engines.openai.tokens import TAG, TriedTokens
from stopadvisor.engines.tokenizer import SPECIMEN, Rendered, Tokenizer, json_sha256
from stopadvisor.errors import EngineError, ModelError
from stopadvisor.policy.source import AS_SERVED

__all__ = ["ServerTokenizer", "aside"]

_Result = TypeVar("_Result")
_P = ParamSpec("_P")
_Messages = Sequence[Mapping[str, str]]

_KEPT = 256
"""Answers of each kind that are remembered."""
_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} [A-Z][a-z]{2,8} \d{4}\b|\b[A-Z][a-z]{2,8} \d{1,2}, \d{4}\b"
)
"""Templates write today's; no part of a hash."""
_OVER = "the server is no longer asked for its tokenizer: the engine is closed"
_USER = {"role": "user", "content": "What is 17 + 25?"}
_SAID = "Forty-two."
_CONVERSATIONS: tuple[_Messages, ...] = (
    (_USER,),
    ({"role": "system", "content": "Be brief."}, _USER),
    (_USER, {"role": "assistant", "content": _SAID}, _USER),
)
"""What the template is known by."""


class ServerTokenizer:
    """`Tokenizer` that servers answer.

    Made by `open`, and closed by `close`.

    Notes
    -----
    Has a client of its own, in an event loop and thread of its own, so that it may be asked from
    everywhere, and waited for; `aside` keeps that from holding up an event loop.  Special tokens
    are told by `TriedTokens`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client.twin()
        self._patience: float | None = OPENING_PATIENCE
        self._home: int | None = None
        self._closed = False
        self._closing = threading.Lock()
        """Held to ask and to close: nothing is asked behind the end."""
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program that forgets to close it can end.
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ids = lru_cache(_KEPT)(self._tokenize)
        self._text = lru_cache(_KEPT)(self._detokenize)
        self._prompt = lru_cache(_KEPT)(self._render)
        self._tokens = TriedTokens(self.encode, self._complete)
        self._written = self._tokenizer_sha256 = self._template_sha256 = ""
        self.stop_ids: tuple[int, ...] = ()
        """Ids that end a generation."""
        self.remarks: tuple[str, ...] = ()
        """What the user should know."""

    @classmethod
    async def open(cls, client: Client, why: str) -> ServerTokenizer:
        """Ask the servers of a client for their tokenizer.

        Parameters
        ----------
        client : Client
            Says which servers, model, key and limits.
        why : str
            Why the server is asked, for the remark.

        Raises
        ------
        ModelError
            They have no ``/tokenize``, or no chat template, or differ; or nothing ends an answer.
        """
        words = cls(client)
        try:
            # Whoever gives up is not held: closing ends what the thread waits for.
            await anyio.to_thread.run_sync(words._look, why, abandon_on_cancel=True)
        except BaseException:
            words.close()
            raise
        words._patience = None  # the client's own
        return words

    def close(self) -> None:
        """Close the connections and end the thread; whoever still waits gets an error."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()  # nobody waits for it any more
        await asyncio.gather(*left, return_exceptions=True)
        await self._client.aclose()

    # --- Words ---

    @property
    def name(self) -> str:
        """The model's, as the server calls it."""
        return self._client.model

    @property
    def local(self) -> bool:
        """It is not at hand."""
        return False

    @property
    def written(self) -> str:
        """What the template wrote of some conversations, thinking on and off."""
        return self._written

    def encode(self, text: str, *, begin: bool = False) -> list[int]:
        """Return a text's ids."""
        return list(self._ids(text, begin)) if text or begin else []

    def decode(self, ids: Sequence[int], *, special: bool) -> str:
        """Return ids as text; the server may clean up spaces as its tokenizer is set up to."""
        whole = self._text(tuple(ids)) if len(ids) else ""
        if special:
            return whole
        hidden = {self._tokens.special(tag) for tag in set(TAG.findall(whole))} & set(ids)
        return self._text(tuple(i for i in ids if i not in hidden)) if hidden else whole

    def has_token(self, text: str) -> bool:
        """Whether a text is one token."""
        return len(self.encode(text)) == 1

    def render(self, messages: _Messages, kwargs: Mapping[str, Any], *, generation: bool) -> str:
        """Have the template run.

        Raises
        ------
        ModelError
            It refuses.
        """
        return self._text(self._rendered(messages, kwargs, generation))

    def prompt(self, messages: _Messages, kwargs: Mapping[str, Any]) -> Rendered:
        """Have the template run; the ids are the server's own."""
        ids = self._rendered(messages, kwargs, True)
        before = self._rendered(messages, kwargs, False)
        if ids[: len(before)] == before:
            return Rendered(ids, self._text(ids[len(before) :]))
        text, shorter = self._text(ids), self._text(before)
        return Rendered(ids, text[len(shorter) :] if text.startswith(shorter) else text)

    def tokenizer_sha256(self) -> str:
        """Hash how a fixed text is cut and put together again."""
        return self._tokenizer_sha256

    def template_sha256(self) -> str:
        """Hash fixed conversations as they are written, dates left out."""
        return self._template_sha256

    # --- Opening ---

    def _look(self, why: str) -> None:
        """Find out all that does not depend on a question."""
        shown = []
        for number, url in enumerate(self._client.urls):
            self._home = number
            for answers in (self._ids, self._text, self._prompt):
                answers.cache_clear()
            try:
                shown.append((self._cut(), self._conversations()))
            except Refused as error:
                if error.status in (401, 403):
                    raise ModelError(str(error)) from error
                raise ModelError(f"{url} has no /tokenize and /detokenize ({error})") from error
            except EngineError as error:
                raise ModelError(f"{url} does not show its tokenizer: {error}") from error
            if shown[-1] != shown[0]:
                raise ModelError(
                    f"all --base-url must be equal servers: {url} cuts texts or writes "
                    f"conversations in another way than {self._client.urls[0]}"
                )
        self._home = None
        cut, texts = shown[0]
        self._tokenizer_sha256 = AS_SERVED + json_sha256(cut)
        self._template_sha256 = AS_SERVED + json_sha256([t and _DATE.sub("", t) for t in texts])
        info = self._info()
        off = self._writes((_USER,), {"enable_thinking": False}, True)
        self._written = "\n".join(
            text for text in (*texts, off, info.get("chat_template")) if isinstance(text, str)
        )
        _, _, behind = (self._writes(_CONVERSATIONS[-1][:2], {}, False) or "").rpartition(_SAID)
        ends = self._tokens.find_ends(behind, info.get("eos_token"))
        if ends is None:
            raise ModelError(
                f"nothing shows which token ends an answer of {self.name!r}: its template "
                f"writes {behind[:40]!r} behind one; load the tokenizer here (--tokenizer)"
            )
        self.stop_ids = ends.ids
        self.remarks = (
            f"tokenizer and chat template are asked of the server ({why}): a policy from here is "
            "for --tokenizer server",
            ends.remark,
            "the model's generation settings are not seen: what neither --greedy nor "
            "--temperature says of sampling is left to the server",
        )

    def _cut(self) -> list[Any]:
        ids = self.encode(SPECIMEN)
        return [ids, self.encode(SPECIMEN, begin=True), self.decode(ids, special=True)]

    def _conversations(self) -> list[str | None]:
        """Render each conversation both ways; the first must be possible."""
        first = self.render(_CONVERSATIONS[0], {}, generation=True)
        rest = [
            self._writes(messages, {}, generation)
            for messages in _CONVERSATIONS
            for generation in (True, False)
        ]
        return [first, *rest]

    def _writes(
        self, messages: _Messages, kwargs: Mapping[str, Any], generation: bool
    ) -> str | None:
        """What the template writes; None where it refuses."""
        try:
            return self.render(messages, kwargs, generation=generation)
        except ModelError:
            return None

    def _info(self) -> dict[str, Any]:
        """The tokenizer's settings, where the server shows them; most do not."""
        try:
            return self._ask("GET", "//tokenizer_info")
        except EngineError:
            return {}

    # --- Asking ---

    def _complete(self, prompt: str, **options: Any) -> Completion:
        return self._wait(self._client.complete(prompt, patience=self._patience, **options))

    def _tokenize(self, text: str, begin: bool) -> tuple[int, ...]:
        return _ids_in(self._post("//tokenize", prompt=text, add_special_tokens=begin))

    def _detokenize(self, ids: tuple[int, ...]) -> str:
        found = self._post("//detokenize", tokens=ids)
        text = found.get("prompt")
        if not isinstance(text, str):
            raise EngineError(f"the server's /detokenize returns no text but {sorted(found)}")
        return text

    def _rendered(
        self, messages: _Messages, kwargs: Mapping[str, Any], generation: bool
    ) -> tuple[int, ...]:
        return self._prompt(json.dumps([[dict(m) for m in messages], dict(kwargs)]), generation)

    def _render(self, asked: str, generation: bool) -> tuple[int, ...]:
        messages, kwargs = json.loads(asked)
        options = {"chat_template_kwargs": kwargs} if kwargs else {}
        try:
            found = self._post(
                "//tokenize", messages=messages, add_generation_prompt=generation, **options
            )
        except Refused as error:
            if error.status not in (400, 422):
                raise
            raise ModelError(
                f"the server's chat template refuses the messages, or it has none: {error}"
            ) from error
        return _ids_in(found)

    def _post(self, path: str, **fields: Any) -> dict[str, Any]:
        return self._ask("POST", path, {"model": self._client.model, **fields})

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._wait(
            self._client.ask(method, path, body, home=self._home, patience=self._patience)
        )

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        with self._closing:
            if self._closed:
                work.close()
                raise EngineError(_OVER)
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return asked.result()
        except CancelledError:
            raise EngineError(_OVER) from None


def _ids_in(found: Mapping[str, Any]) -> tuple[int, ...]:
    tokens = found.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(i, int) for i in tokens):
        raise EngineError(f"the server's /tokenize returns no token ids but {sorted(found)}")
    return tuple(tokens)


async def aside(
    words: Tokenizer, function: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs
) -> _Result:
    """Run what asks `words`: at once where they are here, else in a thread, as a server takes time.

    Raises
    ------
    StopAdvisorError
        Whatever `function` raises.
    """
    if words.local:
        return function(*args, **kwargs)
    return await anyio.to_thread.run_sync(
        partial(function, *args, **kwargs), abandon_on_cancel=True
    )

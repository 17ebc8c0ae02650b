"""How tokens travel: as ids both ways, or as text where an endpoint knows no ids.

Everything above asks a `Backend` for ids and gets ids.  The client itself is one;
`TextBackend` makes one of an endpoint that takes or gives text.  Knows the tokenizer; nothing
of thinking or probes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from stopadvisor.engines.chat import Chat
from stopadvisor.engines.http.client import Client
from stopadvisor.engines.http.completion import Completion, Take
from stopadvisor.engines.openai.drawing import telling
from stopadvisor.engines.openai.server_tokenizer import aside
from stopadvisor.errors import ModelError

__all__ = ["NO_STREAM", "Backend", "CompletionBackend", "TextBackend"]

NO_STREAM = (
    "early exit with overlap needs an endpoint that streams token ids, such as vLLM's "
    "/v1/completions; this one is resumed part by part (--serving resume)"
)


class Backend(Protocol):
    """Continues token ids; `Client.complete` says what the parameters are."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        ...

    def home(self) -> int:
        """Give a question its server."""
        ...

    @property
    def complete(self) -> Callable[..., Awaitable[Completion]]:
        """Continues token ids; the `token_ids` of the answer are there."""
        ...

    @property
    def stream(self) -> Callable[..., Awaitable[Completion]]:
        """Does so and hands each token on as it comes; see `Client.stream`."""
        ...


@dataclass(frozen=True)
class CompletionBackend:
    """What wires have in common that ask a client, and cut its texts here."""

    client: Client
    chat: Chat

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        return self.client.urls

    def home(self) -> int:
        """Give a question its server."""
        return self.client.home()


@dataclass(frozen=True)
class TextBackend(CompletionBackend):
    """Completions whose answers come back as text, and whose prompts may have to go as text.

    Notes
    -----
    Text is cut into tokens here, and cut again by the server: a token that spans the join of two
    parts becomes another one.  Probing draws a trace at once and serving resumes it, so a stop may
    rarely rest on another prefix than the recorded one; `verify` on probes of the same wire shows
    how rarely.  Log-probabilities are not asked for: without ids nothing says which belongs to
    which token.
    """

    takes_ids: bool
    """Prompts go as ids; only answers are text."""
    begin: str
    """What the server puts in front of every text, so that it is left out here."""

    @classmethod
    def of(cls, client: Client, chat: Chat, *, takes_ids: bool) -> TextBackend:
        """Find out whether this tokenizer's text can be continued in parts.

        Raises
        ------
        ModelError
            It cannot: joined parts are another text.
        """
        whole, parts = "7 + 25", ("7 +", " 25")
        joined = chat.decode([i for part in parts for i in chat.encode(part)])
        if joined != whole:
            raise ModelError(
                f"the tokenizer of {chat.words.name!r} joins {parts!r} to {joined!r}: "
                "its text cannot be continued in parts, which an endpoint without token ids needs"
            )
        usual = chat.decode(chat.words.encode(whole, begin=True), special=True)
        return cls(client, chat, takes_ids, usual.partition(whole)[0])

    async def complete(
        self,
        prompt_ids: Sequence[int],
        *,
        home: int | None = None,
        patience: float | None = None,
        temperature: float | None = 0.0,
        stop: Sequence[str] = (),
        **options: Any,
    ) -> Completion:
        """Continue token ids as text; see `Client.complete`.

        Of the other options those of drawing are passed on, where they say something: the server
        has its own ends, and its log-probabilities are not used.
        """
        prompt: Sequence[int] | str = prompt_ids
        if not self.takes_ids:
            text = await aside(self.chat.words, self.chat.decode, prompt_ids, special=True)
            prompt = text.removeprefix(self.begin)
        asked: dict[str, Any] = {
            **telling(options),
            "temperature": temperature,
            "home": home,
            "patience": patience,
        }
        if not self.chat.decode(self.chat.closer.ids):
            asked["skip_special_tokens"] = False  # the closer would not be seen
        stops: dict[str, Any] = {"stop": list(stop)} if stop else {}
        answer = await self.client.complete(prompt, **asked, **stops)
        if stop and answer.finish_reason == "stop" and not answer.text.strip():
            # Ended by a newline before any content, or by the model: only without a stop it shows.
            answer = await self.client.complete(prompt, **asked)
        ids = await aside(self.chat.words, self.chat.encode, answer.text)
        return replace(answer, token_ids=tuple(ids))

    async def stream(self, prompt_ids: Sequence[int], take: Take, **options: Any) -> Completion:
        """Refuse: where a token of streamed text ends is not known before the next has come.

        Raises
        ------
        ModelError
            Always; `capabilities.check_streams` says so before anything is asked.
        """
        del prompt_ids, take, options
        raise ModelError(NO_STREAM)

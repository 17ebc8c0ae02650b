"""A chat endpoint as a `Backend`: it thinks in a stream, and answers behind given thinking.

Nothing resumes a chat's reasoning; some endpoints complete a message that holds reasoning and the
start of an answer, which is what a probe needs.  Which form of request works is seen from its
effect.  Knows the tokenizer; nothing of probes or policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stopadvisor.engines.chat import Chat
from stopadvisor.engines.http.client import FINAL, Client, Refused, Unreachable
from stopadvisor.engines.http.completion import Completion, Take
from stopadvisor.engines.openai.chat_stream import ChatReader, ChatText
from stopadvisor.engines.openai.requests import Prefix, meaningful
from stopadvisor.errors import EngineError, ModelError

__all__ = ["FORMS", "ChatBackend", "Form", "OtherTraceError", "shows_reasoning"]


class OtherTraceError(EngineError):
    """A stream broke off, and asked for again the server thinks something else."""


@dataclass(frozen=True)
class Form:
    """How a server is asked to complete a message that has begun."""

    name: str
    """The field that asks for it."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the last message."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request."""


FORMS = (
    Form(
        "continue_final_message",
        request={"continue_final_message": True, "add_generation_prompt": False},
    ),
    Form("prefix", message={"prefix": True}),
)
"""Those of vLLM and of DeepSeek."""

_QUESTION = ({"role": "user", "content": "What is 17 + 25?"},)
_REASONING = "17 + 25 = 42.\n"
_NOTHING = "\n"
_TIMES = 8
_CUE = "\n\nFinal answer:"
_CUES = 4
_NEARLY = 0.15
"""Share of the added tokens by which counts may differ: a server may trim, or split differently."""
_SAID = 40
"""Characters of an answer that are waited for where reasoning would come first."""


@dataclass(frozen=True)
class ChatBackend:
    """A chat endpoint; made by `ChatBackend.of`, which finds out what it can do.

    Notes
    -----
    Thinking is split into tokens here, word by word, alike in probing and in serving; the
    server's own tokens are not seen, so no log-probabilities are asked for.
    """

    client: Client
    chat: Chat
    form: Form
    from_nothing: bool = True
    """It answers behind no thinking at all, too: behind a newline, as templates leave empty
    reasoning out."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of the servers."""
        return self.client.urls

    @property
    def chat_form(self) -> str:
        """Name of the form."""
        return self.form.name

    def assign_replica(self) -> int:
        """Give a question its server."""
        return self.client.assign_replica()

    @classmethod
    async def of(cls, client: Client, chat: Chat) -> ChatBackend:
        """Find the form in which every server answers behind given reasoning.

        Raises
        ------
        ModelError
            There is none.
        Unreachable
            A server is down, busy or silent for longer than the client waits.
        """
        found: list[str] = []
        for form in FORMS if await _in_a_field(client, found) else ():
            backend = cls(client, chat, form)
            for number in range(len(client.urls)):
                wrong = await backend._wrong(number)
                if wrong:
                    found.append(f"{form.name}: {wrong}")
                    break
            else:
                return replace(backend, from_nothing=await backend._starts_from_nothing())
        raise ModelError(
            f"{client.urls[0]}: the endpoint shows its reasoning in a chat stream and cannot "
            "resume it (visible-stream), nor answer behind reasoning that is given to it "
            f"({'; '.join(found)}): it cannot be probed; what remains is the full budget and the "
            "provider's own effort setting"
        )

    async def _wrong(self, number: int) -> str | None:
        """Say why the form does not work; None where it does."""
        try:
            short, wrong = await self._try(_REASONING, _CUE, self.form, number)
            long, _ = await self._try(_REASONING * _TIMES, _CUE, self.form, number)
            cues, _ = await self._try(_REASONING, _CUE * _CUES, self.form, number)
        except Unreachable:
            raise
        except EngineError as error:
            return str(error)
        if wrong:
            return wrong
        if not short:
            return "it does not say how many tokens its prompt has"
        if not self._near(long - short, _REASONING * _TIMES, _REASONING):
            return f"the prompt grows by {long - short} tokens with the reasoning that is added"
        if not self._near(cues - short, _CUE * _CUES, _CUE):
            return f"the prompt grows by {cues - short} tokens with the start of the answer"
        try:
            closed, _ = await self._try(_REASONING, _CUE, Form("none"), number)
        except Unreachable:
            raise
        except EngineError:
            return None  # so it is the form that makes it acceptable
        # A message that is over has its end, and another message's begin, behind it.
        return None if closed != short else "it has no effect"

    async def _starts_from_nothing(self) -> bool:
        """Whether no thinking is closed as some is."""
        try:
            for number in range(len(self.client.urls)):
                none, wrong = await self._try(_NOTHING, _CUE, self.form, number)
                some, _ = await self._try(_REASONING, _CUE, self.form, number)
                if wrong or not self._near(some - none, _REASONING, _NOTHING):
                    return False
        except Unreachable:
            raise
        except EngineError:
            return False
        return True

    async def _try(self, reasoning: str, content: str, form: Form, number: int) -> tuple[int, str]:
        """Return the prompt's tokens, and what is wrong with the answer."""
        where = {"replica": number, "opening": True}
        body = self._behind(_QUESTION, reasoning, content, form, {"max_tokens": 4})
        answer, said = await self._read(body, where)
        begins = said.reasoning or said.text.lstrip().startswith(self.chat.opener.text)
        return answer.prompt_tokens, "it begins a new reasoning" if begins else ""

    def _near(self, counted: int, text: str, less: str) -> bool:
        """Whether a server counts nearly as many tokens as one text has more than another."""
        tokens = len(self.chat.encode(text)) - len(self.chat.encode(less))
        return abs(counted - tokens) <= max(2, _NEARLY * tokens)

    async def complete(
        self, prompt: Sequence[int], *, stop: Sequence[str] = (), **options: Any
    ) -> Completion:
        """Think and answer, or answer behind given thinking; see `Client.complete`.

        It is an error, too, when the server begins to think again instead of answering.
        """
        prefix = _known(prompt)
        if not prefix.after:
            ids: list[int] = []

            def take(new: Sequence[int]) -> bool:
                ids.extend(new)
                return True

            answer = await self._think(prefix, take, options, hands_on=False)
            return replace(answer, token_ids=tuple(ids))
        answer = await self._answer(prefix, options, stop)
        if stop and answer.finish_reason == "stop" and not answer.text.strip():
            # Ended by a newline before any content, or by the model: only without a stop it shows.
            answer = await self._answer(prefix, options, ())
        return replace(answer, token_ids=tuple(self.chat.encode(answer.text)))

    async def stream(self, prompt: Sequence[int], take: Take, **options: Any) -> Completion:
        """Think and answer, and hand the tokens on as they come; see `Client.stream`.

        A chat cannot be resumed: where thinking stands behind the prompt, all of it is asked for
        again, and the part that came before is skipped.

        Raises
        ------
        OtherTraceError
            It is not what came the first time.
        """
        prefix = _known(prompt)
        known, seen = prefix.thinking, 0
        ids: list[int] = []

        def give(new: Sequence[int]) -> bool:
            nonlocal seen
            again = known[seen : seen + len(new)]
            if tuple(new[: len(again)]) != again:
                raise OtherTraceError("the stream broke off, and asked again the server differs")
            seen += len(new)
            rest = new[len(again) :]
            ids.extend(rest)
            return take(rest) if rest else True

        answer = await self._think(prefix, give, options, hands_on=True)
        return replace(answer, token_ids=tuple(ids))

    async def _think(
        self, prefix: Prefix, take: Take, options: Mapping[str, Any], *, hands_on: bool
    ) -> Completion:
        """Stream a whole trace; without `hands_on` its ids are given at the end, all at once."""
        text = ChatText(self.chat)

        def make() -> ChatReader:
            nonlocal text
            text = ChatText(self.chat)
            if not hands_on:
                return ChatReader(text.keep)
            return ChatReader(lambda reasoning, said: give(text.cut(reasoning, said)), True)

        def give(ids: Sequence[int]) -> bool:
            return take(ids) if ids else True

        answer = await self._send(self._body(prefix.messages, options), make, options)
        if answer.finish_reason in ("stop", "length"):
            give([*text.ids, *text.finish()])
        return answer

    async def _answer(
        self, prefix: Prefix, options: Mapping[str, Any], stop: Sequence[str]
    ) -> Completion:
        """Answer behind thinking."""
        if not (prefix.thinking or self.from_nothing):
            raise ModelError(
                "this chat cannot be made to answer without any thinking: leave 0 out of --budgets"
            )
        begin = prefix.after[len(self.chat.closer.ids) :]
        thinking = self.chat.decode(prefix.thinking) or _NOTHING
        body = self._behind(prefix.messages, thinking, self.chat.decode(begin), self.form, options)
        if stop:
            body["stop"] = list(stop)
        answer, said = await self._read(body, options)
        if said.reasoning.strip():
            raise EngineError(
                "the server begins to think again where it was to answer behind given thinking"
            )
        return answer

    async def _read(
        self, body: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Completion, ChatReader]:
        """Send a request and wait for its answer; also returns what was read."""
        readers: list[ChatReader] = []

        def make() -> ChatReader:
            readers.append(ChatReader(lambda reasoning, text: True))
            return readers[-1]

        return await self._send(body, make, options), readers[-1]

    async def _send(
        self, body: Mapping[str, Any], make: Callable[[], ChatReader], options: Mapping[str, Any]
    ) -> Completion:
        return await self.client.read_stream(
            "/chat/completions",
            body,
            make,
            replica=options.get("replica"),
            opening=options.get("opening", False),
        )

    def _behind(
        self,
        messages: Sequence[Mapping[str, Any]],
        reasoning: str,
        begin: str,
        form: Form,
        options: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return a request to continue an answer that was begun behind given reasoning."""
        last = {"role": "assistant", "reasoning_content": reasoning, "content": begin}
        return {**self._body([*messages, {**last, **form.message}], options), **form.request}

    def _body(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a request with those options that say something; unknown ones are refused."""
        body: dict[str, Any] = {
            "model": self.client.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
        }
        if self.chat.template_kwargs:
            body["chat_template_kwargs"] = dict(self.chat.template_kwargs)
        return body | meaningful(options)


def _known(prompt: Sequence[int]) -> Prefix:
    if isinstance(prompt, Prefix) and prompt.messages:
        return prompt
    raise ModelError("a chat endpoint takes no token ids: this cannot be asked of it")


async def _in_a_field(client: Client, wrong: list[str]) -> bool:
    """Whether every server gives reasoning in a field of its own."""
    for number in range(len(client.urls)):
        if not await shows_reasoning(client, number):
            wrong.append("reasoning among the answer's text: vLLM wants a --reasoning-parser")
            return False
    return True


async def shows_reasoning(client: Client, number: int) -> bool | None:
    """Whether a chat stream shows reasoning in a field of its own; None: among the answer's text.

    Raises
    ------
    Refused, EngineError
        There is no chat.
    """
    said = ChatReader(lambda reasoning, text: True)

    def make() -> ChatReader:
        nonlocal said
        said = ChatReader(lambda reasoning, text: not said.reasoning and len(said.text) < _SAID)
        return said

    inline = False
    # Drawn by chance an answer may come without any; not every provider takes a temperature.
    for options in ({"temperature": 0.0}, {}):
        body = {"model": client.model, "messages": list(_QUESTION), "stream": True, **options}
        try:
            await client.read_stream("/chat/completions", body, make, replica=number, opening=True)
        except Refused as error:
            if error.status in FINAL or not options:
                raise
            continue
        if said.reasoning:
            return True
        inline = inline or said.text.lstrip().startswith("<think>")
    return None if inline else False

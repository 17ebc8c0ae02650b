"""An API key that is sent to its servers and shown nowhere.

Knows the environment and HTTP headers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

import httpx2

from stopadvisor.ground.errors import ModelError

__all__ = ["FORWARDED", "ForwardedKey", "Key"]

FORWARDED: ContextVar[str] = ContextVar("authorization", default="")
"""Header ``Authorization`` of the request that is being answered; empty where it has none."""

_SHORTEST_SECRET = 8
"""Characters.  Shorter keys, such as the EMPTY that some servers want, are no secret, and stand in
honest texts."""


class Key(httpx2.Auth):
    """An API key that shows itself to the server alone.

    Messages call it by the name of the environment variable it came from.  One that is empty or
    cannot stand in an HTTP header raises `ModelError`.
    """

    def __init__(self, value: str, name: str = "key") -> None:
        self.name = name
        self.__value = value.strip()
        # Checked here, as the HTTP library would quote the whole header in its complaint.
        if not self.__value or not (self.__value.isascii() and self.__value.isprintable()):
            raise ModelError(f"{name} must hold printable ASCII characters, without line breaks")

    @classmethod
    def of_environment(cls, name: str, *, required: bool) -> Key | None:
        """Read a key from an environment variable; one that is `required` must be set."""
        value = os.environ.get(name)
        if value:
            return cls(value, name)
        if required:
            raise ModelError(f"--api-key-env names {name}, which is not set in the environment")
        return None

    def __repr__(self) -> str:
        return f"Key({self.name})"

    def __reduce__(self) -> str:
        raise TypeError("a key is not stored")

    @property
    def _value(self) -> str:
        return self.__value

    @property
    def _secret(self) -> bool:
        return len(self._value) >= _SHORTEST_SECRET

    @property
    def header(self) -> str:
        """Value of the header ``Authorization``; empty where there is no key."""
        return f"Bearer {self._value}"

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign a request; called by the HTTP library."""
        if self.header:
            request.headers["Authorization"] = self.header
        yield request

    def hide(self, text: str) -> str:
        """Take the key out of a text, such as a server's complaint about it."""
        return text.replace(self._value, f"[{self.name}]") if self._value else text

    def hide_in_text(self, text: str) -> str:
        """Take the key out of what a model says, which a server may have made up.

        A key that is too short to be a secret stays: it may be a part of an answer.
        """
        return self.hide(text) if self._secret else text

    def hide_in_data(self, data: Any) -> Any:
        """Take the key out of all texts of JSON data, names of fields included."""
        # The search runs in C; the walk is left for servers that do repeat the key.
        if not self._secret or json.dumps(self._value)[1:-1] not in json.dumps(data):
            return data
        if isinstance(data, str):
            return self.hide(data)
        if isinstance(data, list):
            return [self.hide_in_data(item) for item in data]
        if isinstance(data, dict):
            return {self.hide(name): self.hide_in_data(item) for name, item in data.items()}
        return data

    def mask(self) -> KeyMask:
        """Return what takes the key out of bytes that pass through."""
        return KeyMask(self._value if self._secret else "")


class KeyMask:
    """Replaces a key in bytes by as many asterisks, so that lengths stay what they are.

    Finds it as it is and as JSON may write it, also where two pieces share it.
    """

    def __init__(self, secret: str) -> None:
        escaped = json.dumps(secret)[1:-1]
        forms = {secret, escaped, escaped.replace("/", "\\/")} - {""}
        self._forms = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._kept = b""

    def whole(self, data: bytes) -> bytes:
        """Mask the key in data that nothing follows."""
        for form in self._forms:
            data = data.replace(form, b"*" * len(form))
        return data

    def take(self, piece: bytes) -> bytes:
        """Return what can be shown by now: an end that may begin the key is kept back."""
        data, kept = self.whole(self._kept + piece), 0
        for form in self._forms:
            most = min(len(data), len(form) - 1)
            begun = next((n for n in range(most, 0, -1) if data.endswith(form[:n])), 0)
            kept = max(kept, begun)
        shown, self._kept = data[: len(data) - kept], data[len(data) - kept :]
        return shown

    def rest(self) -> bytes:
        """Return what was kept back, when nothing follows."""
        return self._kept


class ForwardedKey(Key):
    """The key that came with the request that is being answered, as `FORWARDED` holds it."""

    def __init__(self) -> None:
        self.name = "Authorization"

    @property
    def _value(self) -> str:
        return FORWARDED.get().rpartition(" ")[2]

    @property
    def header(self) -> str:
        """The header as the client sent it."""
        return FORWARDED.get()

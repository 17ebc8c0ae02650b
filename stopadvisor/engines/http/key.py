"""An API key that is sent to its servers and removed from everything else."""

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
"""``Authorization`` header of the request being answered; empty without one."""

_SHORTEST_SECRET = 8
"""Shorter keys are placeholders, such as the EMPTY that some servers expect; honest texts may
contain them."""


class Key(httpx2.Auth):
    """An API key that only its server sees.

    Messages name its environment variable instead.  Raises `ModelError` for a key that is empty or
    not allowed in an HTTP header.
    """

    def __init__(self, value: str, name: str = "key") -> None:
        self.name = name
        self.__value = value.strip()
        # Checked here because the HTTP library's error would quote the whole header.
        if not self.__value or not (self.__value.isascii() and self.__value.isprintable()):
            raise ModelError(f"{name} must hold printable ASCII characters, without line breaks")

    @classmethod
    def of_environment(cls, name: str, *, required: bool) -> Key | None:
        """Read a key from an environment variable, which must be set if `required`."""
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
        """Value of the ``Authorization`` header; empty without a key."""
        return f"Bearer {self._value}"

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Sign a request; called by the HTTP library."""
        if self.header:
            request.headers["Authorization"] = self.header
        yield request

    def hide(self, text: str) -> str:
        """Replace the key in a text, such as a server's error message."""
        return text.replace(self._value, f"[{self.name}]") if self._value else text

    def hide_in_text(self, text: str) -> str:
        """Replace the key in generated text, unless it is a short placeholder."""
        return self.hide(text) if self._secret else text

    def hide_in_data(self, data: Any) -> Any:
        """Replace the key in all strings of JSON data, including field names."""
        # Searching the dump is fast; only servers that repeat the key cost the slow walk.
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
        """Return a filter that masks the key in a byte stream."""
        return KeyMask(self._value if self._secret else "")


class KeyMask:
    """Replaces a key in a byte stream with asterisks, keeping its length.

    Finds the plain key and its JSON escapes, even across chunks.
    """

    def __init__(self, secret: str) -> None:
        escaped = json.dumps(secret)[1:-1]
        forms = {secret, escaped, escaped.replace("/", "\\/")} - {""}
        self._forms = sorted((form.encode() for form in forms), key=len, reverse=True)
        self._kept = b""

    def whole(self, data: bytes) -> bytes:
        """Mask the key in complete data."""
        for form in self._forms:
            data = data.replace(form, b"*" * len(form))
        return data

    def take(self, piece: bytes) -> bytes:
        """Return the bytes that can be sent now; hold back a possible start of the key."""
        data, kept = self.whole(self._kept + piece), 0
        for form in self._forms:
            most = min(len(data), len(form) - 1)
            begun = next((n for n in range(most, 0, -1) if data.endswith(form[:n])), 0)
            kept = max(kept, begun)
        shown, self._kept = data[: len(data) - kept], data[len(data) - kept :]
        return shown

    def rest(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        return self._kept


class ForwardedKey(Key):
    """The key of the request being answered, from `FORWARDED`."""

    def __init__(self) -> None:
        self.name = "Authorization"

    @property
    def _value(self) -> str:
        return FORWARDED.get().rpartition(" ")[2]

    @property
    def header(self) -> str:
        """The client's header, unchanged."""
        return FORWARDED.get()

"""Hostile policy files: each is refused in one line, runs nothing and takes little memory."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stopadvisor.ground.errors import PolicyError
from stopadvisor.policy.file import MAX_ELEMENTS, decode, encode_policy, read_bytes, sealed
from stopadvisor.policy.frozen import load_policy, save_policy
from tests.policy_content import built, example_content, file_bytes, policy_from

MEGABYTE = 2**20
BUILT = built(example_content())
TEXT, _ = sealed(BUILT)
VALID, VALID_JSON = encode_policy(TEXT, "joblib"), encode_policy(TEXT, "json")

executed: list[str] = []
"""Names of functions that a hostile file managed to run."""


def _sentinel(name: str) -> str:
    executed.append(name)
    return name


class _Text(str):
    """A string whose pickle names this class."""


class _Reduce:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def refusal(path: Path, most_memory: float = 2 * MEGABYTE) -> str:
    """Load a file that must be refused, and return the message."""
    executed.clear()
    tracemalloc.start()
    try:
        with pytest.raises(PolicyError) as caught:
            load_policy(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert executed == []
    assert peak < most_memory, f"{peak / MEGABYTE:.1f} MB"
    assert "\n" not in message
    assert len(message) < 500 + len(str(path))
    assert message.startswith(f"{path}: ")
    return message


def joblib_bytes(value: Any, compress: Any = 0) -> bytes:
    buffer = io.BytesIO()
    joblib.dump(value, buffer, compress=compress)
    return buffer.getvalue()


def pickled(text: bytes, *, size: int | None = None, frame: int | None = None) -> bytes:
    """A pickle of one text, by hand."""
    length = struct.pack("<I", len(text) if size is None else size)
    framed = b"" if frame is None else b"\x95" + struct.pack("<Q", frame)
    return b"\x80\x04" + framed + b"X" + length + text + b"\x94."


OBJECTS: dict[str, Callable[[], bytes]] = {
    "reduce-function": lambda: pickle.dumps(_Reduce(_sentinel, ("reduce",)), 4),
    "reduce-eval": lambda: pickle.dumps(
        _Reduce(builtins.eval, (f"__import__({__name__!r}).executed.append(1)",)), 4
    ),
    "reduce-protocol-0": lambda: pickle.dumps(_Reduce(_sentinel, ("reduce",)), 0),
    "reduce-of-the-text": lambda: pickle.dumps(_Reduce(_sentinel, (TEXT,)), 4),
    "global-by-hand": lambda: b"\x80\x04cposix\nsystem\n(S'echo hostile'\ntR.",
    "after-the-text": lambda: VALID[:-1] + b"0cposix\nsystem\n(S'echo hostile'\ntR.",
    "class-of-text": lambda: pickle.dumps(_Text(TEXT), 4),
    "numpy-array": lambda: joblib_bytes(np.array([TEXT])),
    "tuple": lambda: pickle.dumps((TEXT,), 4),
    "bytes": lambda: pickle.dumps(TEXT.encode(), 4),
    "dict-as-in-schema-2": lambda: pickle.dumps(BUILT, 4),
    "text-of-protocol-0": lambda: pickle.dumps(TEXT, 0),
    "text-of-protocol-2": lambda: pickle.dumps(TEXT, 2),
    "zlib": lambda: joblib_bytes(TEXT, ("zlib", 3)),
    "gzip-by-hand": lambda: gzip.compress(VALID),
    "gzip-bomb": lambda: gzip.compress(bytes(64 * MEGABYTE)),
    "zlib-by-hand": lambda: zlib.compress(VALID),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(OBJECTS[name]())
    message = refusal(path)
    assert any(what in message for what in ("pickle of one text", "follows its text", "neither"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (2, "expected 3, got 2; policies of schema 1 and 2 are not read any more: assess"),
        (1, "expected 3, got 1; policies of schema 1 and 2"),
        (4, "written by a newer StopAdvisor .policy schema 4; .* upgrade with pip install -U"),
    ],
)
def test_other_schemas_say_what_to_do(schema: int, message: str) -> None:
    text = json.dumps({"schema": schema, "kind": "stop", "else": "x" * 300})
    for format in ("json", "joblib"):
        with pytest.raises(PolicyError, match=message):
            decode(encode_policy(text, format))


def inside(value: bytes) -> bytes:
    """A whole policy with a right digest and this JSON in it."""
    whole = file_bytes(BUILT | {"chat_template_kwargs": {"x": 314159}}).replace(b"314159", value)
    start = whole.index(b'"digest": "') + len(b'"digest": "')
    zeros = whole[:start] + b"0" * 64 + whole[start + 64 :]
    return whole[:start] + hashlib.sha256(zeros).hexdigest().encode() + whole[start + 64 :]


BOMBS: dict[str, tuple[Callable[[], bytes], float, str]] = {
    # name: (bytes, most megabytes of memory while they are refused, what is said)
    "two-gigabytes": (lambda: pickled(b"{}", size=2**31), 1, "past the end"),
    "frame-past-end": (lambda: pickled(VALID_JSON, frame=2**40) + b"x", 1, "follows its text"),
    "values": (lambda: inside(b"[" + b"0," * 3_900_000 + b"0]"), 40, "at most 250000 values"),
    "lists": (lambda: inside(b"[" + b"[]," * 2_600_000 + b"[]]"), 40, "lists and dicts"),
    "nested": (lambda: inside(b"[" * 40_000 + b"]" * 40_000), 16, "nested too deep"),
    "nested-30": (lambda: inside(b"[" * 30 + b"]" * 30), 2, "at most"),
    "digits": (lambda: inside(b"9" * MEGABYTE), 8, "damaged JSON"),
    "text": (lambda: inside(b'"' + b"x" * 8_000_000 + b'"'), 40, "at most 1048576 bytes, one has"),
    "quotes": (lambda: inside(b'"' + b'\\"' * 3_900_000), 40, "at most 1048576 bytes, one has"),
    "wide": (
        lambda: inside(b"[" + b",".join([b'"\\ud83d\\ude42' + b"x" * 700_000 + b'"'] * 4) + b"]"),
        24,
        "texts with escapes have at most",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    make, megabytes, message = BOMBS[name]
    path = tmp_path / "policy.joblib"
    path.write_bytes(make())
    assert message in refusal(path, megabytes * MEGABYTE)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(VALID)
    assert read_bytes(path, most=len(VALID)) == VALID
    with open(path, "r+b") as file:
        file.truncate(100 * MEGABYTE)  # sparse: it takes no room on the disk
    assert str(100 * MEGABYTE) in refusal(path, MEGABYTE / 2)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", "neither", id="empty"),
        pytest.param(b"\x80", "pickle of one text", id="one-byte"),
        pytest.param(b"hello", "neither", id="text"),
        pytest.param(pickled(b""), "neither", id="pickled-nothing"),
        pytest.param(VALID[:-1], "follows its text", id="no-end"),
        pytest.param(VALID[:-2], "follows its text", id="text-alone"),
        pytest.param(VALID + b"\n", "follows its text", id="trailing-byte"),
        pytest.param(VALID + VALID, "follows its text", id="twice"),
        pytest.param(b"\x80\x03" + VALID[2:], "pickle of one text", id="protocol-3"),
        pytest.param(b"{", "neither", id="json-cut"),
        pytest.param(b"{}", "neither", id="json-empty"),
        pytest.param(b'{"schema": 3}', 'expected "digest"', id="no-digest"),
        pytest.param(b'{"schema": 3, "digest": null}', 'expected "digest"', id="null-digest"),
        pytest.param(VALID_JSON.rstrip() + b"}\n", "digest does not match", id="json-trailing"),
        pytest.param(VALID_JSON.replace(b"\n", b""), "digest does not match", id="reformatted"),
        pytest.param(inside(b'{"b": 1, "a": 1, "a": 1}'), "key 'a' appears twice", id="key-twice"),
        pytest.param(inside(b"NaN"), "must be finite, got NaN", id="nan"),
        pytest.param(inside(b"-Infinity"), "must be finite", id="infinity"),
        pytest.param(inside(b"1e999"), "a finite float", id="overflow"),
        pytest.param(inside(b"9223372036854775808"), "64 bits", id="65-bits"),
        pytest.param(inside(b'"\\ud800"'), "Unicode", id="surrogate"),
        pytest.param(inside(b'{"\\udfff": 1}'), "Unicode", id="surrogate-key"),
        pytest.param(inside(b'"\xc3\xa9"'), "ASCII", id="not-ascii"),
        pytest.param(inside(b'"\x01"'), "damaged JSON", id="control-character"),
        pytest.param(inside(b"{} {}"), "damaged JSON", id="two-values"),
        pytest.param(inside(b"[1,]"), "damaged JSON", id="comma"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(data)
    assert expected in refusal(path)


@pytest.mark.parametrize("whole", [VALID, VALID_JSON], ids=["joblib", "json"])
def test_truncated_files_are_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "policy"
    for size in range(0, len(whole) - 1, 50):
        path.write_bytes(whole[:size])
        refusal(path)


@pytest.mark.parametrize("whole", [VALID, VALID_JSON], ids=["joblib", "json"])
def test_a_flipped_bit_is_refused(whole: bytes) -> None:
    framing = len(VALID) - len(VALID_JSON)
    for position in range(0, len(whole), 7):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            try:
                content = decode(bytes(damaged))
            except PolicyError:
                continue
            assert whole is VALID and position < framing  # noqa: PT018  a protocol, a frame's size
            assert content == BUILT


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x80\x04", b'{"schema": 3', b"\x80\x04X"]))
def test_random_bytes_are_refused(tail: bytes, head: bytes) -> None:
    with pytest.raises(PolicyError):
        decode(head + tail)


def test_special_files_are_refused(tmp_path: Path) -> None:
    assert "no such" in refusal(tmp_path / "nothing.joblib")
    assert "regular file" in refusal(tmp_path)
    pipe = tmp_path / "pipe.joblib"
    os.mkfifo(pipe)
    assert "regular file" in refusal(pipe)  # and does not wait for a writer
    with pytest.raises(PolicyError, match="cannot read"):
        load_policy("a\0b")


def test_a_file_too_large_to_load_is_never_written(tmp_path: Path) -> None:
    escaped = ["\x01" * 750_000, "\x01" * 750_001]  # six bytes each in JSON
    many = [str(k) for k in range(MAX_ELEMENTS)]
    for ids in (["x" * 100_000 + str(k) for k in range(90)], many, escaped):
        with pytest.raises(PolicyError, match="at most"):
            save_policy(
                policy_from(example_content(split=BUILT["split"] | {"fit": ids})),
                tmp_path / "policy.json",
                format="json",
            )
    assert list(tmp_path.iterdir()) == []

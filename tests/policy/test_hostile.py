"""Files that a loader must not trust: each refused with one line, nothing run, little memory."""

from __future__ import annotations

import builtins
import bz2
import copyreg
import gzip
import io
import json
import lzma
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

from stopadvisor.errors import PolicyError
from stopadvisor.policy.file import encode
from stopadvisor.policy.frozen import Policy, build_policy, load_policy, save_policy
from stopadvisor.policy.opcodes import decode_pickle
from stopadvisor.policy.values import MAX_BYTES, MAX_ELEMENTS, canonical_digest
from tests.policy_content import example_content

MEGABYTE = 2**20
BUILT = build_policy(example_content())
VALID = encode(BUILT, "joblib")
VALID_JSON = encode(BUILT, "json")

executed: list[str] = []
"""Anything a hostile file manages to run leaves its name here."""


def _sentinel(name: str) -> str:
    executed.append(name)
    return name


class _Class:
    def __init__(self) -> None:
        self.field = 1

    def __setstate__(self, state: object) -> None:
        executed.append("setstate")


class _Reduce:
    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class _Persistent(pickle.Pickler):
    def persistent_id(self, obj: object) -> str | None:
        return "sentinel" if isinstance(obj, _Class) else None


def refusal(path: Path, most_memory: float = 2 * MEGABYTE) -> str:
    """Load a file that must be refused, and hand back what was said."""
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


def with_profile(value: Any, protocol: int = 4) -> bytes:
    """A pickle of the valid content with something in it that is no plain value."""
    return pickle.dumps(BUILT | {"profile": {"x": value}}, protocol)


def persistent() -> bytes:
    buffer = io.BytesIO()
    _Persistent(buffer, 4).dump(BUILT | {"profile": {"x": _Class()}})
    return buffer.getvalue()


def extension() -> bytes:
    copyreg.add_extension(__name__, "_Class", 240)
    try:
        return with_profile(_Class)
    finally:
        copyreg.remove_extension(__name__, "_Class", 240)


def joblib_bytes(value: Any, compress: Any = 0) -> bytes:
    buffer = io.BytesIO()
    joblib.dump(value, buffer, compress=compress)
    return buffer.getvalue()


def fitted_model() -> bytes:
    from sklearn.linear_model import LogisticRegression

    return joblib_bytes(LogisticRegression().fit([[0.0], [1.0]], [0, 1]))


OBJECTS: dict[str, Callable[[], bytes]] = {
    "instance": lambda: with_profile(_Class()),
    "class": lambda: with_profile(_Class),
    "function": lambda: with_profile(_sentinel),
    "builtin": lambda: with_profile(print),
    "reduce-function": lambda: with_profile(_Reduce(_sentinel, ("reduce",))),
    "reduce-eval": lambda: with_profile(
        _Reduce(builtins.eval, (f"__import__({__name__!r}).executed.append(1)",))
    ),
    "reduce-system": lambda: with_profile(_Reduce(os.system, ("echo hostile",))),
    "reduce-protocol-0": lambda: pickle.dumps(_Reduce(_sentinel, ("reduce",)), 0),
    "reduce-protocol-2": lambda: with_profile(_Reduce(_sentinel, ("reduce",)), 2),
    "reduce-protocol-5": lambda: with_profile(_Reduce(_sentinel, ("reduce",)), 5),
    "global-by-hand": lambda: b"\x80\x04cposix\nsystem\n(S'echo hostile'\ntR.",
    "inst-by-hand": lambda: b"\x80\x04(S'echo hostile'\niposix\nsystem\n.",
    "persistent-id": persistent,
    "extension": extension,
    "numpy-array": lambda: joblib_bytes(BUILT | {"mean": np.zeros(8)}),
    "numpy-scalar": lambda: joblib_bytes(BUILT | {"intercept": np.float64(1.0)}),
    "fitted-model": fitted_model,
    "tuple": lambda: with_profile((1, 2)),
    "bytes": lambda: with_profile(b"abc"),
    "bytearray": lambda: with_profile(bytearray(b"abc"), 5),
    "set": lambda: with_profile({1, 2}),
    "frozenset": lambda: with_profile(frozenset((1, 2))),
    "complex": lambda: with_profile(1j),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(OBJECTS[name]())
    message = refusal(path)
    assert "opcode" in message or "protocol" in message or "neither" in message


COMPRESSED: dict[str, Callable[[], bytes]] = {
    "zlib": lambda: joblib_bytes(BUILT, ("zlib", 3)),
    "gzip": lambda: joblib_bytes(BUILT, ("gzip", 3)),
    "bz2": lambda: joblib_bytes(BUILT, ("bz2", 3)),
    "xz": lambda: joblib_bytes(BUILT, ("xz", 3)),
    "lzma": lambda: joblib_bytes(BUILT, ("lzma", 3)),
    "zlib-by-hand": lambda: zlib.compress(VALID, 9),
    "gzip-by-hand": lambda: gzip.compress(VALID),
    "bz2-by-hand": lambda: bz2.compress(VALID),
    "xz-by-hand": lambda: lzma.compress(VALID),
    "gzip-bomb": lambda: gzip.compress(bytes(64 * MEGABYTE)),
    "npz": lambda: b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(COMPRESSED[name]())
    assert "compressed" in refusal(path)


def declares(opcode: bytes, size: bytes) -> bytes:
    return b"\x80\x04" + opcode + size + b"abc."


def doubling(levels: int, leaf: bytes = b"]\x94") -> bytes:
    """A list of the same list twice, of the same list twice … : 2**levels elements."""
    body = b"".join(b"]\x94(" + b"h" + bytes([k]) + b"h" + bytes([k]) + b"e" for k in range(levels))
    return b"\x80\x04" + leaf + body + b"."


def shared_text() -> bytes:
    text = b"x" * MEGABYTE
    return (
        b"\x80\x04}(\x8c\x01aX"
        + struct.pack("<I", len(text))
        + text
        + b"\x94\x8c\x01b]("
        + (b"h\x00" * 100_000)
        + b"eu."
    )


def nested(depth: int) -> bytes:
    return b"\x80\x04}\x8c\x01a" + b"]" * depth + b"a" * (depth - 1) + b"s."


def frame_past_end() -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", 2**40) + VALID[11:]


BOMBS: dict[str, tuple[Callable[[], bytes], float]] = {
    # name: (bytes, most megabytes of memory while they are refused)
    "two-gigabytes-of-bytes": (lambda: declares(b"B", struct.pack("<I", 2**31)), 1),
    "two-gigabytes-of-bytes8": (lambda: declares(b"\x8e", struct.pack("<Q", 2**31)), 1),
    "exabytes-of-bytes8": (lambda: declares(b"\x8e", struct.pack("<Q", 2**63 - 1)), 1),
    "two-gigabytes-of-text": (lambda: declares(b"X", struct.pack("<I", 2**31)), 1),
    "exabytes-of-text8": (lambda: declares(b"\x8d", struct.pack("<Q", 2**62)), 1),
    "too-long-for-any-size": (lambda: declares(b"\x8d", struct.pack("<Q", 2**64 - 1)), 1),
    "two-gigabytes-of-bytearray": (lambda: declares(b"\x96", struct.pack("<Q", 2**31)), 1),
    "two-gigabytes-of-integer": (lambda: declares(b"\x8b", struct.pack("<i", 2**31 - 1)), 1),
    "negative-integer-size": (lambda: declares(b"\x8b", struct.pack("<i", -5)), 1),
    "memo-two-billion": (lambda: b"\x80\x04Nr\xff\xff\xff\x7f.", 1),
    "memo-not-there": (lambda: b"\x80\x04j\xff\xff\xff\x7f.", 1),
    "decimal-of-a-megabyte": (lambda: b"\x80\x04L" + b"9" * MEGABYTE + b"L\n.", 8),
    "shared-lists": (lambda: doubling(100), 1),
    "shared-dicts": (lambda: doubling(100, b"}\x94"), 1),
    "shared-text": (shared_text, 24),
    "recursive-list": (lambda: b"\x80\x04]\x94h\x00a.", 1),
    "recursive-dict": (lambda: b"\x80\x04}\x94\x8c\x01ah\x00s.", 1),
    "nested-100000": (lambda: nested(100_000), 16),
    "nested-25": (lambda: nested(25), 1),
    "memo-entries": (lambda: b"\x80\x04}" + b"\x94" * 2_000_000 + b".", 24),
    "marks": (lambda: b"\x80\x04" + b"(" * 2_000_000 + b".", 24),
    "many-values": (lambda: b"\x80\x04}\x8c\x01a](" + b"N" * 8_000_000 + b"es.", 32),
    "many-lists": (lambda: b"\x80\x04}\x8c\x01a](" + b"]" * 8_000_000 + b"es.", 48),
    "stacked-and-dropped": (lambda: b"\x80\x04]" + b"Na" * 4_000_000 + b".", 48),
    "json-values": (lambda: b'{"a":[' + b"0," * 4_000_000 + b"0]}", 24),
    "json-lists": (lambda: b'{"a":[' + b"[]," * 2_000_000 + b"[]]}", 24),
    "json-nested": (lambda: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 8),
    "json-digits": (lambda: b'{"a":' + b"9" * MEGABYTE + b"}", 8),
    "json-text": (lambda: b'{"a":"' + b"x" * (MAX_BYTES - 100) + b'"}', 64),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_little_memory(tmp_path: Path, name: str) -> None:
    make, megabytes = BOMBS[name]
    path = tmp_path / "policy.joblib"
    path.write_bytes(make())
    refusal(path, megabytes * MEGABYTE)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(VALID)
    with open(path, "r+b") as file:
        file.truncate(100 * MEGABYTE)  # sparse: it takes no room on the disk
    message = refusal(path, MEGABYTE / 2)
    assert str(100 * MEGABYTE) in message


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", "neither", id="empty"),
        pytest.param(b"\x80", "truncated", id="one-byte"),
        pytest.param(b"hello", "neither", id="text"),
        pytest.param(b"\x80\x04N.", "one dict, got NoneType", id="none"),
        pytest.param(b"\x80\x04].", "one dict, got list", id="list"),
        pytest.param(b"\x80\x04.", "left over", id="nothing"),
        pytest.param(b"\x80\x04}", "truncated", id="no-end"),
        pytest.param(b"\x80\x04}}.", "left over", id="two-values"),
        pytest.param(b"\x80\x04(}.", "left over", id="open-mark"),
        pytest.param(b"\x80\x04u.", "no mark", id="no-mark"),
        pytest.param(b"\x80\x04}Na.", "no list", id="append-to-dict"),
        pytest.param(b"\x80\x04](NNu.", "no dict", id="items-to-list"),
        pytest.param(b"\x80\x04}(Nu.", "no dict", id="odd-items"),
        pytest.param(b"\x80\x04](a.", "too few", id="append-across-mark"),
        pytest.param(b"\x80\x04Na.", "too few", id="append-to-nothing"),
        pytest.param(b"\x80\x04\x8a\x01\x05", "it has no end", id="no-end-after-long"),
        pytest.param(b"\x80\x04\x8a\x02\x05", "middle of a value", id="half-a-long"),
        pytest.param(b"\x80\x04J\x01\x00\x00\x00", "it has no end", id="no-end-after-int"),
        pytest.param(b"\x80\x04J\x01\x00\x00", "middle of a value", id="half-an-int"),
        pytest.param(b"\x80\x04\x8c\x01a", "it has no end", id="no-end-after-text"),
        pytest.param(b"\x80\x04\x8c\x02a", "middle of a value", id="half-a-text"),
        pytest.param(b"\x80\x04\x95\x02" + bytes(7) + b"N.", "one dict", id="whole-frame"),
        pytest.param(b"\x80\x04\x95\x03" + bytes(7) + b"N.", "passes the end", id="long-frame"),
        pytest.param(b"\x80\x04](K\x01a.", "too few", id="append-at-mark"),
        pytest.param(b"\x80\x04(e.", "nothing on the stack", id="nothing-to-extend"),
        pytest.param(b"\x80\x04\x94.", "nothing on the stack", id="memoize-nothing"),
        pytest.param(b"\x80\x04\x8c\x01a\x94h\x01.", "entry 1 does not exist", id="next-memo"),
        pytest.param(b"\x80\x04}K\x01Ns.", "keys must be strings", id="integer-key"),
        pytest.param(b"\x80\x04}\x8c\x01aNs\x8c\x01aNs.", "twice", id="key-twice"),
        pytest.param(b"\x80\x03}.", "protocol 4 or 5", id="protocol-3"),
        pytest.param(b"\x80\x04}\x80\x04.", "protocol 4 or 5", id="protocol-again"),
        pytest.param(b"\x80\x04\xff.", "damaged", id="unknown-opcode"),
        pytest.param(b"\x80\x04\x8c\x01\xff.", "damaged", id="bad-utf8"),
        pytest.param(b"\x80\x04S'\\z'\n.", "", id="odd-escape"),
        pytest.param(frame_past_end(), "frame", id="frame-past-end"),
        pytest.param(VALID + b"\n", "follow the end", id="trailing-byte"),
        pytest.param(VALID + VALID, "follow the end", id="twice"),
        pytest.param(b"{", "damaged JSON", id="json-cut"),
        pytest.param(b'{"a":1,"a":1}', "twice", id="json-key-twice"),
        pytest.param(b'{"a":NaN}', "finite", id="json-nan"),
        pytest.param(b'{"a":-Infinity}', "finite", id="json-infinity"),
        pytest.param(b'{"a":1e999}', "finite", id="json-overflow"),
        pytest.param(b'{"a":9223372036854775808}', "64 bits", id="json-65-bits"),
        pytest.param(b'{"a":"\\ud800"}', "Unicode", id="json-surrogate"),
        pytest.param(b'{"a":"\xff"}', "damaged JSON", id="json-bad-utf8"),
        pytest.param(b"{} {}", "damaged JSON", id="json-twice"),
        pytest.param(b"{}", "schema", id="json-empty"),
        pytest.param(VALID_JSON.rstrip() + b"}", "damaged JSON", id="json-trailing"),
        pytest.param(b"\x80\x04}\x8c\x01aG\x7f\xf8" + bytes(6) + b"s.", "finite", id="nan"),
        pytest.param(b"\x80\x04}\x8c\x01a\x8a\x09" + bytes(8) + b"\x01s.", "64 bits", id="65-bits"),
        pytest.param(b"\x80\x04}\x8c\x03\xed\xa0\x80Ns.", "Unicode", id="surrogate-key"),
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


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "step"), [(VALID, 11), (VALID_JSON, 41)], ids=["joblib", "json"])
def test_a_flipped_bit_is_refused_or_changes_nothing(
    tmp_path: Path, whole: bytes, step: int
) -> None:
    path = tmp_path / "policy"
    refused = 0
    for number, position in enumerate(range(0, len(whole), step)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << number % 8
        path.write_bytes(damaged)
        try:
            content = load_policy(path).content
        except PolicyError:
            refused += 1
        else:
            assert content == BUILT
    assert refused > len(whole) / step / 2


@given(st.binary(max_size=60))
def test_random_pickles_are_refused_or_give_plain_values(tail: bytes) -> None:
    try:
        value = decode_pickle(b"\x80\x04" + tail)
    except PolicyError:
        return
    json.dumps(value)


def test_the_walk_reads_what_pickle_reads() -> None:
    values = [
        None,
        True,
        [],
        {},
        ["a", "a", ["a"]],
        {"a": {"b": [1, 255, 256, 65536, -1, 2**40, -(2**63)]}},
        [1.5, -0.0, 1e308],
        list(range(5000)),
        {str(k): k for k in range(3000)},
        ["é" * 200, "x" * 70_000, "", "\x00"],
    ]
    for protocol in (4, 5):
        for value in values:
            assert decode_pickle(pickle.dumps(value, protocol)) == value
    assert decode_pickle(joblib_bytes(BUILT)) == pickle.loads(joblib_bytes(BUILT)) == BUILT


def test_special_files_are_refused(tmp_path: Path) -> None:
    assert "no such" in refusal(tmp_path / "nothing.joblib")
    assert "regular file" in refusal(tmp_path)
    pipe = tmp_path / "pipe.joblib"
    os.mkfifo(pipe)
    assert "regular file" in refusal(pipe)  # and does not wait for a writer
    with pytest.raises(PolicyError, match="cannot read"):
        load_policy("a\0b")


@pytest.mark.parametrize("format", ["joblib", "json"])
@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("threshold",), 0.5),
        (("decision_threshold",), -3.0),
        (("certificate", "alpha"), 0.05),
        (("certificate", "losses"), 0),
        (("coef", 3), -0.5700001),
        (("budgets", 5), 129),
        (("model", "revision"), "sha256:" + "0" * 64),
        (("golden", 0, "decisions", 0, "score"), 0.25),
        (("expected", "test_risk"), 0.0),
        (("created",), "2026-01-02T03:04:06+00:00"),
        (("digest",), "0" * 64),
        (("digest",), None),
        (("digest",), ["deadbeef"]),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_changed_field_is_refused(
    tmp_path: Path, format: str, where: tuple[str | int, ...], value: Any
) -> None:
    content = json.loads(json.dumps(BUILT))
    target = content
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = value
    path = tmp_path / "policy"
    path.write_bytes(encode(content, "json" if format == "json" else "joblib"))
    assert "digest" in refusal(path)


def test_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "policy.joblib"
    path.write_bytes(encode({"schema": 3, "something": "else"}, "joblib"))
    message = refusal(path)
    assert "newer" in message
    assert "pip install -U" in message


def test_golden_decisions_that_do_not_replay_are_refused(tmp_path: Path) -> None:
    """A whole, well-signed file whose rule was changed: only the replay can tell."""
    path = tmp_path / "policy.joblib"
    for change, expected in (
        ({"intercept": 0.85}, "gives stop="),
        ({"coef": [0.0, *BUILT["coef"][1:]]}, "gives stop="),
        ({"task": "choice"}, "task must be 'choice'"),
        ({"normalizer": "0"}, "normaliser"),
    ):
        content = BUILT | change
        content["digest"] = canonical_digest(content)
        path.write_bytes(encode(content, "joblib"))
        assert expected in refusal(path)


def test_a_file_too_large_to_load_is_never_written(tmp_path: Path) -> None:
    split = BUILT["split"] | {"fit": ["x" * 100_000 + str(k) for k in range(90)]}
    with pytest.raises(PolicyError, match="at most"):
        build_policy(example_content(split=split))
    split = BUILT["split"] | {"fit": [str(k) for k in range(MAX_ELEMENTS)]}
    with pytest.raises(PolicyError, match="at most"):
        build_policy(example_content(split=split))
    escaped = BUILT["split"] | {
        "fit": ["\x01" * 750_000, "\x01" * 750_001]
    }  # six bytes each in JSON
    content = build_policy(example_content(split=escaped))
    with pytest.raises(PolicyError, match="at most"):
        save_policy(content, tmp_path / "policy.json", format="json")
    assert list(tmp_path.iterdir()) == []
    save_policy(content, tmp_path / "policy.joblib")
    assert load_policy(tmp_path / "policy.joblib").content == content


def test_recursive_content_is_refused() -> None:
    content: dict[str, Any] = dict(BUILT)
    content["profile"] = {"self": content["profile"]}
    content["profile"]["self"] = content["profile"]
    with pytest.raises(PolicyError, match="levels deep"):
        Policy(content)
    with pytest.raises(PolicyError, match="levels deep"):
        build_policy(content)

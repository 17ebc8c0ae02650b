"""`profile-serving`: a server is measured, read back, and put to use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import main
from stopadvisor.cli.parts.settings import _price
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.results import to_document
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.serving_profile import (
    BatchSeconds,
    PerTokenSeconds,
    ServingProfile,
    read_serving_profile,
)
from tests.serving.virtual_server import VirtualServer, run_virtually

GOOD: dict[str, Any] = {
    "schema": 2,
    "model": "Qwen3-32B",
    "engine": "hf 5.23.0",
    "device": "NVIDIA H100 PCIe",
    "per_token_seconds": {"prefilled": 1e-5, "cached": 1e-7, "decoded": 0.02},
    "per_request_seconds": 0.0,
    "round_trip_seconds": 0.0,
    "at_batch": 1,
    "decoded_by_batch": [{"batch": 1, "seconds": 0.02}],
    "misfit": 0.01,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    return path


def test_a_profile_is_read_as_it_was_written(file: Path) -> None:
    profile = read_serving_profile(file)
    assert to_document(profile) == GOOD | {"settings": {}}
    assert _price(str(file)) == profile.weights  # as `assess --price FILE` reads it


def test_a_fit_prices_requests_and_the_tokens_of_its_load(file: Path) -> None:
    profile = ServingProfile(
        model="m",
        engine="vllm",
        device="http://host:8000/v1",
        per_token_seconds=PerTokenSeconds(3e-5, 1e-6, 2e-4),
        per_request_seconds=2e-3,
        round_trip_seconds=0.016,
        at_batch=64,
        decoded_by_batch=(BatchSeconds(1, 4e-3), BatchSeconds(64, 2e-4)),
        misfit=0.05,
    )
    # At 64 at once a step takes 12.8 ms.
    busy = Weights(
        3e-5,
        1e-6,
        2e-4,
        "seconds",
        request=2e-3,
        round_trip=0.016 / 0.0128,
        in_flight=64,
        model="m (vllm on http://host:8000/v1)",
    )
    assert profile.weights == busy
    file.write_text(json.dumps(to_document(profile)), encoding="utf-8")
    assert read_serving_profile(file) == profile


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 1}, "field 'schema': expected 2, got 1; measure again"),
        ({"seconds_at": [1.0]}, "field 'seconds_at' is unknown; measure again"),  # as 0.1.0's had
        (
            {"per_token_seconds": {"prefilled": 0, "cached": 0, "decoded": 0}},
            "field 'per_token_seconds.decoded': expected a float > 0",
        ),
        (
            {"per_token_seconds": {"prefilled": -1, "cached": 0, "decoded": 1}},
            "field 'per_token_seconds.prefilled': expected a finite number >= 0, got -1",
        ),
        ({"at_batch": 0}, "field 'at_batch': expected a whole number >= 1, got 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_damaged_profile_is_refused(change: dict[str, Any], words: str, file: Path) -> None:
    file.write_text(json.dumps(GOOD | change), encoding="utf-8")
    with pytest.raises(CalibrationError, match=words):
        read_serving_profile(file)


@pytest.mark.parametrize("content", [None, "no json", "[1]"], ids=["absent", "text", "list"])
def test_what_is_no_profile_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(CalibrationError, match=r"other\.json"):
        read_serving_profile(path)


AT_SERVER = ("profile-serving", "--base-url", "http://gpu:8000/v1")


def test_a_server_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("httpx2", reason="httpx2 (extra openai) asks servers")

    def open_server(urls: list[str], model: str, **options: Any) -> VirtualServer:
        assert (urls, model, options["request_timeout"]) == (["http://gpu:8000/v1"], "m", 9.0)
        return VirtualServer(urls=tuple(urls), model=model)

    monkeypatch.setattr("stopadvisor.engines.http.client.Client", open_server)
    monkeypatch.setattr("stopadvisor.serving.server_profile.asyncio.run", run_virtually)
    out = tmp_path / "new" / "profile.json"
    words = [*AT_SERVER, "--request-timeout", "9", "--model", "m", "--out", str(out)]
    assert main(words) == 0
    screen = capsys.readouterr().out
    assert "m on http://gpu:8000/v1" in screen
    assert "Decoding, by requests in flight" in screen
    profile = read_serving_profile(out)
    assert (profile.engine, profile.device) == ("vllm", "http://gpu:8000/v1")
    assert [row.batch for row in profile.decoded_by_batch] == [1, 8]
    assert list(out.parent.iterdir()) == [out]

    blocked = str(out / "below-a-file.json")
    assert main([*words[:-1], blocked]) == 2
    assert f"cannot write to {out}: {out} is not a folder" in capsys.readouterr().err

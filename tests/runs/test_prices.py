"""Prices that follow from a run: how many accelerators a model needs, and its files in the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import ACCELERATORS, Roofline
from stopadvisor.runs.prices import _enough, keep_model_files


def most(preset: str, gpu: str, devices: int, context: float) -> int:
    """Requests in flight that fit."""
    try:
        engine = Roofline(model_shape(PRESETS[preset]), ACCELERATORS[gpu], devices)
        return engine.most_in_flight(context)
    except CalibrationError:
        return 0


@pytest.mark.parametrize("gpu", ["l4", "a100-40", "h100"])
def test_a_power_of_two_of_accelerators_holds_the_model_and_eight_requests(gpu: str) -> None:
    found = set()
    for preset in PRESETS:
        for context in (500, 20_000, 200_000, 2_000_000):
            shape = model_shape(PRESETS[preset])
            devices = _enough(shape, ACCELERATORS[gpu], context, 32)
            powers = [1, 2, 4, 8, 16, 32]
            fits = [k for k in powers if k == 32 or most(preset, gpu, k, context) >= 8]
            assert devices == fits[0]
            found.add(devices)
    assert len(found) > 3


@pytest.mark.parametrize("requests", [3, 8])
def test_few_requests_need_not_leave_room_for_more(requests: int) -> None:
    context = next(c for c in range(1000, 200_000, 50) if most("8b", "l4", 1, c) == requests)
    shape, gpu = model_shape(PRESETS["8b"]), ACCELERATORS["l4"]
    assert _enough(shape, gpu, context, requests) == 1
    assert _enough(shape, gpu, context, requests + 1) == (2 if requests < 8 else 1)


def test_a_run_keeps_its_models_config_and_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    run, model = tmp_path / "run", tmp_path / "model"
    run.mkdir()
    for nothing in (None, "owner/name"):
        keep_model_files(nothing, run)
        assert list(run.iterdir()) == []
    model.mkdir()
    for file in ("config.json", "serving-profile.json"):
        (model / file).write_text(json.dumps({"file": file}), encoding="utf-8")
    keep_model_files(str(model), run)
    kept = {file.name: json.loads(file.read_bytes())["file"] for file in run.iterdir()}
    assert kept == {
        "model-config.json": "config.json",
        "serving-profile.json": "serving-profile.json",
    }

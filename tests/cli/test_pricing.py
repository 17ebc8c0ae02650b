"""`assess --gpu`: prices computed from the model's config and the accelerator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.ground.results import to_json
from stopadvisor.rules.costs import REGIMES, Weights
from stopadvisor.rules.model_shape import PRESETS
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.serving_profile import PerTokenSeconds, ServingProfile
from stopadvisor.runs import prices
from stopadvisor.runs.prices import PriceRequest
from stopadvisor.runs.sources import open_source
from tests.material import CERTIFY, Call

FAST = ("--families", "confidence", "--alpha", "0.15")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sums", "few_draws")]


@pytest.fixture(name="call")
def assessing(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """As `call`, on a machine without a GPU and without cached models."""
    monkeypatch.setattr(prices, "_DRIVER", tmp_path / "no-driver")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return call


def priced(request: PriceRequest | None = None) -> Weights:
    """Prices of the run, as requested."""
    return prices.computed_weights(request, open_source(Path("runs/sums")))[0]


def test_a_gpu_prices_the_engine_and_is_said(call: Call) -> None:
    screen = call.screen("assess", "runs/sums", *FAST, "--gpu", "L4", "--in-flight", "8")
    found = json.loads(Path("runs/sums/assessment.json").read_bytes())
    weights = Weights(**found["settings"]["weights"])
    assert found["recommendation"]["serving"] == found["settings"]["serving"] == "vllm"
    assert found["serving"]["prices"] == vars(Prices.of(weights))
    assert (weights.gpu, weights.in_flight) == ("l4", 8)
    assert weights.model is not None
    assert "8B with grouped queries (this run's model is not known here)" in weights.model
    assert next(name for name in found["serving"] if name in REGIMES) == "vllm"
    by_load = found["serving"]["by_load"]
    assert [row["in_flight"] for row in by_load] == [1, 8, 32, 128]
    assert by_load[1]["decoded"] == found["serving"]["prices"]["decoded"]
    saved = found["serving"]["vllm"]["saving_pct"]
    assert by_load[1]["saving_pct"] == pytest.approx(saved)
    decoded = [row["decoded"] for row in by_load]
    assert decoded == sorted(decoded, reverse=True), "the more, the cheaper is a token of each"
    assert "vllm: the policy runs inside vLLM" in screen
    assert "on l4, 8 requests in flight at" in screen
    assert f"{saved:.1f}% at 8," in screen
    assert "%, KV-token-time -" in screen


def test_calibrate_takes_the_prices_over(call: Call) -> None:
    words = ("--gpu", "h200", "--tensor-parallel", "2", "--serving", "kv-fork", "--alpha", "0.3")
    wanted = call.json("assess", "runs/sums", *FAST, *words)["settings"]["weights"]
    assert (wanted["gpu"], wanted["unit"]) == ("2 x h200", "seconds")
    code, _, err = call("calibrate", "runs/sums", *CERTIFY, "--alpha", "0.3")
    assert code == 0, err
    _, out, _ = call("inspect", "runs/sums/policy.joblib", "--json")
    assert json.loads(out)["expected"]["weights"] == wanted


@pytest.mark.parametrize(
    ("config", "model", "gpu"),
    [
        pytest.param(PRESETS["32b"], "tests/scripted", "h100", id="as probed"),
        pytest.param(PRESETS["70b"], "tests/scripted", "2 x h100", id="larger than one"),
        pytest.param(
            {"model_type": "rwkv"},
            "a dense model of 8B with grouped queries (the config of tests/scripted does not tell "
            "its own)",
            "h100",
            id="not counted",
        ),
    ],
)
def test_a_config_kept_with_the_run_prices_it(
    call: Call, config: dict[str, Any], model: str, gpu: str
) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(config), encoding="utf-8")
    prices.keep_model_files("model", Path("runs/sums"))
    weights = priced()
    assert (weights.model, weights.gpu) == (model, gpu)


def test_the_model_is_the_runs_own_else_the_one_named(call: Call, tmp_path: Path) -> None:
    config = json.dumps(PRESETS["32b"])
    Path("config.json").write_text(config, encoding="utf-8")
    assert priced(PriceRequest(model_config="config.json")).model == "config.json"
    named = priced(PriceRequest(model_config="32b"))
    assert named.model == "a dense model of 32B with grouped queries"
    cached = tmp_path / "hub/models--tests--scripted/snapshots/abc/config.json"
    cached.parent.mkdir(parents=True)
    cached.write_text(config, encoding="utf-8")
    assert priced(PriceRequest(gpu="h200")).model == "tests/scripted"


@pytest.mark.parametrize(
    ("words", "serving", "is_taken"),
    [
        ([], "vllm", True),
        (["--serving", "kv-fork"], "kv-fork", True),
        (["--price", "1/0.1/4"], "vllm", False),
        (["--protocol", "paper", "--open-calibration"], "kv-fork", False),
    ],
)
def test_a_profile_of_the_run_is_taken(
    call: Call, words: list[str], serving: str, is_taken: bool
) -> None:
    profile = ServingProfile(
        model="m",
        engine="vllm",
        device="two cores",
        per_token_seconds=PerTokenSeconds(0.0, 0.0, 0.001),
        per_request_seconds=0.002,
        at_batch=8,
        misfit=0.0,
    )
    Path("runs/sums/serving-profile.json").write_text(to_json(profile), encoding="utf-8")
    words = words if "paper" in words else [*words, *FAST]
    screen = call.screen("assess", "runs/sums", *words)
    found = json.loads(Path("runs/sums/assessment.json").read_bytes())
    assert found["recommendation"]["serving"] == serving
    assert ("seconds" in json.dumps(found.get("settings"))) == is_taken
    if is_taken:
        assert Weights(**found["settings"]["weights"]) == profile.weights
    if serving == "vllm" and is_taken:
        assert "prices measured for m (vllm on two cores), 8 requests in flight" in screen
        assert "in decoded tokens of 1 ms a prefilled token is 0, a cached one 0" in screen


def test_the_local_gpu_is_the_default(call: Call, tmp_path: Path) -> None:
    assert priced(PriceRequest(in_flight=4)).gpu == priced().gpu == "h100"
    device = tmp_path / "no-driver/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "information").write_text("Model: \t NVIDIA GeForce RTX 4090\n", encoding="utf-8")
    assert priced(PriceRequest(in_flight=4)).gpu == "rtx-4090"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model-config", "70b", "--tensor-parallel", "1"], "do not fit on 1 x h100"),
        (["--model-config", "none.json"], "cannot read none.json: No such file"),
        (["--model-config", "list.json"], "list.json: expected a JSON object, got []"),
        (["--model-config", "torn.json"], "torn.json: not JSON"),
        (["--model-config", "other.json"], "model_type 'rwkv' is not among"),
    ],
)
def test_bad_requests_are_one_line(call: Call, words: list[str], message: str) -> None:
    for name, text in (("list", "[]"), ("torn", "{"), ("other", '{"model_type": "rwkv"}')):
        Path(f"{name}.json").write_text(text, encoding="utf-8")
    assert message in call.refused("assess", "runs/sums", *FAST, *words)

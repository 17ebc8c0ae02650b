"""Loading: which models are refused, how cheaply, and what identifies a model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stopadvisor.engines.hf import load_engine
from stopadvisor.engines.hf.size import check_size, has_accelerator, host_memory, named_parameters
from stopadvisor.engines.model_files import content_revision, load_tokenizer
from stopadvisor.ground.errors import ModelError
from tests.engines.online_policies import TINY_REASONER
from tests.engines.tiny import edit_config, plan, prompt, traces_of

if TYPE_CHECKING:
    from stopadvisor.engines.hf.engine import HfEngine

REFUSAL = """
import sys
from stopadvisor.engines.hf import load_engine
from stopadvisor.ground.errors import ModelError
try:
    load_engine("Qwen/Qwen3-8B")
except ModelError as error:
    print(error)
    print(sorted({"torch", "transformers"} & set(sys.modules)), error.exit_code)
"""


def test_the_default_model_is_refused_before_anything_heavy_is_imported() -> None:
    result = subprocess.run(
        [sys.executable, "-c", REFUSAL],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    message, imported = result.stdout.splitlines()
    assert imported == "[] 2"
    assert message.startswith("Qwen/Qwen3-8B has 8.2 B parameters (16 GB in bfloat16)")
    assert "--model samples/tiny-reasoner" in message
    assert "--engine openai" in message


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-8B", 8.19),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.5),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", 30),
        ("org/model-7b", 7),
        ("openai/gpt-oss-20b", 20),
        ("org/thinker", None),
        ("org/v2-base", None),
    ],
)
def test_sizes_stand_in_names(name: str, billions: float | None) -> None:
    assert named_parameters(name) == (billions and pytest.approx(billions * 1e9))


NEEDS = "33 GB are needed in float32, here has 20 GB free"


@pytest.mark.parametrize(
    ("parameters", "width", "dtype", "patient", "says"),
    [
        pytest.param(8.19e9, None, "float32", False, "there is no GPU here", id="no GPU"),
        pytest.param(8.19e9, None, "float32", True, NEEDS, id="too large"),
        pytest.param(8.19e9, None, "bfloat16", True, None, id="fits"),
        pytest.param(9.5e9, None, "bfloat16", True, "19 GB are needed", id="only the weights fit"),
        pytest.param(32e9, 0.5, "bfloat16", True, None, id="fits in four bits"),
    ],
)
def test_what_cannot_run_here(
    parameters: float, width: float | None, dtype: str, patient: bool, says: str | None
) -> None:
    refused = nullcontext() if says is None else pytest.raises(ModelError, match=says)
    with refused:
        check_size(
            "m", parameters, width=width, dtype=dtype, memory=20e9, place="here", patient=patient
        )


def test_who_names_the_cpu_is_told_only_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stopadvisor.engines.hf.load.host_memory", lambda: 10**10)
    with pytest.raises(ModelError, match="33 GB are needed in float32, this machine has 10 GB"):
        load_engine("Qwen/Qwen3-8B", device="cpu")
    with pytest.raises(ModelError, match="16 GB are needed in bfloat16"):
        load_engine("Qwen/Qwen3-8B", device="cpu", dtype="bfloat16")


def test_free_memory_is_what_the_kernel_calls_available(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object, **__: object) -> str:
        return "MemTotal:     9000 kB\nMemAvailable:    5 kB\nSwapFree:      700 kB\n"

    def unknown(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", told)
    assert host_memory() == 5 * 1024
    monkeypatch.setattr(Path, "read_text", unknown)
    assert host_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("system", "machine", "visible", "device", "found"),
    [
        ("Darwin", "arm64", None, None, True),
        ("Darwin", "x86_64", None, None, False),
        ("Linux", "x86_64", None, "/dev/nvidia0", True),
        ("Linux", "arm64", "1", "/dev/kfd", True),
        ("Linux", "x86_64", "", "/dev/nvidia0", False),
        ("Linux", "x86_64", "-1", "/dev/nvidia0", False),
        ("Linux", "x86_64", None, None, False),
    ],
)
def test_a_gpu_is_guessed_without_torch(
    system: str,
    machine: str,
    visible: str | None,
    device: str | None,
    found: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == device)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert has_accelerator() is found


def test_a_folder_that_does_not_fit_is_refused_before_its_weights_are_read(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = edit_config(random_model, tmp_path, quantization_config={"bits": 4})
    monkeypatch.setattr("stopadvisor.engines.hf.assemble.free_memory", lambda device: 1000)
    with pytest.raises(ModelError, match="0 GB are needed in float32, this machine has 0 GB free"):
        load_engine(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"layer_types": ["linear_attention", "full_attention"]},
            "has layers of kind 'linear_attention'",
            id="hybrid",
        ),
        pytest.param({"model_type": "rwkv"}, "has recurrent layers", id="recurrent"),
        pytest.param({"model_type": "mamba"}, "of kind 'linear_attention'", id="state space"),
        pytest.param({"model_type": "gpt_oss"}, "has custom attention", id="sinks"),
        pytest.param({"model_type": "t5"}, "is an encoder-decoder model", id="encoder-decoder"),
        pytest.param({"model_type": "vit"}, "not a causal language model", id="no language model"),
        pytest.param({"model_type": "never_heard"}, "cannot load the configuration", id="unknown"),
    ],
)
def test_unsupported_kinds_are_named(
    changes: dict[str, Any], says: str, random_model: Path, tmp_path: Path
) -> None:
    folder = edit_config(random_model, tmp_path, **changes)
    with pytest.raises(ModelError, match=says) as caught:
        load_engine(str(folder), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("./nowhere", {}, "is not a folder with a config.json"),
        ("tests", {}, "is not a folder with a config.json"),
        ("nobody/never-made", {}, "neither a local folder nor in the local cache, and"),
        ("tiny", {"dtype": "int3"}, "dtype must be one of auto, .* got 'int3'"),
        ("tiny", {"device": "toaster"}, "device must be auto, cpu, cuda, .* got 'toaster'"),
        ("tiny", {"device": "cuda:77"}, "device 'cuda:77' is missing"),
    ],
)
def test_what_is_not_there_is_one_clear_line(
    model: str, options: dict[str, Any], says: str, random_model: Path
) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load_engine(str(random_model) if model == "tiny" else model, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_model_that_ignores_masks_is_found_out(
    random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.functional import scaled_dot_product_attention

    def blind(module, query, key, value, attention_mask, **kwargs):  # type: ignore[no-untyped-def]
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = scaled_dot_product_attention(query, key, value)
        return out.transpose(1, 2).contiguous(), None

    monkeypatch.setattr("stopadvisor.engines.hf.cache.attend", blind)
    with pytest.raises(ModelError, match="does not follow masks and positions"):
        load_engine(str(random_model), device="cpu")


def test_identity_tells_models_apart(
    random_model: Path, random_engine: HfEngine, tmp_path: Path
) -> None:
    identity = random_engine.identity()
    assert list(identity) == [
        *("engine", "engine_version", "torch", "model", "model_revision", "dtype", "attention"),
        *("device", "quantization", "generation_config", "tokenizer_sha256", "template_sha256"),
        *("think_open", "think_close", "stop_ids", "chat_template_kwargs"),
    ]
    assert identity["model"] == random_model.name
    assert identity["dtype"] == "float32"
    assert identity["think_close"] == {"text": "</think>", "ids": [261]}
    assert identity["stop_ids"] == [3]
    copy = shutil.copytree(random_model, tmp_path / "copy")
    assert content_revision(copy) == identity["model_revision"]
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert content_revision(copy) != identity["model_revision"]


def test_the_sampled_hash_of_large_files_sees_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stopadvisor.engines.model_files._WHOLE", 100)
    monkeypatch.setattr("stopadvisor.engines.model_files._PIECE", 10)
    weights, revisions = tmp_path / "model.safetensors", set()
    for place in (None, 0, 9999):
        content = bytearray(10_000)
        if place is not None:
            content[place] = 1
        weights.write_bytes(content)
        revisions.add(content_revision(tmp_path))
    assert len(revisions) == 3


def test_positions_that_depend_on_the_batch_are_remarked_on(
    random_model: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(random_model, tmp_path / "model")
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    edit_config(random_model, folder, rope_parameters=rope)
    (remark,) = load_engine(str(folder), device="cpu").remarks
    assert "results depend on the batch" in remark


def test_half_precision_runs(random_model: Path) -> None:
    engine = load_engine(str(random_model), device="cpu", dtype="bfloat16")
    assert engine.identity()["dtype"] == "bfloat16"
    traces = traces_of(engine, [prompt("a"), prompt("bcd")], plan([0, 4, 9]))
    assert all(-50 < p.mean_logprob <= 0 for trace in traces for p in trace.probes)


@pytest.mark.slow
def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder = tmp_path / "model"
    shutil.copytree(TINY_REASONER, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot load the weights"):
        load_engine(str(folder), device="cpu")


def test_code_in_a_model_s_folder_is_never_run(random_model: Path, tmp_path: Path) -> None:
    folder, ran = shutil.copytree(random_model, tmp_path / "model"), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    own = {"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B", "AutoTokenizer": ["own.C"] * 2}
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {"auto_map": own}))
    load_engine(str(folder), device="cpu")
    load_tokenizer(str(folder))
    assert not ran.exists()

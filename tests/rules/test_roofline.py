"""Prices from the model and the accelerator: sizes as published, limits, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.costs import MONEY, PAPER_WEIGHTS, SECONDS, Weights
from stopadvisor.rules.model_shape import PRESETS, model_shape
from stopadvisor.rules.roofline import ACCELERATORS, Prices, Roofline, accelerator, recognised
from tests.benchmarks.roofline import cells, config, share

_16 = {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
QWEN3_MOE = _16 | {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936,
}  # fmt: skip
MIXTRAL = _16 | {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
}  # fmt: skip
DEEPSEEK = _16 | {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "vocab_size": 129280, "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
GPT_OSS = _16 | {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
    "vocab_size": 201088, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
QWEN3_NEXT = _16 | {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "intermediate_size": 5120, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_experts": 512, "num_experts_per_tok": 10,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "vocab_size": 151936,
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "intermediate_size": 21504, "vocab_size": 262208, "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10
        + ["sliding_attention"] * 2,
        "tie_word_embeddings": True, "dtype": "bfloat16",
    },
}  # fmt: skip


def weights(of: dict[str, Any], gpu: str = "h100", parallel: int = 1, **where: Any) -> Weights:
    return Roofline(model_shape(of), accelerator(gpu), parallel).weights(
        where.get("context", 4000), where.get("in_flight", 32)
    )


def prices(of: dict[str, Any], gpu: str = "h100", parallel: int = 1, **where: Any) -> Prices:
    return Prices.of(weights(of, gpu, parallel, **where))


def test_qwen3_8b_on_an_h100() -> None:
    """By hand: (1.5 ms + (15.14 GB + 32 · 4,000 · 147,456 B) / (.75 · 3.35 TB/s) + .64 ms) / 32."""
    found = prices(PRESETS["8b"])
    assert (found.source, found.gpu, found.in_flight) == ("roofline", "h100", 32)
    assert found.decoded == pytest.approx(0.490e-3, rel=0.002)
    relative = [x / found.decoded for x in (found.prefilled, found.cached, found.request)]
    assert relative == pytest.approx([0.075, 0.00012, 2.04], rel=0.01)


def test_a_later_token_costs_more() -> None:
    found = weights(PRESETS["8b"])
    half, whole = (found.decoded * n + found.held * n**2 / 2 for n in (4000, 8000))
    assert 1 - half / whole == pytest.approx(0.62, abs=0.005)


@pytest.mark.parametrize(
    ("of", "source"),
    [
        (PAPER_WEIGHTS, "paper"),
        (Weights(0.5, 0.05, 2, MONEY), "bill"),
        (Weights(0.5, 0.05, 2, SECONDS, in_flight=8), "measured"),
        (Weights(0.5, 0.05, 2, SECONDS, in_flight=8, gpu="l4"), "roofline"),
    ],
)
def test_prices_say_where_they_are_from(of: Weights, source: str) -> None:
    found = Prices.of(of)
    assert (found.source, found.gpu, found.in_flight) == (source, of.gpu, of.in_flight)
    assert (found.prefilled, found.cached, found.decoded) == (of.prefilled, of.cached, of.decoded)


def test_published_times_are_met() -> None:
    """NVIDIA's own cells, partly fitted on, and 21 of others, of which nothing was used."""
    found = cells()
    fitted = [cell for cell in found if cell.group.startswith("nim")]
    others = [cell for cell in found if not cell.group.startswith("nim")]
    assert (len(fitted), len(others)) == (787, 21)
    assert share(fitted) >= 0.9
    assert share(others) >= 0.9


@pytest.mark.parametrize(
    ("of", "gigabytes", "active"),
    [
        pytest.param(PRESETS["8b"], 16.4, 7.57, id="Qwen3-8B"),
        pytest.param(config("Llama-2-7B"), 13.5, 6.61, id="Llama-2-7B"),
        pytest.param(QWEN3_MOE, 61.1, 3.04, id="Qwen3-30B-A3B"),
        pytest.param(MIXTRAL, 93.4, 12.75, id="Mixtral-8x7B"),
        pytest.param(DEEPSEEK, 672.9, 36.6, id="DeepSeek-V3"),
        pytest.param(GPT_OSS, 13.7, 3.61, id="gpt-oss-20b"),
        pytest.param(QWEN3_NEXT, 159.3, 3.56, id="Qwen3-Next-80B-A3B"),
        pytest.param(GEMMA3, 54.0, 27.0, id="gemma-3-27b"),
    ],
)
def test_sizes_are_those_published(of: dict[str, Any], gigabytes: float, active: float) -> None:
    """Weights as their files weigh; active parameters without an untied input table."""
    shape = model_shape(of)
    assert shape.held_bytes / 1e9 == pytest.approx(gigabytes, rel=0.004)
    assert shape.active / 1e9 == pytest.approx(active, rel=0.004)


@pytest.mark.parametrize(
    ("name", "published", "norms"),
    [
        ("8b", 8_190_735_360, 36 * (2 * 4096 + 2 * 128) + 4096),
        ("32b", 32_762_123_264, 64 * (2 * 5120 + 2 * 128) + 5120),
        ("70b", 70_553_706_496, (2 * 80 + 1) * 8192),
    ],
)
def test_presets_have_the_weights_of_their_models(name: str, published: int, norms: int) -> None:
    """Of Qwen3-8B, Qwen3-32B and Llama-3-70B; norms are left out here."""
    assert model_shape(PRESETS[name]).held_bytes == 2 * (published - norms)


def test_every_weight_is_counted() -> None:
    """Within the rounding of what is published a small layer could be counted wrongly."""
    dense = model_shape(PRESETS["8b"])
    attention, mlp, table = 4096 * 128 * (2 * 32 + 2 * 8), 3 * 4096 * 12288, 151936 * 4096
    assert dense.active == 36 * (attention + mlp) + table
    assert (dense.held_bytes, dense.attended) == (2 * (dense.active + table), 36 * 4 * 32 * 128)
    # Compressed queries, keys and values; 3 of 61 layers have no experts.
    compressed = model_shape(DEEPSEEK)
    keys = 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    queries, one = 1536 * (7168 + 128 * (128 + 64)), 3 * 7168 * 2048
    table, beside = 129280 * 7168, 7168 * 256 + one
    assert compressed.active == (
        61 * (queries + keys) + 3 * 3 * 7168 * 18432 + 58 * (beside + 8 * one) + table
    )
    assert (compressed.expert_bytes, compressed.attended) == (58 * 256 * one, 61 * 2 * 128 * 320)
    plain = model_shape(DEEPSEEK | {"q_lora_rank": None})
    assert plain.active == compressed.active + 61 * (7168 * 128 * (128 + 64) - queries)
    # Three of four layers recur; attention has a gate, and each layer a router and a shared expert.
    hybrid = model_shape(QWEN3_NEXT)
    delta = 2048 * (2 * 2048 + 3 * 4096 + 2 * 32) + 4 * (2 * 2048 + 4096)
    attention, one, table = 2048 * 256 * (3 * 16 + 2 * 2), 3 * 2048 * 512, 151936 * 2048
    beside = 2048 * 512 + one
    assert hybrid.active == 36 * delta + 12 * attention + 48 * (beside + 10 * one) + table


@pytest.mark.parametrize(
    ("of", "change", "sparse"),
    [
        (QWEN3_MOE, {}, 48),
        (QWEN3_MOE, {"decoder_sparse_step": 2}, 24),
        (QWEN3_MOE, {"decoder_sparse_step": 5}, 9),
        (QWEN3_MOE, {"mlp_only_layers": [0, 7]}, 46),
        (DEEPSEEK, {"moe_layer_freq": 2}, 29),  # 4, 6 ... 60
        (DEEPSEEK, {"first_k_dense_replace": None}, 61),
    ],
)
def test_layers_with_experts_are_told_from_the_others(
    of: dict[str, Any], change: dict[str, Any], sparse: int
) -> None:
    whole, found = model_shape(of), model_shape(of | change)
    each = whole.expert_bytes / (48 if of is QWEN3_MOE else 58)
    assert found.expert_bytes == sparse * each


def test_experts_are_read_by_chance() -> None:
    shape = model_shape(MIXTRAL)
    assert shape.read_bytes(1) == shape.shared_bytes + shape.expert_bytes / 4
    assert shape.read_bytes(2) == shape.shared_bytes + shape.expert_bytes * (1 - 0.75**2)
    assert shape.read_bytes(64) == pytest.approx(shape.held_bytes - shape.table_bytes)


def test_compressed_keys_are_small_and_on_every_device() -> None:
    shape = model_shape(DEEPSEEK)
    assert (shape.cached, shape.heads) == (61 * (512 + 64) * 2, 1)
    one, two = (Roofline(shape, ACCELERATORS["h200"], t).cached for t in (8, 16))
    assert one == two


def test_devices_share_keys_up_to_their_heads() -> None:
    shape = model_shape(PRESETS["8b"])
    cached = {t: Roofline(shape, ACCELERATORS["h100"], t).cached for t in (1, 8, 16)}
    assert cached[8] == pytest.approx(cached[1] / 8)
    assert cached[16] == pytest.approx(cached[8])


def test_exchange_between_devices_is_paid() -> None:
    one, two = (Roofline(model_shape(PRESETS["8b"]), ACCELERATORS["h100"], t) for t in (1, 2))
    fixed = 1.5e-3 + 32 * 20e-6
    halved = (one.step(32, 4000) - fixed) / 2 + fixed
    assert two.step(32, 4000) == pytest.approx(halved + 2 * 36 * 45e-6)


def test_windows_do_not_grow() -> None:
    shape = model_shape(GPT_OSS)
    each = 12 * 2 * 8 * 64 * 2
    assert (shape.cached, shape.windowed(100), shape.windowed(9000)) == (
        each,
        100 * each,
        128 * each,
    )
    assert shape.windows == ((128, each),)
    free = 0.9 * ACCELERATORS["h100"].memory - shape.held_bytes
    most = Roofline(shape, ACCELERATORS["h100"]).most_in_flight(9000)
    assert most == free // ((9000 + 128) * each)
    plain = model_shape(MIXTRAL | {"sliding_window": None})
    assert model_shape(MIXTRAL | {"sliding_window": 4096}).windows == ((4096, plain.cached),)
    unused = PRESETS["8b"] | {"sliding_window": 512, "use_sliding_window": False}
    assert model_shape(unused) == model_shape(PRESETS["8b"])


def test_recurrent_layers_keep_a_state() -> None:
    """36 of 48 layers: 32 heads of 128 by 128, and 3 inputs of a convolution over 8,192."""
    shape = model_shape(QWEN3_NEXT)
    assert shape.state == 36 * 2 * (32 * 128 * 128 + 3 * 8192)
    assert shape.cached == 12 * 2 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("stored", "part", "eight_bit"),
    [
        ({"quant_method": "fp8"}, 1 / 2, True),
        ({"quant_method": "awq", "bits": 4}, 1 / 4, False),
        ({"quant_method": "gptq", "bits": 8}, 1 / 2, False),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}
                },
                "kv_cache_scheme": {"num_bits": 8},
            },
            1 / 2,
            True,
        ),
    ],
    ids=["fp8", "awq", "gptq", "compressed"],
)
def test_quantised_weights(stored: dict[str, Any], part: float, eight_bit: bool) -> None:
    """The output layer stays in 16 bits, and so does the cache unless the config says otherwise."""
    plain, shape = (
        model_shape(PRESETS["8b"]),
        model_shape(PRESETS["8b"] | {"quantization_config": stored}),
    )
    table = plain.table_bytes
    assert shape.shared_bytes == pytest.approx(table + part * (plain.shared_bytes - table))
    assert shape.eight_bit is eight_bit
    assert shape.cached == plain.cached / (2 if "kv_cache_scheme" in stored else 1)


def test_memory_caps_requests_in_flight() -> None:
    """(72 − 65.5 GB) / (4,000 · 262,144 B) = 6.2."""
    found = prices(PRESETS["32b"])
    assert found.in_flight == 6
    assert found.decoded > prices(PRESETS["32b"], parallel=2).decoded
    with pytest.raises(CalibrationError, match=r"weights of 141 GB .* do not fit on 1 x h100"):
        prices(PRESETS["70b"])


def test_where_multiplying_takes_longer_context_costs_nothing() -> None:
    found = weights(config("Qwen3-0.6B"), "l4", context=10, in_flight=512)
    assert (found.held, found.cached > 0) == (0.0, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"num_key_value_heads": None}, "num_key_value_heads must be"),
        ({"dtype": None}, "dtype must be"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings must be"),
        ({"sliding_window": 512}, "layer_types must say"),
        ({"layer_types": ["mamba"] * 36}, "layers of type 'mamba'"),
        ({"layer_types": ["linear_attention"] * 36}, "recurrent layers of qwen3"),
        ({"quantization_config": "fp8"}, "not the config of a model"),
        ({"model_type": "qwen3_moe"}, "must be given for qwen3_moe"),
        ({"head_dim": None, "num_attention_heads": 33}, "33 heads do not divide 4096"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "'aqlm' with None bits"),
        (
            {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["mlp.up"]}},
            "only some layers are quantised",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
            "one group of quantised layers",
        ),
    ],
)
def test_what_is_not_told_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CalibrationError, match=message) as raised:
        model_shape(PRESETS["8b"] | change)
    assert "\n" not in str(raised.value)


def test_accelerators_are_known_by_name() -> None:
    assert accelerator("H100") is ACCELERATORS["h100"]
    with pytest.raises(CalibrationError, match=r"gpu must be one of h100, .* got 'tpu'"):
        accelerator("tpu")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla T4", None),
    ],
)
def test_devices_are_recognised(model: str, name: str | None) -> None:
    assert recognised(model) == name

"""Bytes and operations of a model per engine step, counted from its ``config.json``.

Unknown model families and incomplete configs are refused.  Norms and biases are ignored: together
they are less than a thousandth of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from stopadvisor.ground.errors import CalibrationError

__all__ = ["PRESETS", "ModelShape", "model_shape"]

_DENSE = "llama mistral qwen2 qwen3 phi3 smollm3 olmo2 granite gemma gemma2 gemma3_text"
_MIXED = "mixtral qwen2_moe qwen3_moe glm4_moe gpt_oss deepseek_v2 deepseek_v3 kimi_k2 qwen3_next"
_KNOWN = frozenset(f"{_DENSE} {_MIXED}".split())
_OPEN_LAYERS = ("lm_head", "embed", "gate", "router", "norm", "visual", "vision")
"""Substrings of the names of modules that may stay in 16 bits: they hardly change the count."""


def _preset(layers: int, hidden: int, heads: int, width: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": width, "vocab_size": vocabulary, "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }  # fmt: skip


PRESETS = {
    "8b": _preset(36, 4096, 32, 12288, 151936),  # Qwen3-8B
    "32b": _preset(64, 5120, 64, 25600, 151936),  # Qwen3-32B
    "70b": _preset(80, 8192, 64, 28672, 128256),  # Llama-3-70B
}
"""Configs of dense models with grouped-query attention, used when no model is known."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model, independent of hardware."""

    layers: int
    active: float
    """Parameters that each token is multiplied by; not the input embedding, which is a lookup."""
    shared_bytes: float
    """Weights that every step reads."""
    expert_bytes: float
    """Weights of all routed experts."""
    routed: float
    """Share of the experts that one token uses; 0 where there are none."""
    table_bytes: float
    """Bytes of an untied input embedding, which no step reads as a whole."""
    heads: int
    """KV heads; 1 if all heads share compressed keys and values (MLA)."""
    cached: float
    """KV bytes of a token in layers without a window."""
    windows: tuple[tuple[int, float], ...]
    """KV bytes of a token in layers with a window, by window size in tokens."""
    state: float
    """Bytes of recurrent state per request."""
    attended: float
    """Operations per token and token of context, in layers without a window."""
    eight_bit: bool
    """Whether weights and activations both have 8 bits."""

    @property
    def held_bytes(self) -> float:
        """Memory of all weights."""
        return self.shared_bytes + self.expert_bytes + self.table_bytes

    def read_bytes(self, in_flight: int) -> float:
        """Bytes of weights that a step of N requests reads, with the expected number of experts."""
        touched = 1 - (1 - self.routed) ** in_flight
        return self.shared_bytes + self.expert_bytes * touched

    def windowed(self, context: float) -> float:
        """Bytes that a request holds in windowed and recurrent layers at a context of N tokens."""
        return self.state + sum(min(context, size) * each for size, each in self.windows)


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Count a model's sizes from its config, as transformers writes it.

    Raises
    ------
    CalibrationError
        The config is incomplete, or its model family is unknown.
    """
    try:
        text = config.get("text_config") or config
        return _Reader(text, config.get("quantization_config")).shape()
    except (AttributeError, TypeError) as error:
        raise CalibrationError(f"not the config of a model: {error}") from error


class _Reader:
    def __init__(self, config: Mapping[str, Any], quantization: Mapping[str, Any] | None) -> None:
        self.config = config
        self.kind = config.get("model_type")
        if self.kind not in _KNOWN:
            self._refuse(f"model_type {self.kind!r} is not among {', '.join(sorted(_KNOWN))}")
        stored = config.get("dtype", config.get("torch_dtype"))
        if stored not in ("bfloat16", "float16"):
            self._refuse(f"dtype must be bfloat16 or float16, got {stored!r}")
        self.quantization = quantization or config.get("quantization_config")
        self.layers = self._whole("num_hidden_layers")
        self.hidden = self._whole("hidden_size")

    def _refuse(self, why: str) -> NoReturn:
        raise CalibrationError(
            f"cannot compute token prices from the model's config: {why}; give --price or "
            "--model-config"
        )

    def _whole(self, *names: str) -> int:
        """Value of the first of these fields that is present."""
        for name in names:
            value = self.config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        self._refuse(f"{' or '.join(names)} must be a whole number above 0")

    def shape(self) -> ModelShape:
        weight, expert, cache, eight_bit = self._bytes()
        kinds = self._kinds()
        full, recurrent = kinds.get(0, 0), kinds.get(-1, 0)
        attention, per_token, heads, operations = self._attention()
        gated_delta, state = self._recurrent() if recurrent else (0.0, 0.0)
        sparse, experts, chosen, routed_each, beside = self._experts()
        mlp = 3 * self.hidden * self._whole("intermediate_size") if sparse < self.layers else 0
        parameters = (
            (self.layers - recurrent) * attention
            + recurrent * gated_delta
            + (self.layers - sparse) * mlp
            + sparse * beside
        )
        table = self._whole("vocab_size") * self.hidden
        tied = self.config.get("tie_word_embeddings")
        if not isinstance(tied, bool):
            self._refuse(f"tie_word_embeddings must be true or false, got {tied!r}")
        each = per_token * cache
        return ModelShape(
            self.layers,
            parameters + table + sparse * chosen * routed_each,
            parameters * weight + table * 2,
            sparse * experts * routed_each * expert,
            chosen / experts if experts else 0.0,
            0.0 if tied else table * 2.0,
            heads,
            full * each,
            tuple((size, n * each) for size, n in sorted(kinds.items()) if size > 0),
            recurrent * state,
            full * operations,
            eight_bit,
        )

    def _bytes(self) -> tuple[float, float, float, bool]:
        """Bytes of a weight, an expert's and a cached value; whether activations are 8-bit."""
        stored = self.quantization
        if not stored:
            return 2.0, 2.0, 2.0, False
        method, cache, eight_bit = stored.get("quant_method"), 2.0, False
        bits: Any = None
        left = stored.get("modules_to_not_convert") or stored.get("ignore") or ()
        if method == "mxfp4":  # experts only: 4 bits, and an 8-bit scale per 32 weights
            return 2.0, 4.25 / 8, cache, eight_bit
        if odd := [name for name in left if not any(part in name for part in _OPEN_LAYERS)]:
            self._refuse(f"only some layers are quantised, among those that are not {odd[0]!r}")
        if method == "fp8":
            bits, eight_bit = 8, True
        elif method in ("gptq", "awq"):
            bits = stored.get("bits")
        elif method == "compressed-tensors":
            groups = list((stored.get("config_groups") or {}).values())
            if len(groups) != 1:
                self._refuse(f"one group of quantised layers is required, got {len(groups)}")
            bits = (groups[0].get("weights") or {}).get("num_bits")
            eight_bit = (groups[0].get("input_activations") or {}).get("num_bits") == 8
            cache = (stored.get("kv_cache_scheme") or {}).get("num_bits", 16) / 8
        if bits not in (4, 8):
            self._refuse(f"quantization_config: {method!r} with {bits!r} bits is not known")
        return bits / 8, bits / 8, cache, eight_bit

    def _kinds(self) -> dict[int, int]:
        """Number of layers by window size in tokens; 0 for no window, -1 for recurrent layers."""
        config, n = self.config, self.layers
        kinds, window = config.get("layer_types"), config.get("sliding_window")
        if kinds is None and self.kind == "qwen3_next":
            every = self._whole("full_attention_interval")
            kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(n)]
        if kinds is None and not (window and config.get("use_sliding_window", True)):
            return {0: n}
        if kinds is None and self.kind in ("mistral", "mixtral", "phi3"):
            return {self._whole("sliding_window"): n}
        if kinds is None or len(kinds) != n:
            self._refuse("layer_types must say which layers have a window, one for each layer")
        names = {"full_attention": 0, "linear_attention": -1}
        if "sliding_attention" in kinds:
            names["sliding_attention"] = self._whole("sliding_window")
        if odd := set(kinds) - set(names):
            self._refuse(f"layers of type {min(odd)!r} are not known")
        found = [names[kind] for kind in kinds]
        return {size: found.count(size) for size in set(found)}

    def _attention(self) -> tuple[float, float, int, float]:
        """Of an attention layer: parameters, cached values per token, KV heads, operations."""
        hidden, heads = self.hidden, self._whole("num_attention_heads")
        if self.config.get("kv_lora_rank") is not None:  # compressed keys and values (MLA)
            rank, rope = self._whole("kv_lora_rank"), self._whole("qk_rope_head_dim")
            plain, value = self._whole("qk_nope_head_dim"), self._whole("v_head_dim")
            inner, query = self.config.get("q_lora_rank"), heads * (plain + rope)
            queries = inner * (hidden + query) if inner else hidden * query
            keys = hidden * (rank + rope) + rank * heads * (plain + value)
            operations = 2 * heads * (plain + rope + value)
            return queries + keys + heads * value * hidden, rank + rope, 1, operations
        size, groups = self.config.get("head_dim"), self._whole("num_key_value_heads")
        if size is None:
            size, rest = divmod(hidden, heads)
            if rest:
                self._refuse(f"head_dim is not given, and {heads} heads do not divide {hidden}")
        gate = heads if self.kind == "qwen3_next" else 0
        width = size * (2 * heads + 2 * groups + gate)
        return hidden * width, 2.0 * groups * size, groups, 4.0 * heads * size

    def _recurrent(self) -> tuple[float, float]:
        """Of a gated delta layer: parameters, and bytes of state per request."""
        if self.kind != "qwen3_next":
            self._refuse(f"recurrent layers of {self.kind} are not known")
        heads, size = self._whole("linear_num_value_heads"), self._whole("linear_value_head_dim")
        keys = self._whole("linear_num_key_heads") * self._whole("linear_key_head_dim")
        kernel, values = self._whole("linear_conv_kernel_dim"), heads * size
        mixed = self.hidden * (2 * keys + 3 * values + 2 * heads)
        state = values * self._whole("linear_key_head_dim") + (kernel - 1) * (2 * keys + values)
        return mixed + kernel * (2 * keys + values), 2.0 * state

    def _experts(self) -> tuple[int, int, int, float, float]:
        """Sparse layers, experts per layer and per token, weights of an expert and of the rest."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        if not any(self.config.get(name) for name in names):
            if self.kind in _MIXED.split():
                self._refuse(f"{' or '.join(names)} must be given for {self.kind}")
            return 0, 0, 0, 0.0, 0.0
        config, n = self.config, self.layers
        experts = self._whole(*names)
        chosen = self._whole("num_experts_per_tok", "experts_per_token")
        prefix = "" if self.kind in ("mixtral", "gpt_oss") else "moe_"
        one = 3 * self.hidden * self._whole(f"{prefix}intermediate_size")
        first = config.get("first_k_dense_replace") or 0
        every = config.get("moe_layer_freq") or config.get("decoder_sparse_step") or 1
        dense = set(config.get("mlp_only_layers") or ()) | set(range(first))
        offset = 0 if "moe_layer_freq" in config else 1
        sparse = sum(i not in dense and (i + offset) % every == 0 for i in range(n))
        beside = self.hidden * experts + (config.get("n_shared_experts") or 0) * one
        if config.get("shared_expert_intermediate_size"):
            beside += 3 * self.hidden * self._whole("shared_expert_intermediate_size")
        return sparse, experts, chosen, one, beside

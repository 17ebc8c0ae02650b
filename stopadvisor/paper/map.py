"""The published figures of the paper's 18 settings, to compare your own runs with.

Transcribed from the tables named below; a test compares every figure with the paper's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stopadvisor.probes.trajectories import TYPES

__all__ = ["PAPER_ROWS", "PaperRow"]


@dataclass(frozen=True)
class PaperRow:
    """One setting of the paper."""

    task: str
    model: str
    full_accuracy: float
    mean_think: float
    """Mean tokens of full thinking per question."""
    learned_peak: float
    scalar_peak: float
    delta_peak: float
    delta_saving_pp: float
    """Saving of the learned rule minus that of the best scalar, at matched risk, alpha = 0.15."""
    ci95: tuple[float, float]
    """95 % interval of `delta_saving_pp`."""
    verdict: str
    shares: Mapping[str, float] | None
    """Share of each trajectory type, 0 to 1; None where the paper has no row."""
    saving_pct: Mapping[str, float] | None
    """Saving under each serving regime at peak gain; None where the paper has no row."""


# fmt: off
# Appendix "Eighteen-setting Compact Summary": learned and scalar peak, their difference, difference
# of savings with its interval, verdict.
_SUMMARY = {
    ("GSM8K", "Qwen3-8B"): (0.0465, 0.063, -0.0165, 21.2, (18.7, 23.6), "learned better"),
    ("GSM8K", "Qwen3-32B"): (0.1568, 0.1296, 0.0272, 7.4, (4.3, 10.3), "learned better"),
    ("MATH-500", "Qwen3-8B"): (0.0485, 0.0242, 0.0243, 11.9, (10.0, 13.9), "learned better"),
    ("MATH-500", "Qwen3-32B"): (0.0884, 0.082, 0.0064, 3.2, (1.0, 5.5), "learned better"),
    ("MMLU-Pro", "Qwen3-8B"): (0.0127, 0.0279, -0.0152, -3.9, (-7.2, -0.8), "scalar better"),
    ("MMLU-Pro", "Qwen3-32B"): (0.0388, 0.0478, -0.009, -2.7, (-5.4, -0.1), "scalar better"),
    ("AIME", "Qwen3-8B"): (0.0338, 0.0554, -0.0215, 0.0, (0.0, 0.0), "inconclusive"),
    ("AIME", "Qwen3-32B"): (0.0095, 0.026, -0.0165, 0.0, (0.0, 0.0), "inconclusive"),
    ("GSM8K", "DS-R1-Qwen-7B"): (0.0925, 0.0796, 0.0129, 19.0, (11.8, 27.3), "learned better"),
    ("GSM8K", "DS-R1-Llama-8B"): (0.0, 0.0528, -0.0528, -27.7, (-35.7, -19.7), "scalar better"),
    ("MATH-500", "DS-R1-Qwen-7B"): (0.0532, 0.054, -0.0009, 11.6, (9.2, 14.2), "learned better"),
    ("MATH-500", "DS-R1-Llama-8B"): (0.0102, 0.0175, -0.0073, 8.9, (5.9, 12.2), "learned better"),
    ("MMLU-Pro", "DS-R1-Qwen-7B"): (0.027, 0.0257, 0.0014, 5.3, (2.9, 7.5), "learned better"),
    ("MMLU-Pro", "DS-R1-Llama-8B"): (0.0034, 0.0191, -0.0157, 7.1, (4.3, 9.9), "learned better"),
    ("GPQA", "Qwen3-8B"): (0.0175, 0.0348, -0.0173, 0.0, (0.0, 0.0), "inconclusive"),
    ("GPQA", "Qwen3-32B"): (0.0412, 0.0512, -0.01, 0.0, (0.0, 0.0), "inconclusive"),
    ("GPQA", "DS-R1-Qwen-7B"): (0.0202, 0.0253, -0.0051, 0.0, (0.0, 0.0), "inconclusive"),
    ("GPQA", "DS-R1-Llama-8B"): (0.0, 0.047, -0.047, 0.0, (0.0, 0.0), "inconclusive"),
}

# Appendix, Table "Full in-distribution frontier summary": full accuracy, mean thinking tokens.
_FULL = {
    ("GSM8K", "Qwen3-8B"): (0.888, 1443),
    ("GSM8K", "Qwen3-32B"): (0.929, 1060),
    ("MATH-500", "Qwen3-8B"): (0.582, 2819),
    ("MATH-500", "Qwen3-32B"): (0.604, 2517),
    ("MMLU-Pro", "Qwen3-8B"): (0.645, 1508),
    ("MMLU-Pro", "Qwen3-32B"): (0.724, 1182),
    ("AIME", "Qwen3-8B"): (0.311, 7488),
    ("AIME", "Qwen3-32B"): (0.322, 7283),
    ("GSM8K", "DS-R1-Qwen-7B"): (0.824, 207),
    ("GSM8K", "DS-R1-Llama-8B"): (0.42, 165),
    ("MATH-500", "DS-R1-Qwen-7B"): (0.592, 1789),
    ("MATH-500", "DS-R1-Llama-8B"): (0.332, 1381),
    ("MMLU-Pro", "DS-R1-Qwen-7B"): (0.502, 1666),
    ("MMLU-Pro", "DS-R1-Llama-8B"): (0.401, 1632),
    ("GPQA", "Qwen3-8B"): (0.485, 2877),
    ("GPQA", "Qwen3-32B"): (0.53, 2535),
    ("GPQA", "DS-R1-Qwen-7B"): (0.348, 2730),
    ("GPQA", "DS-R1-Llama-8B"): (0.313, 2778),
}

# Table "Trajectory decomposition": early-solved, beneficial, harmful, unsolved, oscillating (%).
_PROFILES = {
    ("GSM8K", "Qwen3-8B"): (23.8, 55.6, 6.2, 5.0, 9.4),
    ("GSM8K", "Qwen3-32B"): (35.8, 43.1, 3.7, 3.4, 14.0),
    ("MATH-500", "Qwen3-8B"): (20.4, 32.4, 4.4, 37.4, 5.4),
    ("MATH-500", "Qwen3-32B"): (26.0, 28.0, 4.4, 35.2, 6.4),
    ("MMLU-Pro", "Qwen3-8B"): (43.6, 18.0, 6.2, 29.2, 2.9),
    ("MMLU-Pro", "Qwen3-32B"): (53.4, 16.9, 5.6, 22.0, 2.1),
    ("AIME", "Qwen3-8B"): (0.0, 31.1, 1.1, 67.8, 0.0),
    ("AIME", "Qwen3-32B"): (2.2, 30.0, 0.0, 67.8, 0.0),
}

# Appendix "Cost and Serving Profiles": saving (%) with KV fork, prefix cache, black box.
_SERVING = {
    ("GSM8K", "Qwen3-8B"): (32.2, -4.3, -120.9),
    ("GSM8K", "Qwen3-32B"): (63.9, 53.1, 10.7),
    ("MATH-500", "Qwen3-8B"): (52.5, 21.3, -67.5),
    ("MATH-500", "Qwen3-32B"): (82.2, 73.7, 46.9),
    ("MMLU-Pro", "Qwen3-8B"): (81.7, 76.7, 59.8),
    ("MMLU-Pro", "Qwen3-32B"): (61.6, 41.7, -18.4),
    ("AIME", "Qwen3-8B"): (26.5, -38.9, -187.2),
    ("AIME", "Qwen3-32B"): (24.0, -44.3, -198.9),
    ("GPQA", "Qwen3-8B"): (82.2, 72.8, 45.9),
    ("GPQA", "Qwen3-32B"): (53.9, 21.5, -64.8),
}
# fmt: on

_REGIMES = ("kv-fork", "prefix-cache", "black-box")
PAPER_ROWS = tuple(
    PaperRow(
        *setting,
        *_FULL[setting],
        learned_peak=learned,
        scalar_peak=scalar,
        delta_peak=delta_peak,
        delta_saving_pp=delta_saving,
        ci95=ci95,
        verdict=verdict,
        shares={kind: pct / 100 for kind, pct in zip(TYPES, _PROFILES[setting], strict=True)}
        if setting in _PROFILES
        else None,
        saving_pct=dict(zip(_REGIMES, _SERVING[setting], strict=True))
        if setting in _SERVING
        else None,
    )
    for setting, (learned, scalar, delta_peak, delta_saving, ci95, verdict) in _SUMMARY.items()
)
"""In the order of the paper's compact summary."""

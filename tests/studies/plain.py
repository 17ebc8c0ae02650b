"""The paper's definitions once more, in plain numpy over an archive, for studies to agree with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.material import ARCHIVES

SCALARS = ("confidence", "entropy", "run-stability", "confidence-leap")
Arrays = Any
SWEEP = np.linspace(0.30, 0.95, 14).round(3)


def load(name: str) -> dict[str, Arrays]:
    with np.load(ARCHIVES / f"{name}.npz") as data:
        arrays = {key: data[key] for key in data.files}
    arrays["thinking"] = np.minimum(arrays["think_lens"][:, None], arrays["budgets"])
    return arrays


def split(n: int, seed: int = 123) -> tuple[Arrays, Arrays]:
    order = np.random.default_rng(seed).permutation(n)
    return order[: int(0.4 * n)], order[int(0.4 * n) :]


def stops_of(scores: Arrays, threshold: float) -> Arrays:
    hit = scores >= threshold
    hit[:, -1] = True
    return hit.argmax(axis=1)


def gain(data: dict[str, Arrays], scores: Arrays, threshold: float, rows: Arrays) -> float:
    """Accuracy above fixed budgets at equal thinking, on some questions."""
    correct, thinking = data["correct"][rows], data["thinking"][rows]
    stops, at = stops_of(scores[rows], threshold), np.arange(len(rows))
    tokens = thinking[at, stops].mean()
    fixed = np.interp(tokens, thinking.mean(axis=0), correct.mean(axis=0))
    return float(correct[at, stops].mean() - fixed)


def peak_gain(data: dict[str, Arrays], scores: Arrays) -> float:
    """The highest gain of the learned rule's thresholds."""
    return max(gain(data, scores, threshold, np.arange(len(scores))) for threshold in SWEEP)


def sweep_stops(data: dict[str, Arrays]) -> dict[str, dict[tuple[float, ...], Arrays]]:
    """Where the published scripts seek each family's peak: numbers of the rule, and its stops.

    confidence-leap is swept over two numbers, its least leap and its least confidence.
    """
    found: dict[str, dict[tuple[float, ...], Arrays]] = {}
    for family, scores in scores_of(data).items():
        grid = np.linspace(scores.min(), scores.max(), 30).round(4)
        if family == "learned":
            grid = SWEEP
        elif family == "run-stability":
            grid = np.arange(1, scores.shape[1] + 1)
        found[family] = {(t,): stops_of(scores, t) for t in grid.tolist()}
    confidence = np.exp(data["conf_lp"])
    rise = np.diff(confidence, axis=1, prepend=confidence[:, :1])
    found["confidence-leap"] = {
        (leap, level): stops_of((rise >= leap) & (confidence >= level), True)
        for leap in np.linspace(0.01, 0.5, 12).round(3).tolist()
        for level in np.linspace(0.3, 0.95, 8).round(3).tolist()
    }
    return found


def scores_of(data: dict[str, Arrays]) -> dict[str, Arrays]:
    """All five scores; the learned one as the published scripts left it in the archive."""
    confidence = np.exp(data["conf_lp"])
    leap, runs = np.zeros_like(confidence), np.ones(confidence.shape)
    leap[:, 1:] = np.maximum(0, np.diff(confidence, axis=1)) * confidence[:, 1:]
    for j in range(1, runs.shape[1]):
        same = data["ans"][:, j] == data["ans"][:, j - 1]
        runs[:, j] = np.where(same, runs[:, j - 1] + 1, 1)
    names = ("learned", *SCALARS)
    values = (data["p_stop"], confidence, -data["conf_ent"], runs, leap)
    return dict(zip(names, values, strict=True))


def certified(
    data: dict[str, Arrays],
    families: tuple[str, ...],
    calibration: Arrays,
    test: Arrays,
    *,
    scores: dict[str, Arrays] | None = None,
) -> tuple[bool, str, float, float, float]:
    """The cheapest candidate at alpha = 0.15: feasible, family, threshold, test risk, saving."""
    correct, trace = data["correct"], data["think_lens"]
    total = data["thinking"] + 48 * np.arange(1, correct.shape[1] + 1)
    q = [0, 0.005, *np.arange(1, 100) / 100, 0.995, 1]
    scores, grids = scores or scores_of(data), {}
    for family in families:
        values = scores[family][calibration]
        unique = np.unique(values)
        few = unique if unique.size <= 500 else np.array([])
        grids[family] = np.unique([*np.quantile(values, q), *few, values.max() + 1])
    slack = math.sqrt(math.log(sum(map(len, grids.values())) / 0.05) / (2 * calibration.size))
    best = None
    for family, grid in grids.items():
        for threshold in grid.tolist():
            stops = stops_of(scores[family][calibration], threshold)
            lost = correct[calibration, -1] > correct[calibration, stops]
            cost = total[calibration, stops].mean()
            if lost.mean() + slack <= 0.15 and (best is None or cost < best[0]):
                best = (cost, family, threshold)
    _, family, threshold = best or (0, families[0], float(grids[families[0]][-1]))
    stops = stops_of(scores[family][test], threshold)
    risk = (correct[test, -1] > correct[test, stops]).mean()
    saving = 100 * (1 - total[test, stops].mean() / (trace[test].mean() + 48))
    return best is not None, family, threshold, float(risk), float(saving)

"""Proxies of published early exits, against their definitions in loops."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest

from stopadvisor.paper.peaks import TWO_CONDITION_FAMILIES, find_peak, fixed_budgets
from stopadvisor.paper.protocol import PaperSetting
from stopadvisor.paper.proxies import audit_setting, proxy_scores
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.runs.archives import read_archive
from tests.material import ARCHIVES
from tests.populations import POPULATIONS


@pytest.fixture(scope="module")
def table() -> OpenQuestions:
    drawn = POPULATIONS[3].draw(60, np.random.default_rng(4))
    return drawn.with_reference("last-checkpoint")


def runs_of(table: OpenQuestions) -> list[list[int]]:
    found = []
    for codes in table.answer_codes.tolist():
        row = [1]
        for before, now in pairwise(codes):
            row.append(row[-1] + 1 if before == now else 1)
        found.append(row)
    return found


def density_of(table: OpenQuestions) -> np.ndarray:
    prefix = np.minimum(table.trace_tokens[:, None], table.budgets)
    return np.where(prefix > 0, table.markers / np.maximum(prefix, 1), 0.0)


def test_scalar_proxies_are_their_formulas(table: OpenQuestions) -> None:
    confidence, density = np.exp(table.mean_logprob), density_of(table)
    assert proxy_scores("deer", table) == pytest.approx(confidence * density)
    runs = np.array(runs_of(table))
    puma = runs * (1 - density / max(density.max(), 1e-9))
    assert proxy_scores("puma", table) == pytest.approx(puma)
    eat = proxy_scores("eat", table)
    for i, row in enumerate(table.mean_entropy.tolist()):
        for j in range(table.n_checkpoints):
            expected = -999.0 if j < 2 else -np.var(row[j - 2 : j + 1])
            assert eat[i, j] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mixed", "early"])
def test_learned_proxies_equal_scikit_learn_on_the_archives_own_features(name: str) -> None:
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.model_selection import GroupKFold
    from sklearn.preprocessing import StandardScaler

    data = np.load(ARCHIVES / f"{name}.npz")
    features, correct = data["X"], data["correct"]
    n, m = correct.shape
    reached = np.maximum.accumulate(correct, axis=1)
    table = read_archive(ARCHIVES / f"{name}.npz")
    scores = audit_setting(table, PaperSetting.build(table)).scores
    for family, columns, labels in (
        ("learned-10", list(range(10)), correct),
        ("terminator-light", list(range(8)), reached),
    ):
        x, y = features[:, columns], labels.ravel()
        expected = np.zeros(n * m)
        for train, held in GroupKFold(5).split(x, y, np.repeat(np.arange(n), m)):
            scaler = StandardScaler().fit(x[train])
            model = LogisticRegression(max_iter=1000).fit(scaler.transform(x[train]), y[train])
            expected[held] = model.predict_proba(scaler.transform(x[held]))[:, 1]
        assert scores[family] == pytest.approx(expected.reshape(n, m), abs=1e-9)


@pytest.mark.parametrize("family", TWO_CONDITION_FAMILIES)
def test_the_peak_of_two_conditions_is_the_best_of_all_pairs(
    table: OpenQuestions, family: str
) -> None:
    setting = audit_setting(table, PaperSetting.build(table))
    fixed = fixed_budgets(setting)
    found = find_peak(family, table, setting, fixed)
    confidence, density, runs = np.exp(table.mean_logprob), density_of(table), runs_of(table)
    n, m = table.correct.shape

    def fires(i: int, j: int, a: float, b: float) -> bool:
        if family == "confidence-leap":
            leap = confidence[i, j] - confidence[i, j - 1] if j else 0.0
            return bool(leap >= a and confidence[i, j] >= b)
        if family == "deer":
            return bool(confidence[i, j] >= a and density[i, j] >= b)
        if family == "eat":
            k = int(a)
            return bool(j >= k - 1 and np.var(table.mean_entropy[i, j - k + 1 : j + 1]) <= b)
        return bool(runs[i][j] >= a and density[i, j] <= b)

    top = float(density.max())
    grids: dict[str, tuple[Iterable[float], Iterable[float]]] = {
        "confidence-leap": (
            np.linspace(0.01, 0.5, 12).round(3),
            np.linspace(0.3, 0.95, 8).round(3),
        ),
        "deer": (np.linspace(0.3, 0.99, 15).round(3), np.linspace(0, top, 8).round(4)),
        "eat": ([2, 3, 4], np.linspace(0.001, 1, 20).round(4)),
        "puma": (range(1, m + 1), np.linspace(0, top, 10).round(4)),
    }
    best = -1.0
    for a in grids[family][0]:
        for b in grids[family][1]:
            stops = [next((j for j in range(m) if fires(i, j, a, b)), m - 1) for i in range(n)]
            cost = np.mean([setting.costs.thinking[i, j] for i, j in enumerate(stops)])
            accuracy = np.mean([table.correct[i, j] for i, j in enumerate(stops)])
            gain = accuracy - np.interp(cost, fixed.cost, fixed.accuracy)
            if gain > best + 1e-12:
                best, pair, at = gain, (float(a), float(b)), stops
    assert found.gain == pytest.approx(best)
    assert found.settings == pytest.approx(pair)
    assert found.stops.tolist() == at

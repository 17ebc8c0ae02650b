"""Study `rivals` against a fixed budget certified in plain numpy, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from stopadvisor.assessment.rated import RulesOnFit
from stopadvisor.ground.errors import NothingToChoose, StudyError
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.studies.rivals import OURS, Trial, draw_split
from stopadvisor.studies.tables import StudyOptions, views_of
from tests.studies.material import Sums, row_of, rows_of, studied, study

run = study("rivals")

OPTIONS = StudyOptions(alpha=0.2, extra={"splits": "2"})


def fixed_budget(table: OpenQuestions, number: int) -> tuple[Any, Any, NDArray[np.bool_]]:
    """Cost and loss of every question in a split, one test after the other."""
    n = table.n_questions
    assert table.natural_tokens is not None
    split = draw_split(np.arange(n), round(0.32 * n), round(0.48 * n), number)
    full = np.asarray(table.trace_tokens + table.natural_tokens + table.prompt_tokens)
    cost, lost = full.astype(float), np.zeros(n, dtype=bool)
    for k in reversed(range(table.n_checkpoints)):
        budget = int(table.budgets[k])
        live = table.trace_tokens > budget
        if not live[split.fit].any():
            continue
        wrong = live & table.full_correct & ~table.correct[:, k]
        if binom.cdf(wrong[split.calibration].sum(), split.calibration.size, 0.2) > 0.05:
            break
        stopped = table.prompt_tokens + table.suffix_tokens + budget + table.probe_tokens[:, k]
        cost, lost = np.where(live, stopped, full), wrong
    held_out = np.zeros(n, dtype=bool)
    held_out[split.held_out] = True
    assert not set(split.fit) & set(split.calibration)
    assert held_out.sum() + split.fit.size + split.calibration.size == n
    return cost / full[held_out].sum(), lost, held_out


@pytest.mark.slow
def test_a_fixed_budget_is_chosen_and_certified_as_one_would(sums: Sums) -> None:
    source = sums(500)
    found = studied(run, [source], OPTIONS)
    table = views_of([source])[0].table
    splits = [fixed_budget(table, number) for number in range(2)]
    row = row_of(found, "savings", rule="fixed budget")
    saved = [100 * (1 - cost[here].sum()) for cost, _, here in splits]
    assert row["saving_pct"] == pytest.approx(np.mean(saved))
    assert row["lost"] == pytest.approx(np.mean([lost[here].mean() for _, lost, here in splits]))
    assert row["stops"] == 1.0
    ours = row_of(found, "savings", rule=OURS)
    assert row["ahead_pp"] == pytest.approx(ours["saving_pct"] - row["saving_pct"])
    assert row["ahead_low"] < row["ahead_pp"] < row["ahead_high"]
    assert ours["saving_low"] < ours["saving_pct"] < ours["saving_high"]
    assert [r["rule"] for r in rows_of(found, "savings")] == ["fixed budget", "equal answers", OURS]
    assert any("sure at markers" in remark for remark in found.remarks)


def test_an_interval_resamples_questions_and_cut_traces_stand_apart() -> None:
    rng = np.random.default_rng(0)
    held_out = np.repeat([[True, False], [False, True]], 200, axis=1)
    full = np.full((2, 400), 100.0)
    cost = {"a": np.where(held_out, 60 + rng.normal(0, 20, (2, 400)), 100.0), "b": full}
    lost = dict.fromkeys(cost, np.zeros((2, 400), dtype=bool))
    truncated = np.zeros((2, 400), dtype=bool)
    truncated[:, ::2] = True
    trial = Trial(held_out, truncated, full, cost, lost)
    found = trial.saving("a")
    own = cost["a"][held_out]
    assert found.mean == pytest.approx(100 - own.mean())
    half = 1.96 * own.std() / 20
    assert (found.mean - found.low, found.high - found.mean) == pytest.approx((half, half), rel=0.1)
    assert trial.saving("a", "b") == found
    uncut = trial.saving("a", uncut=True).mean
    assert uncut == pytest.approx(100 - cost["a"][held_out & ~truncated].mean())
    assert (trial.stopping_share("a"), trial.stopping_share("b")) == (1.0, 0.0)


def test_the_first_question_of_each_group_enters(
    sums: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, chosen_from, entering = sums(500), set[str](), set[str]()

    def nothing(rules: RulesOnFit, *_: object) -> None:
        chosen_from.update(rules.fit.table.ids)
        assert rules.fit.others is not None  # no rule may probe where these were not probed
        entering.update(rules.fit.table.ids, rules.fit.others.ids)
        assert len(rules.fit.table.ids) + len(rules.fit.others.ids) == len(entering)
        raise NothingToChoose("nothing helps")

    monkeypatch.setattr("stopadvisor.studies.rivals.choose", nothing)
    groups = tuple(f"g{row // 3}" for row in range(source.table.n_questions))
    grouped = replace(source, table=replace(source.table, groups=groups))
    found, (shown,) = run([grouped], OPTIONS), views_of([grouped])
    firsts = dict(zip(shown.table.groups[::-1], shown.table.ids[::-1], strict=True))
    said = f"run: one question of each group, {len(firsts)} of {shown.table.n_questions}"
    assert said in found.remarks
    assert len(firsts) / 3 < len(chosen_from) < len(firsts)
    assert chosen_from < entering == set(firsts.values())
    assert "run: fixed budget: nothing helps" in found.remarks


def test_what_no_rule_can_be_chosen_from_is_refused(sums: Sums) -> None:
    source = sums(500)
    few = replace(source, table=source.table.take(np.arange(8)), parts=source.parts[:8] * 0)
    with pytest.raises(StudyError, match="run: "):
        run([few], OPTIONS)

"""Certificates of ladders on known populations: broken no more often than delta says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from stopadvisor.assessment.candidates import candidates
from stopadvisor.assessment.choice import choose
from stopadvisor.assessment.settings import Settings
from stopadvisor.certification.calibration import calibrate
from stopadvisor.ground.arrays import IntArray
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.rules.climb import OnGiveUp
from stopadvisor.rules.costs import LADDER, MONEY, Weights
from stopadvisor.rules.families import RUNG_FAMILIES
from stopadvisor.rules.losses import LOSSES, LossName
from stopadvisor.runs.ladder import Ladder, Rung
from stopadvisor.runs.replies import ReplyRecord, RungReply, reply_table

DELTA = 0.05
ALPHA = 0.06
DRAWS = 60
N = 200
CASCADE = Ladder((Rung("small", (1.0, 0.1, 1.0)), Rung("large", (8.0, 0.8, 8.0))))
VOTE = Ladder((Rung("vote", (1.0, 0.1, 1.0), repeat=6),))
THREE = Ladder(
    (
        Rung("small", (0.5, 0.05, 0.5)),
        Rung("middle", (2.0, 0.2, 2.0)),
        Rung("large", (8.0, 0.8, 8.0)),
    )
)


@pytest.fixture(scope="module", autouse=True)
def no_forecasts() -> Iterator[None]:
    """Forecasts, numbers of labels and long paths take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stopadvisor.assessment.candidates._MOST_STEPS", 100)
        patch.setattr("stopadvisor.assessment.choice._LABELS", ())
        patch.setattr("stopadvisor.assessment.rated.labels_for", lambda *_, **__: None)
        yield


def population(
    ladder: Ladder, rng: np.random.Generator, n: int, name: str, *, surely: bool = False
) -> OpenQuestions:
    """Questions of unequal difficulty; harder ones take more tokens, and agree less.

    With log-probabilities too where models say how sure they are: `surely`.
    """
    records = []
    for number in range(n):
        hard = rng.random()
        replies = []
        for rung in ladder.columns:
            wrong = {"small": hard**3, "middle": hard**2}.get(rung.name, 0.35 * hard**2)
            answer = "1" if rng.random() > wrong else str(rng.integers(2, 5))
            tokens = int(100 + 900 * hard * rng.random())
            right, finished = answer == "1", rng.random() > 0.03
            logprob = -0.1 - hard - 0.1 * rng.random() if surely else None
            replies.append(
                RungReply(rung.name, answer, answer, right, finished, 20, 0, tokens, logprob)
            )
        key = f"{name}{number}"
        records.append(ReplyRecord(key, key, None, "exact", None, "1", tuple(replies)))
    return reply_table(records, ladder)


def drawn(table: OpenQuestions, rows: IntArray) -> OpenQuestions:
    """Questions drawn with replacement, each a question of its own."""
    names = tuple(f"draw{k}" for k in range(N))
    return replace(table.take(rows), ids=names, keys=names, groups=names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ladder", "loss", "on_give_up"),
    [
        (CASCADE, "drop", None),
        (VOTE, "lost", None),
        (VOTE, "differs", None),
        (CASCADE, "lost", "reply"),
        (THREE, "lost", "escalate"),
    ],
)
def test_broken_certificates_are_as_rare_as_promised(
    ladder: Ladder, loss: LossName, on_give_up: OnGiveUp | None
) -> None:
    rng, surely = np.random.default_rng(5), on_give_up is not None
    everybody = population(ladder, rng, 1200, "all", surely=surely)
    prompt, cached, decoded = ladder.reference.price
    prices = Weights(prompt, cached, decoded, MONEY)
    settings = Settings(
        alpha=ALPHA,
        delta=DELTA,
        loss=loss,
        serving=LADDER,
        weights=prices,
        families=("rung-confidence",) if surely else RUNG_FAMILIES,
        allow_truncated=True,
    )
    choice = choose(population(ladder, rng, 150, "fit", surely=surely).as_fit(), N, settings)
    choice = replace(choice, sequences=choice.sequences[:1])  # at all of delta
    if on_give_up is not None:  # whatever is advised
        rules = candidates(choice.fit, settings.families, on_give_up)
        (giving,) = (rule for rule in rules if getattr(rule.scorer.schedule, "give_up", ()))
        choice = replace(choice, sequences=(giving,))
    broken = naive = certified = 0
    climb, counted = None, np.zeros((0, 0), dtype=np.int64)
    for _ in range(DRAWS):
        rows = rng.integers(0, everybody.n_questions, N)
        found = calibrate(choice, drawn(everybody, rows).as_calibration())
        if found.rule is None:
            continue
        certified += 1
        if found.rule.scorer.schedule != climb:  # few are ever certified
            climb = found.rule.scorer.schedule
            counted = LOSSES[loss].of(found.rule.scorer.view(everybody))
        risks = counted.mean(axis=0)
        broken += risks[int(found.rule.threshold) - 1] > ALPHA
        # What nobody may do: serve the boldest step that looks good on the same questions.
        seen = counted[rows].mean(axis=0)[:-1]
        naive += risks[int((seen <= ALPHA).argmax())] > ALPHA
    most = stats.binom.ppf(0.999, DRAWS, DELTA)
    assert certified > DRAWS / 4
    assert broken <= most
    assert naive > most

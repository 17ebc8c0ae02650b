"""What a policy brings for its monitor: the share of replies that may differ, and its traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stopadvisor.assessment.choice import Settings, choose
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.expectation import differs_limit, served_features
from stopadvisor.probes.outcomes import CalibrationQuestions
from stopadvisor.stats.bounds import upper_limit
from tests.populations import POPULATIONS, renamed


def test_yardsticks_are_read_at_the_certified_threshold() -> None:
    population = POPULATIONS[0]
    rng = np.random.default_rng(3)
    fit = renamed(population.draw(200, rng, alpha=0.1), "fit-")
    choice = choose(fit.as_fit(), 300, Settings(alpha=0.1))
    entered = population.draw(300, rng, alpha=0.1).as_calibration()
    found = calibrate(choice, entered)
    assert found.rule is not None
    view = found.rule.scorer.view(entered)
    stops = found.rule.scorer.curve(view, np.array([found.rule.threshold])).stops(0)
    served = served_features(found.rule, entered)
    assert len(served.stop) == len(served.prompt_tokens) == 300
    stopped = stops < view.n_checkpoints
    assert [value >= 0 for value in served.stop] == stopped.tolist()
    row = int(np.flatnonzero(stopped)[0])
    assert served.stop[row] == view.positions_at(range(view.n_checkpoints))[0, stops[row]]
    assert served.prompt_tokens == tuple(entered.prompt_tokens)
    assert len(served.first_logprob or ()) == (
        view.live[:, 0].sum() if found.rule.scorer.asking.before else 0
    )

    codes = entered.outcomes.natural_code
    assert codes is not None
    unknown = CalibrationQuestions.of(
        entered.observations, replace(entered.outcomes, natural_code=None)
    )
    assert differs_limit(found.rule, unknown, 0.05) is None
    places = np.arange(300), np.minimum(stops, view.n_checkpoints - 1)
    asked, right = view.answer_codes[places], view.correct[places]
    differs = (asked != codes) | (asked < 0) | (right != entered.full_correct) | view.truncated
    number = int((stopped & differs).sum())
    assert 0 < number < 300
    assert differs_limit(found.rule, entered, 0.05) == upper_limit(number, 300, 0.05)

"""Transfer: what may be calibrated where, and how often the certificate is false."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.certification.calibration import Calibration, recalibrate
from stopadvisor.certification.transfer import check_transfer, target_view, transferred_terms
from stopadvisor.certification.verification import scorer_of
from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import plain
from stopadvisor.policy.frozen import build_policy
from stopadvisor.probes.trigger import ListedTrigger
from stopadvisor.rules.losses import LOST
from stopadvisor.runs.sources import Source
from tests.frozen import MODEL, drawn_source, frozen, look_of, verified
from tests.policy_content import full_budget_content, policy_from, terms_of, trigger_content
from tests.populations import POPULATIONS, regraded

LAWS = {law.name: law for law in POPULATIONS}
MIXED, EARLY, HARD = LAWS["mixed"], LAWS["early-solved"], LAWS["unsolved-heavy"]
ADVERSARIAL = LAWS["adversarial, one chain"]
SETTINGS = Settings(alpha=0.15, families=("learned", "confidence"))


@pytest.fixture(scope="module")
def policy() -> dict[str, Any]:
    content = frozen(drawn_source(EARLY, 500, "source"), SETTINGS)
    assert content["kind"] == "stop"
    return content


@pytest.fixture(scope="module")
def target() -> Source:
    return drawn_source(MIXED, 500, "target", seed=1)


def moved(policy: dict[str, Any], target: Source, settings: Settings = SETTINGS) -> Calibration:
    questions = target_view(target).part("calibration").unseal().as_calibration()
    scorer, order = check_transfer(terms_of(policy), target), np.array(policy["order"])
    return recalibrate(scorer, order, questions, settings)


@pytest.fixture(scope="module")
def calibration(policy: dict[str, Any], target: Source) -> Calibration:
    found = moved(policy, target)
    assert found.rule is not None
    return found


# --- Target-calibrated ----------------------------------------------------------------------------


def test_every_label_outside_the_test_part_calibrates(
    calibration: Calibration, target: Source
) -> None:
    counts = target.counts()
    rule = calibration.rule
    assert rule is not None
    assert rule.certificate.n == counts["fit"] + counts["calibration"]
    assert rule.certificate.delta == SETTINGS.delta  # one sequence has the whole of it
    assert set(calibration.entered.keys).isdisjoint(target.part("test").keys)


def test_labels_of_the_test_part_change_nothing(
    calibration: Calibration, policy: dict[str, Any], target: Source
) -> None:
    test = target.parts == 2
    table = target.table.unseal()
    flipped = regraded(
        table, correct=table.correct ^ test[:, None], natural_correct=table.full_correct ^ test
    )
    again = moved(policy, replace(target, table=flipped.sealed()))
    assert again.rule is not None
    assert calibration.rule is not None
    assert again.rule.certificate == calibration.rule.certificate


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (full_budget_content(), "never stops"),
        ({"order": []}, "has no testing order"),
        (trigger_content(ListedTrigger((7,))), "question 'target-0' was not probed at 7"),
    ],
    ids=["full-budget", "order", "budgets"],
)
def test_policies_that_cannot_be_transferred(
    policy: dict[str, Any], target: Source, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        check_transfer(terms_of(policy | change), target)


@pytest.mark.parametrize("part", ["fit", "calibration"])
def test_questions_that_made_the_policy_are_refused(
    policy: dict[str, Any], target: Source, part: str
) -> None:
    # The calibration decided which of the source's sequences was exported.
    shared = target.table.keys[3]
    split = policy["split"] | {part: [*policy["split"][part], shared]}
    with pytest.raises(PolicyError, match=f"1 questions of target fitted or .*{shared}"):
        check_transfer(terms_of(policy | {"split": split}), target)


def test_the_last_checkpoint_must_be_probed(policy: dict[str, Any], target: Source) -> None:
    table = replace(target.table, natural_tokens=None, reference="last-checkpoint")
    archive = replace(target, table=table)
    inner = policy | trigger_content(ListedTrigger((0, 256, 640)))
    with pytest.raises(PolicyError, match="last budget, 1536"):
        check_transfer(terms_of(inner), archive)


# --- The policy that is written -------------------------------------------------------------------


def test_the_transferred_policy(
    calibration: Calibration, policy: dict[str, Any], target: Source
) -> None:
    look = look_of(SETTINGS)
    terms = transferred_terms(terms_of(policy), target, calibration, SETTINGS, look)
    content = policy_from(plain(terms) | MODEL).content
    for name in ("family", "features", "mean", "scale", "coef", "intercept", "order", "budgets"):
        assert content[name] == policy[name]
    certificate = content["certificate"]
    assert certificate["transfer"] == "target-calibrated"
    assert certificate["source_digest"] == policy["digest"]
    assert certificate["source_model"] == policy["model"]["name"]
    assert certificate["n"] == calibration.entered.n_questions
    assert content["workload_sha256"] == target.workload_sha256
    split = content["split"]
    made = {*policy["split"]["fit"], *policy["split"]["calibration"]}
    assert set(split["fit"]) == made
    assert set(split["calibration"]) == set(target_view(target).part("calibration").keys)
    assert set(split["test"]) == set(target.part("test").keys)
    # Verifying it on the target leaves the test part alone.
    found = verified(content, target.table.unseal())
    assert found.n == target.counts()["test"]
    assert found.losses == round(content["expected"]["test_risk"] * found.n)


def test_nothing_certified_gives_a_full_budget_policy(
    policy: dict[str, Any], target: Source
) -> None:
    settings = replace(SETTINGS, alpha=0.001)
    refused = moved(policy, target, settings)
    assert refused.rule is None
    made = transferred_terms(terms_of(policy), target, refused, settings, look_of(settings))
    assert (build_policy(made).kind, made.certificate) == ("full-budget", None)


@pytest.mark.parametrize("name", ["row-", "source-"])
def test_rows_of_a_source_archive_are_no_names_here(
    calibration: Calibration, policy: dict[str, Any], target: Source, name: str
) -> None:
    terms = replace(terms_of(policy), model=None)
    assert terms.split is not None
    fit, used = (
        tuple(key.replace("source-", name) for key in keys)
        for keys in (terms.split.fit, terms.split.calibration)
    )
    terms = replace(terms, split=replace(terms.split, fit=fit, calibration=used))
    made = transferred_terms(terms, target, calibration, SETTINGS, look_of(SETTINGS))
    assert made.split is not None
    # Imported probes name their questions, though no model.
    assert set(made.split.fit) == ({*fit, *used} if name == "source-" else set())
    assert made.certificate is not None
    assert made.certificate.source_model is None


# --- How often the certificate is false -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_the_certificate_is_false_with_at_most_delta(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """250 targets of a law that is just above alpha where it matters, for one frozen source."""
    # Advice on more labels takes most of the time, and is not asked for here.
    advice = "stopadvisor.certification.calibration.counted_labels"
    monkeypatch.setattr(advice, lambda *_: None)
    rng = np.random.default_rng(5)
    settings = Settings(alpha=alpha, families=("confidence",))
    source = drawn_source(EARLY, 400, "source", seed=4)
    policy = frozen(source, replace(settings, alpha=0.15))
    truth = ADVERSARIAL.draw(100_000, rng, alpha=alpha)
    order = np.array(policy["order"])
    scorer = scorer_of(terms_of(policy), truth)
    risks = scorer.curve(truth, order).totals(LOST.of(truth))[0] / 100_000
    assert risks.max() > alpha  # the law does tempt
    false = 0
    for _ in range(250):
        table = ADVERSARIAL.draw(150, rng, alpha=alpha)
        rule = recalibrate(scorer, order, table.as_calibration(), settings).rule
        false += rule is not None and risks[rule.certificate.index] > alpha
    assert false / 250 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 250)

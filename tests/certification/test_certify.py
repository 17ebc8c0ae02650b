"""What `calibrate` refuses for its alpha, which rule it takes, and what it says with it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.certification import calibration, certify, export, transfer
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.rules.costs import Weights
from stopadvisor.stats.bounds import Certified, NotCertified

PASSED = Certified(0, 0.1, 0.05, 100, 1, 0.05)
FAILED = NotCertified("no", None, None)


def assessed_on_fit(
    settings: Settings, accuracy: float = 0.8, *, advised: str | None = None, **source: Any
) -> Any:
    """As much of an assessment as is read here."""
    return SimpleNamespace(
        choice=SimpleNamespace(settings=settings, full_accuracy=accuracy),
        recommendation=SimpleNamespace(family=advised),
        source=SimpleNamespace(**{"torn": None, "manifest": None, "is_archive": False, **source}),
    )


@pytest.mark.parametrize(
    ("loss", "alpha", "allowed", "said"),
    [
        ("lost", 0.1, False, None),
        (
            "lost",
            0.5,
            False,
            r"up to 0\.160, limit the fall .* \(--loss drop\), or pass --despite large",
        ),
        ("drop", 0.5, False, r"up to 0\.160, or pass --despite large-alpha"),
        ("lost", 0.5, True, None),
        ("lost", 0.8, True, "must be below the full-thinking accuracy"),  # exactly
        ("lost", 0.9, True, "always being wrong would meet it"),
        ("differs", 0.9, False, None),
        ("differs", 0.9, True, None),
    ],
)
def test_an_alpha_near_the_accuracy_is_refused(
    loss: Any, alpha: float, allowed: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(certify, "show_fit", lambda _, by: shown.append(by))
    assessment = assessed_on_fit(Settings(alpha=alpha, loss=loss))
    if said is None:
        certify._check_alpha(assessment, allowed=allowed)
        assert shown == []
        return
    with pytest.raises(CalibrationError, match=said):
        certify._check_alpha(assessment, allowed=allowed)
    assert shown == ["calibrate"], "the refusal shows an accuracy"


@pytest.mark.parametrize(
    ("spread", "warned"),
    [((-3.0, -0.1), True), ((-3.0, 0.0), False), ((-3.0, 0.5), False), (None, False)],
)
def test_a_policy_that_surely_costs_more_on_test_questions_is_remarked_on(
    spread: tuple[float, float] | None, warned: bool
) -> None:
    expected = SimpleNamespace(test_total_saving_ci95=spread)
    policy: Any = SimpleNamespace(terms=SimpleNamespace(expected=expected, serving="vllm"))
    found = certify._remarks(assessed_on_fit(Settings(alpha=0.1)), ["a look"], policy, "changed")
    assert found[0] == "changed"
    assert found[-1] == "a look"
    assert [text for text in found if "costs more than" in text] == found[1:-1]
    assert len(found) == 2 + warned


def test_remarks_name_a_large_alpha_a_torn_run_and_an_archive() -> None:
    large = Settings(alpha=0.5)
    assessment = assessed_on_fit(large, torn="a line was cut", is_archive=True)
    alpha, torn, archive = certify._remarks(assessment, ())
    assert "that share of the right answers may be lost" in alpha
    assert torn == "a line was cut"
    assert "the archive holds no natural answers" in archive
    assert certify._remarks(assessed_on_fit(Settings(alpha=0.5, loss="differs")), ()) == []


@pytest.mark.parametrize(
    ("exported", "advised", "tested", "read", "said"),
    [
        (None, "entropy", [], None, None),
        ("entropy", "entropy", [("entropy", PASSED)], None, None),
        ("entropy", "entropy", [("entropy", PASSED)], "entropy", None),
        ("entropy", None, [("entropy", PASSED)], None, "--despite advice asked for whatever"),
        (
            *("learned", "entropy", [("entropy", FAILED), ("learned", PASSED)], None),
            "the exported rule is the learned rule where entropy alone was advised: entropy alone "
            "passed no test on the calibration questions, and the learned rule, tested next, did",
        ),
        ("learned", "entropy", [("learned", PASSED)], None, "entropy alone passed no test"),
        (
            *("learned", "entropy", [("entropy", PASSED), ("learned", PASSED)], "entropy"),
            "entropy alone and the learned rule both passed the test; at their certified",
        ),
        (
            *("entropy", "entropy", [("entropy", PASSED)], "learned"),
            "assess had advised the learned rule at alpha = 0.2; at alpha = 0.1 and these settings "
            "the fit questions choose entropy alone",
        ),
        (
            *("learned", "entropy", [("entropy", FAILED), ("learned", PASSED)], "deer"),
            "the fit questions choose entropy alone; entropy alone passed no test",
        ),
    ],
)
def test_why_another_rule_is_exported_than_was_advised(
    exported: str | None,
    advised: str | None,
    tested: list[tuple[str, Any]],
    read: str | None,
    said: str | None,
) -> None:
    assessed = None if read is None else {"alpha": 0.2, "recommendation": {"family": read}}
    found = certify._why_another_rule(
        assessed_on_fit(Settings(alpha=0.1), advised=advised),
        SimpleNamespace(tested=tuple(tested)),  # type: ignore[arg-type]
        exported,
        assessed,
    )
    if said is None:
        assert found is None
        return
    assert found is not None
    assert said in found
    assert ("; entropy alone passed" in found) is (read == "deer")


@pytest.mark.parametrize(
    ("savings", "margin", "taken"),
    [
        ({"learned": 10.0, "confidence": 8.0}, 3.0, "confidence"),
        ({"learned": 10.0, "confidence": 8.0}, 1.5, "learned"),
        ({"confidence": 10.0, "fixed-budget": 9.1}, 0.0, "fixed-budget"),
        ({"confidence": 10.0, "fixed-budget": 8.9}, 3.0, "confidence"),
        ({"fixed-budget": 10.0, "learned": 9.5}, 3.0, "fixed-budget"),
    ],
)
def test_of_two_certified_rules_a_simpler_one_is_taken_within_the_margin(
    savings: dict[str, float], margin: float, taken: str
) -> None:
    """That of the advice if a learned rule leads; one point of saving otherwise."""
    certified: Any = [
        (SimpleNamespace(savings=[0.0, saved], scorer=SimpleNamespace(family=family)), at)
        for family, saved in savings.items()
        for at in [replace(PASSED, index=1)]
    ]
    choice: Any = SimpleNamespace(margin=margin)
    assert calibration._pick(choice, certified)[0].scorer.family == taken


# --- A rule from elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "assessed", "known", "said"),
    [
        ("lost", {"fit_full_accuracy": 0.8}, None, "fit questions"),
        ("lost", {"fit_full_accuracy": 0.8}, 0.01, "fit questions"),
        ("lost", {}, 0.8, "where the policy was calibrated"),
        ("lost", None, 0.8, "where the policy was calibrated"),
        ("lost", None, None, None),
        ("lost", {"fit_full_accuracy": 1.0}, None, None),
        ("differs", {"fit_full_accuracy": 0.1}, 0.1, None),
    ],
)
def test_a_transfer_refuses_a_large_alpha_by_an_accuracy_that_is_known(
    loss: Any,
    assessed: dict[str, float] | None,
    known: float | None,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "read_assessment", lambda _: assessed)
    expected = None if known is None else SimpleNamespace(calibration_full_accuracy=known)
    policy: Any = SimpleNamespace(terms=SimpleNamespace(expected=expected))
    source, settings = SimpleNamespace(folder=None), Settings(alpha=0.19, loss=loss)
    if said is None:
        transfer._check_alpha(policy, source, settings)  # type: ignore[arg-type]
        return
    with pytest.raises(CalibrationError, match=said):
        transfer._check_alpha(policy, source, settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("serving", "ladder", "assessed", "own"),
    [
        (None, None, None, True),
        ("kv-fork", None, None, False),
        (None, "a ladder", None, False),
        (None, None, {}, False),
    ],
)
def test_a_transfer_costs_as_its_policy_unless_the_user_or_the_run_says_otherwise(
    serving: str | None,
    ladder: str | None,
    assessed: dict[str, Any] | None,
    own: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "read_assessment", lambda _: assessed)
    dear, asked = Weights(2.0, 1.0, 3.0, "money"), Settings(alpha=0.1)
    terms = SimpleNamespace(expected=SimpleNamespace(weights=dear), serving="vllm")
    source = SimpleNamespace(folder=None, ladder=ladder)
    for weights in (None, Weights(9.0, 9.0, 9.0, "mine")):
        overrides = SimpleNamespace(serving=serving, weights=weights)
        request = SimpleNamespace(settings=lambda _: asked, overrides=overrides)
        found = transfer._settings(SimpleNamespace(terms=terms), source, request)  # type: ignore[arg-type]
        as_its_own = replace(asked, serving="vllm", weights=weights or dear)
        assert found == (as_its_own if own else asked)


@pytest.mark.parametrize(
    ("model", "keys", "nameless"),
    [(None, ("row-1",), True), (None, ("a",), False), ("a model", ("row-1",), False)],
)
def test_only_an_archive_without_names_is_nameless(
    model: str | None, keys: tuple[str, ...], nameless: bool
) -> None:
    split = SimpleNamespace(fit=(), calibration=keys)
    terms: Any = SimpleNamespace(model=model, split=split)
    assert transfer._is_nameless(terms) is nameless
    assert not transfer._is_nameless(SimpleNamespace(model=None, split=None))  # type: ignore[arg-type]


# --- What a policy takes from a manifest ----------------------------------------------------------


def test_a_policy_names_a_grader_only_where_it_was_asked() -> None:
    def grading(identity: dict[str, str] | None, graded_by: str = "gold") -> Any:
        manifest = None if identity is None else {"grading": identity}
        return export._grading(SimpleNamespace(manifest=manifest, graded_by=graded_by))  # type: ignore[arg-type]

    built_in, function = {"grader": "math 3"}, {"grader": "mine:same", "grader_sha256": "a" * 64}
    assert grading(built_in) == grading(built_in, "agreement") == built_in
    assert grading(function) == function
    assert grading(function, "agreement") == grading(None) == {}


def test_sampling_is_named_as_it_was_done() -> None:
    plan = {"greedy": False, "temperature": 0.7}
    engine = {"generation_config": {"top_k": 20}}
    found = export._drawn({"engine": engine, "plan": plan})
    assert found is not None
    assert (found.temperature, found.top_k) == (0.7, 20)
    for manifest in (
        {"engine": None, "plan": plan},
        {"engine": {}, "plan": plan},
        {"engine": engine, "plan": plan, "traces": {"sha256": "a"}},
    ):
        assert export._drawn(manifest) is None

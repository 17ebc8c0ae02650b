"""What `calibrate` refuses for its alpha, and says beside a certificate, settled by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.certification import certify
from stopadvisor.ground.errors import CalibrationError
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
        source=SimpleNamespace(**{"torn": None, "is_archive": False, **source}),
    )


@pytest.mark.parametrize(
    ("loss", "alpha", "allowed", "said"),
    [
        ("lost", 0.1, False, None),
        ("lost", 0.5, False, "or pass --despite large-alpha"),
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

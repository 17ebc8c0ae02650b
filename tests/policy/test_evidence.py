"""The questions and expected figures of a policy, checked against its certificate."""

from __future__ import annotations

from typing import Any

import pytest

from stopadvisor.ground.errors import PolicyError
from stopadvisor.ground.fields import plain
from stopadvisor.ground.results import to_document
from stopadvisor.policy.shown import certificate_of
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.stats.label_sample import sample_limit, share_lost
from stopadvisor.stats.trinomial import risk_of_pairs
from tests.policy_content import built, certificate_content, example_content, policy_from

SPLIT = example_content()["split"]
EXPECTED = example_content()["expected"] | {"saving_by_serving": {"kv-fork": 26.0}}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            {"calibration": SPLIT["calibration"][:79]},
            "n': expected at most as many .* .79., got 80",
        ),
        ({"calibration": SPLIT["calibration"][:1] * 80}, "each question once, got '1 of 80'"),
        ({"fit": SPLIT["calibration"][:3]}, "no question of split.fit, got '3 of them'"),
        ({"test": SPLIT["calibration"][:1]}, "no question of split.test, got '1 of them'"),
        ({"fit": SPLIT["fit"][:1] * 2}, "split.fit': expected each question once"),
    ],
)
def test_a_file_names_the_questions_that_it_counts(split: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        built(example_content(split=SPLIT | split))


def test_a_file_may_name_those_questions_alone() -> None:
    built(example_content(split=SPLIT | {"calibration": SPLIT["calibration"][:80]}))


def test_a_transfer_names_as_fit_questions_what_its_source_saw() -> None:
    built(example_content(split=SPLIT | {"fit": [*SPLIT["fit"], *SPLIT["test"]]}))


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"calibration_accuracy": 0.9876}, "calibration_accuracy", "a count out of 80"),
        ({"calibration_accuracy": 1.0}, "calibration_accuracy", "at most 1 - calibration_risk"),
        ({"calibration_risk": 0.0}, "calibration_risk", r"that of the certificate \(0.0625\)"),
        ({"calibration_total_saving_pct": 99.9}, "calibration_total_saving_pct", "a value within"),
        ({"calibration_accuracy": 0.900001}, "calibration_accuracy", "a count out of 80"),
        ({"calibration_think_saving_pct": 100.0001}, "calibration_think_saving_pct", "at most 100"),
        ({"fit_risk": 1.5}, "fit_risk", "a number from -1 to 1"),
        ({"fit_risk": -1.5}, "fit_risk", "a number from -1 to 1"),
        ({"saving_by_serving": {"kv-fork": 200.0}}, "saving_by_serving.kv-fork", "at most 100"),
        ({"calibration_total_saving_band95": [31.0, 20.0]}, "total_saving_band95", "lower first"),
        ({"test_risk": 0.1, "test_accuracy": 0.95}, "test_accuracy", "at most 1 - test_risk"),
        ({"test_risk": 0.1, "test_risk_ci95": [0.2, 0.3]}, "test_risk", "a value within"),
        (
            {"test_risk": 0.1, "test_full_accuracy": 0.05},
            "test_full_accuracy",
            "at least test_risk",
        ),
        (
            {"test_risk": 0.1, "test_full_accuracy": 0.9, "test_accuracy": 0.7},
            "test_accuracy",
            "at least test_full_accuracy - test_risk",
        ),
        ({"test_accuracy_ci95": [0.2, 1.3]}, "test_accuracy_ci95", "from 0 to 1"),
        (
            {"test_n": 80, "test_accuracy": 60.5 / 80}
            | dict.fromkeys(("test_total_saving_ci95", "test_uncut_saving_pct")),
            "test_accuracy",
            "a count out of 80",
        ),
        ({"calibration_n": 0}, "calibration_n", "an integer from 1"),
        ({"weights": EXPECTED["weights"] | {"decoded": "1"}}, "weights.decoded", "a number >= 0"),
    ],
)
def test_figures_that_cannot_be_are_refused(
    changes: dict[str, Any], field: str, message: str
) -> None:
    built(example_content(expected=EXPECTED))
    with pytest.raises(PolicyError, match=rf"{field}': expected .*{message}"):
        built(example_content(expected=EXPECTED | changes))


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("certificate", {"bound": "mine"}, "bound': expected one of 'exact'"),
        ("certificate", {"multiplicity": "none"}, "multiplicity': expected one of 'fixed-seq"),
        ("certificate", {"looks_elsewhere": -3}, "looks_elsewhere': expected an integer from 0"),
        ("certificate", {"provenance": {"probes_sha256": 1}}, "provenance.probes_sha256': "),
        ("certificate", {"note": "Certified. Saves 99%."}, "certificate.note' is unknown"),
        ("certificate", {"claim": "Certified."}, "certificate.claim' is unknown"),
        ("expected", {"note": 1.0}, "expected.note' is unknown"),
        ("expected", {"weights": {"decoded": 1.0}}, "expected.weights.prefilled' is missing"),
    ],
)
def test_fields_are_known_and_of_their_types(
    part: str, changes: dict[str, Any], message: str
) -> None:
    whole = {"certificate": certificate_content(), "expected": EXPECTED}
    with pytest.raises(PolicyError, match=message):
        built(example_content(**{part: whole[part] | changes}))


def test_what_a_file_leaves_out_because_it_is_null_is_shown_as_null() -> None:
    tested: dict[str, Any] = {
        f"test_{k}": v for k, v in {"n": 80, "risk": 0.05, "full_accuracy": 0.8}.items()
    }
    tested |= {"test_accuracy": 0.8, "test_think_saving_pct": 40.0, "test_total_saving_pct": 26.0}
    tested |= {"test_risk_ci95": list(exact_interval(4, 80))}
    tested |= {"test_accuracy_ci95": list(exact_interval(64, 80))}
    null = {"test_total_saving_ci95": None, "test_uncut_saving_pct": None}
    certificate = certificate_content(transfer="target-calibrated", source_digest="0123")
    certificate["source_model"] = None
    content = example_content(expected=EXPECTED | tested | null, certificate=certificate)
    terms = policy_from(content).terms
    assert "source_model" not in plain(terms)["certificate"]
    shown = certificate_of(terms)
    assert shown is not None
    assert terms.expected is not None
    assert to_document(shown)["source_model"] is None
    assert to_document(terms.expected).items() >= null.items()


NO_TEST_SAVING = {"test_total_saving_ci95": None, "test_uncut_saving_pct": None}


@pytest.mark.parametrize(("lost", "right", "full"), [(4, 76, 80), (4, 0, 4), (0, 80, 80)])
def test_shares_may_be_as_far_apart_as_counts_can(lost: int, right: int, full: int) -> None:
    tested = {"test_n": 80, "test_risk": lost / 80, "test_accuracy": right / 80}
    tested |= {"test_full_accuracy": full / 80}
    built(example_content(expected=EXPECTED | NO_TEST_SAVING | tested))


@pytest.mark.parametrize(
    "changes",
    [
        {"calibration_think_saving_pct": 100.0},
        {"fit_risk": 1.0},
        {"fit_risk": -1.0},
        {"calibration_total_saving_band95": [26.0, 31.0]},
        {"calibration_total_saving_band95": [20.0, 26.0]},
    ],
)
def test_figures_may_be_as_large_as_they_can(changes: dict[str, float]) -> None:
    built(example_content(expected=EXPECTED | changes))


@pytest.mark.parametrize(("right", "moved"), [(0, (1,)), (4, (0, 1)), (80, (0,))])
def test_an_interval_is_the_exact_one_of_its_count(right: int, moved: tuple[int, ...]) -> None:
    ends = list(exact_interval(right, 80))
    tested = NO_TEST_SAVING | {"test_n": 80, "test_accuracy": right / 80, "test_risk": None}
    built(example_content(expected=EXPECTED | tested | {"test_accuracy_ci95": ends}))
    for end in moved:
        other = [value + 1e-4 * (0.5 - value) * (k == end) for k, value in enumerate(ends)]
        with pytest.raises(PolicyError, match=f"the exact interval of {right} of 80"):
            built(example_content(expected=EXPECTED | tested | {"test_accuracy_ci95": other}))


def _pairs(losses: int, both: int, one: int) -> dict[str, Any]:
    found: dict[str, Any] = {"traces": 2, "losses": losses, "both": both, "one": one}
    none = 80 - both - one
    return found | {"none": none, "upper": risk_of_pairs(both, none, 80, 0.05)}


SAMPLE = {"losses": 2, "n": 200, "differing": 31, "planned_labels": 12, "labelled": 14}
LIMIT = sample_limit(2, 31, 200, 12, 0.05)


@pytest.mark.parametrize(
    ("counts", "risk", "off", "replies"),
    [
        (_pairs(7, 2, 3), 7 / 160, 1 / 160, 160),
        ({"loss": "drop", "losses": 9, "gained": 5, "n": 240}, 4 / 240, 1 / 240, 240),
        # Estimated from some of the replies, it is no count.
        (SAMPLE | {"upper": LIMIT}, share_lost(2, 31, 200, 12), 1e-5, None),
    ],
    ids=["two traces", "drop", "sample of labels"],
)
def test_the_expected_risk_is_that_of_the_certificate(
    counts: dict[str, Any], risk: float, off: float, replies: int | None
) -> None:
    certificate = certificate_content(**counts)

    def with_figures(**figures: float) -> None:
        known = EXPECTED | {"calibration_n": certificate["n"], "calibration_risk": risk}
        built(example_content(certificate=certificate, expected=known | figures))

    with_figures()
    with pytest.raises(PolicyError, match="calibration_risk': expected that of the certificate"):
        with_figures(calibration_risk=risk + off)
    if replies is None:
        with_figures(calibration_accuracy=0.5001)
    else:
        with pytest.raises(PolicyError, match=f"a count out of {replies}"):
            with_figures(calibration_accuracy=0.5001)


def test_replies_that_differ_may_be_right() -> None:
    # Accuracy is bounded by what is lost, not by what differs.
    certificate = certificate_content(loss="differs")
    expected = EXPECTED | {"calibration_accuracy": 0.95, "calibration_full_accuracy": 0.0}
    built(example_content(certificate=certificate, expected=expected))

"""The JSON documents: plain values without NaN, named for what they are, whatever the result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.assessment.choice import Settings
from stopadvisor.assessment.fit_assessment import FitAssessment, assess
from stopadvisor.certification.calibration import calibrate
from stopadvisor.certification.certify import Certification
from stopadvisor.certification.export import policy_terms
from stopadvisor.certification.issue import CalibratedRun, PolicyFiles, calibrated
from stopadvisor.ground.results import from_document, to_document
from stopadvisor.paper.analysis import assess_paper
from stopadvisor.policy.frozen import build_policy
from stopadvisor.policy.shown import inspected
from stopadvisor.report.headline import calibrated_headline
from stopadvisor.runs.access import take_look
from stopadvisor.runs.look_log import digests_of
from stopadvisor.runs.sources import Source, open_source
from tests.material import make_run, write_archive
from tests.policy_content import example_contents, policy_from
from tests.schemas import check_valid

SCALARS = ("entropy", "confidence")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return open_source(make_run(tmp_path_factory.mktemp("report") / "run", 300))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("archive")
    return open_source(write_archive(folder / "raw.npz"), root=folder)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with its dotted path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path, value


def assert_plain(name: str, document: Mapping[str, Any]) -> None:
    """JSON and nothing else: exact types, finite numbers, as the schema says."""
    for path, value in leaves(document):
        assert type(value) in (str, int, float, bool, type(None)), (path, type(value))
        assert not isinstance(value, float) or math.isfinite(value), path
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    check_valid(name, document)


def deploy(source: Source, **settings: Any) -> FitAssessment:
    return assess(source, Settings(**{"families": SCALARS, **settings}))


@pytest.mark.parametrize(
    ("alpha", "serving"), [(0.001, "vllm"), (0.05, "black-box"), (0.3, "kv-fork"), (0.3, "vllm")]
)
def test_assessments_are_plain_whatever_they_advise(
    source: Source, alpha: float, serving: str
) -> None:
    document = to_document(deploy(source, alpha=alpha, serving=serving).result())
    assert_plain("assess", document)
    advice = document["recommendation"]
    assert (advice["policy"] == "full-budget") == (advice["family"] is None)
    assert (advice["policy"] == "full-budget") == (advice["schedule"] is None)
    assert advice["serving"] == serving


def test_paper_assessments_are_plain(archive: Source) -> None:
    document = to_document(assess_paper(archive, alpha=0.12, delta=0.05))
    assert_plain("assess", document)
    assert [row["alpha"] for row in document["matched_risk"]] == [0.05, 0.1, 0.12, 0.15, 0.2]
    assert "the archive holds no natural answers" in document["remarks"][-1]
    advice = document["recommendation"]
    if advice["policy"] != "full-budget":
        assert advice["schedule"] == document["workload"]["budgets"]


def test_figures_are_named_for_the_questions_they_come_from(source: Source) -> None:
    """Under deploy, a saving, risk or accuracy is `fit_…`; the cost table names its basis."""
    document = to_document(deploy(source).result())
    expected = ("expected_saving_pct", "label_savings[].saving_pct")  # of imitated calibrations
    figures = ("saving_pct", "risk", "accuracy", "saving_lower_pct")
    for path, _ in leaves(document):
        name = path.rpartition(".")[2]
        if path.endswith(expected):
            continue
        if name.endswith(figures) and not path.startswith("serving."):
            assert name.startswith("fit_"), path
    assert "fit questions" in str(document["serving"]["operating_point"])


@pytest.mark.parametrize("alpha", [0.001, 0.15])
def test_calibrations_are_plain(source: Source, tmp_path: Path, alpha: float) -> None:
    assessment = deploy(source, alpha=alpha)
    table = source.part("calibration").unseal()
    calibration = calibrate(assessment.choice, table.as_calibration())
    look = take_look(tmp_path, digests_of(table.keys), {}, delta=0.05)
    policy = build_policy(
        policy_terms(
            source,
            assessment.choice.settings,
            assessment.choice.full_accuracy,
            calibration,
            assessment.profile,
            look,
        )
    )
    found = Certification(assessment.choice.settings, calibration, look, policy, (), assessment)
    file = str(tmp_path / "policy.joblib")
    result = calibrated(found, str(tmp_path), PolicyFiles(Path(file), None), calibrated_headline)
    document = to_document(result)
    assert from_document(CalibratedRun, document, file) == result
    assert_plain("calibrate", document)
    assert document["certified"] == (document["certificate"] is not None)
    assert document["certified"] == (document["refusal"] is None)
    assert document["policy"] == file
    assert [row["family"] for row in document["tested"]] == [
        sequence.scorer.family for sequence in assessment.choice.sequences
    ]


@pytest.mark.parametrize("name", sorted(example_contents()))
def test_policies_are_plain(name: str) -> None:
    policy = policy_from(example_contents()[name])
    document = to_document(inspected(policy, Path("p.joblib")))
    assert_plain("inspect", document)
    assert document["digest"] == policy.digest
    assert {row["name"] for row in document["features"]} == set(policy.content["features"])

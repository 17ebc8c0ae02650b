"""The JSON documents: plain values without NaN, named for what they are; and their schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stopadvisor.cli.main import COMMANDS
from stopadvisor.cli.schema import RESULTS
from stopadvisor.ground.errors import CalibrationError
from stopadvisor.ground.results import to_document
from stopadvisor.paper.analysis import assess_paper
from stopadvisor.policy.shown import inspected
from stopadvisor.runs.sources import Source, open_source
from tests.material import Call, write_archive
from tests.policy_content import example_contents, policy_from
from tests.report.results import ASSESSED
from tests.schemas import check_valid, schema


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("archive")
    return open_source(write_archive(folder / "raw.npz"), folder=folder / "results")


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


def test_paper_assessments_are_plain(archive: Source) -> None:
    document = to_document(assess_paper(archive, alpha=0.12, delta=0.05))
    assert_plain("assess", document)
    assert [row["alpha"] for row in document["matched_risk"]] == [0.05, 0.1, 0.12, 0.15, 0.2]
    assert "the archive holds no natural answers" in document["remarks"][-1]
    with pytest.raises(CalibrationError, match="the paper's serving regimes"):
        assess_paper(archive, alpha=0.12, delta=0.05, serving="vllm")
    advice = document["recommendation"]
    if advice["policy"] != "full-budget":
        assert advice["schedule"] == document["workload"]["budgets"]


def test_figures_are_named_for_the_questions_they_come_from() -> None:
    """Under deploy, a saving, risk or accuracy is `fit_…`; the cost table names its basis."""
    document = to_document(ASSESSED)
    assert_plain("assess", document)
    expected = ("expected_saving_pct", "label_savings[].saving_pct")  # of imitated calibrations
    figures = ("saving_pct", "risk", "accuracy", "saving_lower_pct")
    for path, _ in leaves(document):
        name = path.rpartition(".")[2]
        if path.endswith(expected):
            continue
        if name.endswith(figures) and not path.startswith("serving."):
            assert name.startswith("fit_"), path
    assert "fit questions" in str(document["serving"]["operating_point"])


@pytest.mark.parametrize("name", sorted(example_contents()))
def test_policies_are_plain(name: str) -> None:
    policy = policy_from(example_contents()[name])
    document = to_document(inspected(policy, Path("p.joblib")))
    assert_plain("inspect", document)
    assert document["digest"] == policy.digest
    assert {row["name"] for row in document["features"]} == set(policy.content["features"])


# --- Their schemas --------------------------------------------------------------------------------


def test_every_command_has_a_schema() -> None:
    # `schema` prints a schema, or the list; `serve` becomes a server.
    assert COMMANDS.keys() <= RESULTS.keys() | {"schema", "serve"}


def test_schema(call: Call) -> None:
    assert call.json("schema", "assess") == {"title": "assess", **schema("assess")}
    listed = call.json("schema")
    check_valid("schema-list", listed)
    assert {row["name"] for row in listed["schemas"]} == {*RESULTS}
    assert "calibration.json" in call.screen("schema")
    assert "expected one of assess, calibrate" in call.refused("schema", "nothing")


@pytest.mark.parametrize("words", [["inspect", "nothing"], ["plan", "--alpha", "2"]])
def test_errors(call: Call, words: list[str]) -> None:
    code, out, _ = call(*words, "--json")
    assert code == 2
    check_valid("error", json.loads(out))

"""The files of samples/deploy: they parse, and name options and metrics that there are."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from stopadvisor.cli.serve import command
from stopadvisor.serving.metrics import Metrics, RequestRecord
from stopadvisor.serving.monitoring import ALARMS

FOLDER = Path(__file__).resolve().parents[2] / "samples" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))
_METRIC = re.compile(r"\b(?:stopadvisor|gen_ai)_[a-z0-9_]+")


def exported() -> set[str]:
    """Names of all series."""
    metrics = Metrics(CollectorRegistry())
    metrics.count(RequestRecord("a", budget=4, ttft_seconds=1.0))
    metrics.upstream_up.labels("0").set(1)
    metrics.upstream_in_flight.labels("0").set(1)
    metrics.policy.labels("m", "d").set(1)
    metrics.audits.labels("shed").inc()
    for alarm in ALARMS:
        metrics.audit_alarm.labels("d", alarm).set(0)
    families = text_string_to_metric_families(metrics.text()[0].decode())
    return {sample.name for family in families for sample in family.samples}


def expressions() -> list[str]:
    """What dashboard and alerts ask for."""
    board = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    variables = [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return [
        *variables,
        *(target["expr"] for panel in board["panels"] for target in panel["targets"]),
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
    ]


def test_the_dashboard_has_four_panels_of_series_that_there_are() -> None:
    board = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    assert len(board["panels"]) == 4
    assert all(panel["title"] and panel["targets"] for panel in board["panels"])
    names = exported()
    for expression in expressions():
        found = set(_METRIC.findall(expression))
        assert found, expression
        assert found <= names, expression
        assert expression.count("(") == expression.count(")")


def test_prometheus_scrapes_what_the_gateway_serves() -> None:
    found = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert {job["metrics_path"] for job in found["scrape_configs"]} == {"/metrics"}
    assert all((FOLDER / file).is_file() for file in found["rule_files"])


def test_each_alarm_calls_somebody() -> None:
    asked = " ".join(expressions())
    assert set(re.findall(r'audit_alarm{alarm="([a-z-]+)"}', asked)) == set(ALARMS)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_parse_and_name_options_that_there_are(unit: Path) -> None:
    text = re.sub(r"\\\n\s*", "", unit.read_text())
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    own = parser["Service"]["ExecStart"].partition(" -- ")[0]
    words = own.split()
    assert words[0].endswith("/stopadvisor")
    assert words[1] == "serve"
    assert {word for word in words if word.startswith("--")} <= options()
    # Until it can reload, a SIGHUP kills it, and systemd takes that for a clean end.
    assert "-HUP" in parser["Service"]["ExecReload"]
    assert parser["Service"]["RestartForceExitStatus"] == "SIGHUP"
    # The drain ends before systemd kills.
    grace = re.search(r"--grace (\d+)", own)
    assert grace is None or int(grace[1]) < int(parser["Service"]["TimeoutStopSec"])


def test_the_image_serves_with_options_that_there_are() -> None:
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    entry = json.loads(next(x for x in lines if x.startswith("ENTRYPOINT")).partition(" ")[2])
    assert entry[:2] == ["stopadvisor", "serve"]
    assert {word for word in entry if word.startswith("--")} <= options()
    assert any(line.startswith("USER ") and "root" not in line for line in lines)
    example = (FOLDER / "Dockerfile").read_text() + (FOLDER / "README.md").read_text()
    named = set(re.findall(r"(--(?:upstream|grace|api-key|shadow)[a-z-]*)", example))
    assert named <= options()


def options() -> set[str]:
    """Options of the command."""
    return {name for parameter in command.params for name in parameter.opts}

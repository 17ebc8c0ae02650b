"""Counters of serving, as Prometheus reads them."""

from __future__ import annotations

import io
import json

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from stopadvisor.serving.metrics import Log, Metrics, RequestRecord
from tests.policy_content import example_content, policy_from


def exported(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Samples by name and values of labels, in the order of their names."""
    text, content_type = metrics.text()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_request_is_counted_once() -> None:
    metrics = Metrics(CollectorRegistry())
    stopped = RequestRecord(
        "a",
        route="policy",
        reason="covered",
        status=200,
        budget=40,
        think_tokens=45,
        reasoning_tokens=40,
        probe_tokens=6,
        discarded_tokens=5,
        ttft_seconds=0.02,
        e2e_seconds=0.5,
    )
    with metrics.in_flight.track_inprogress():
        assert exported(metrics)["stopadvisor_requests_in_flight",] == 1
        metrics.count(stopped)
    metrics.count(RequestRecord("b", reason="tools", status=200))
    found = exported(metrics)
    assert found["stopadvisor_requests_in_flight",] == 0
    assert found["stopadvisor_requests_total", "covered", "policy"] == 1
    assert found["stopadvisor_requests_total", "tools", "passthrough"] == 1
    assert found["stopadvisor_responses_total", "200"] == 2
    assert found["stopadvisor_stops_total", "40", "policy"] == 1
    assert found["stopadvisor_tokens_total", "think"] == 45
    assert found["stopadvisor_tokens_total", "probe"] == 6
    assert found["stopadvisor_discarded_tokens_total",] == 5
    assert found["gen_ai_usage_reasoning_output_tokens_total",] == 40
    assert found["stopadvisor_time_to_first_token_seconds_count", "policy"] == 1
    assert found["stopadvisor_e2e_request_latency_seconds_sum", "policy"] == 0.5


def test_budgets_without_end_are_one_label() -> None:
    """Where traces are probed at positions of their own, each stop may be at another budget."""
    metrics = Metrics(CollectorRegistry())
    for budget in range(200):
        metrics.count(RequestRecord("a", route="policy", budget=budget))
    stops = {name: n for name, n in exported(metrics).items() if name[0].endswith("stops_total")}
    assert len(stops) == 65
    assert stops["stopadvisor_stops_total", "other", "policy"] == 200 - 64


def test_a_request_of_which_nothing_is_known_counts_nothing_else() -> None:
    metrics, record = Metrics(CollectorRegistry()), RequestRecord("a")
    metrics.count(record)
    left_out = ("_bucket", "_count", "_created")
    found = {
        name: n for name, n in exported(metrics).items() if n and not name[0].endswith(left_out)
    }
    requests, responses = (
        ("stopadvisor_requests_total", "", "passthrough"),
        "stopadvisor_responses_total",
    )
    assert found == {requests: 1, (responses, "0"): 1}
    usage = record.usage()
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (0, 0)
    assert usage["stopadvisor"] == {
        "budget": None, "probes": 0, "probe_tokens": 0, "discarded_tokens": 0
    }  # fmt: skip


def test_the_policies_in_use_are_named() -> None:
    metrics, policy = Metrics(CollectorRegistry()), policy_from(example_content())
    for name in ("before", "now"):
        metrics.show_policies([(name, policy)])
    found = {name: n for name, n in exported(metrics).items() if name[0].endswith("policy_info")}
    assert found == {("stopadvisor_policy_info", policy.digest[:8], "now"): 1}


def test_a_line_of_the_log_leaves_out_what_is_empty() -> None:
    written = io.StringIO()
    Log(written).request(RequestRecord("a", route="policy", e2e_seconds=0.1234567))
    line = json.loads(written.getvalue())
    assert (line["event"], line["route"], line["e2e_seconds"]) == ("request", "policy", 0.123457)
    assert (line["status"], line["gen_ai.usage.reasoning.output_tokens"]) == (0, 0)
    assert not {"reason", "ttft_seconds", "budget", "reasoning_tokens", "began"} & set(line)

"""Counters of serving, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from stopadvisor.serving.metrics import Metrics, RequestRecord


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

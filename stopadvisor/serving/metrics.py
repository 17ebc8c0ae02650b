"""Prometheus metrics of plugin and gateway, and the gateway's log.

Both hold only numbers and fixed words: no text of a request or reply, no key, and only the class of
an error, unless no request is involved (checks of upstreams, and reloads).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from stopadvisor.ground.constants import POLICY_HEADER
from stopadvisor.policy.frozen import Policy

__all__ = ["Log", "Metrics", "RequestRecord", "Route"]

Route = Literal["policy", "passthrough", "shadow"]
"""Answered under the policy; not under it; or not under it, but counting its decisions."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_MOST_BUDGETS = 64
"""Limit on the values of the ``budget`` label: if positions depend on the trace, the number of
budgets is unlimited."""


@dataclass
class RequestRecord:
    """Figures of a request, filled in while it is answered."""

    id: str
    route: Route = "passthrough"
    reason: str = ""
    """Why it was covered or not, in fixed words."""
    status: int = 0
    """0 if the client disconnected before one was sent."""
    error: str = ""
    """Class name of an error; ``client-gone`` after a disconnect."""
    digest: str = ""
    """First eight digits of the policy's digest."""
    upstream: int | None = None
    """Number of the upstream that answered, from 0 in the order given."""
    budget: int | None = None
    """Thinking tokens at which the policy stopped it (in shadow mode, would have)."""
    rung: str = ""
    """The rung whose reply was served (in shadow mode, would have been)."""
    probes: int = 0
    failed_probes: int = 0
    prompt_tokens: int = 0
    """Tokens of the rendered prompt, without those that probes read again."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; None if unknown."""
    reasoning_tokens: int = 0
    """Thinking tokens shown."""
    think_tokens: int = 0
    """Thinking tokens decoded."""
    probe_tokens: int = 0
    visible_tokens: int = 0
    """Tokens decoded for the visible answer, including closer and end token."""
    discarded_tokens: int = 0
    """Thinking tokens decoded but not shown, without those of probes; with a ladder, the tokens of
    the replies climbed past."""
    queue_seconds: float = 0.0
    own_seconds: float = 0.0
    """From the request's arrival until a server is asked, without the queue."""
    ttft_seconds: float | None = None
    """To the first byte of the body; None if none was sent."""
    e2e_seconds: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    """When the request came, by `time.perf_counter`."""

    @property
    def seconds(self) -> float:
        """Seconds since the request came."""
        return time.perf_counter() - self.began

    @property
    def completion_tokens(self) -> int:
        """All decoded tokens."""
        thought = self.reasoning_tokens + self.discarded_tokens
        return thought + self.probe_tokens + self.visible_tokens

    def header(self, rung: str = "") -> tuple[bytes, bytes]:
        """Return `POLICY_HEADER` and its value, which names the `rung` that answered, if any."""
        value = f"{self.route}; reason={self.reason}; digest={self.digest or 'none'}"
        value += f"; rung={rung}" if rung else ""
        return POLICY_HEADER.lower().encode(), value.encode()

    def usage(self) -> dict[str, Any]:
        """Return the ``usage`` object of the reply."""
        completion = self.completion_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "stopadvisor": {
                "budget": None if self.route == "shadow" else self.budget,
                "probes": self.probes,
                "probe_tokens": self.probe_tokens,
                "discarded_tokens": self.discarded_tokens,
            },
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage


class Metrics:
    """The metrics of one process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._budgets: set[int] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"stopadvisor_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"stopadvisor_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            full = f"stopadvisor_{name}_seconds"
            return Histogram(full, text, labels, registry=registry, buckets=_SECONDS)

        self.requests = counter("requests", "Requests by route and reason.", "route", "reason")
        self.responses = counter("responses", "Responses by status; 0 means none.", "status")
        self.stops = counter("stops", "Stopped traces by thinking tokens.", "route", "budget")
        self.rungs = counter("rungs", "Requests by the rung that answered.", "route", "rung")
        self.rungs_down = counter("rungs_down", "Requests that a rung could not answer.", "rung")
        self.tokens = counter("tokens", "Decoded tokens of covered requests.", "kind")
        self.discarded = counter("discarded_tokens", "Tokens outside of any reply.")
        self.reasoning = Counter(
            "gen_ai_usage_reasoning_output_tokens",
            "Thinking tokens shown: OpenTelemetry's gen_ai.usage.reasoning.output_tokens.",
            registry=registry,
        )
        self.probe_seconds = seconds("probe", "Seconds from sending a probe to its answer.")
        self.failed_probes = counter("failed_probes", "Probes that failed: thinking went on.")
        self.queue_seconds = seconds("queue", "Time in the queue.")
        self.ttft_seconds = seconds("time_to_first_token", "Time to the first byte.", "route")
        self.e2e_seconds = seconds("e2e_request_latency", "Time to the last byte.", "route")
        self.overhead_seconds = seconds("overhead", "Time until a server is asked.", "route")
        self.in_flight = gauge("requests_in_flight", "Requests being answered.")
        self.waiting = gauge("requests_waiting", "Requests waiting for a place.")
        self.upstream_up = gauge(
            "upstream_up", "1 if the upstream is in use, 0 if it is down or refused.", "upstream"
        )
        self.upstream_in_flight = gauge(
            "upstream_in_flight", "Requests in flight at this upstream.", "upstream"
        )
        self.tasks = gauge("event_loop_tasks", "Tasks in the event loop.")
        self.policy = gauge("policy_info", "Policies in use.", "model", "digest")
        self.audits = counter("audits", "Audits: equal, differs, shed or failed.", "result")
        self.audit_tokens = counter("audit_tokens", "Tokens decoded for audits.")
        self.audit_e_value = gauge("audit_e_value", "Evidence against a limit.", "digest", "watch")
        self.audit_change = gauge("audit_change", "Evidence of a change.", "digest", "watch")
        self.audit_upper = gauge(
            "audit_upper_limit", "Upper limit of the share of differing replies.", "digest"
        )
        self.audit_alarm = gauge(
            "audit_alarm",
            "1 while this alarm is on: promise, early-warning or change.",
            *("digest", "alarm"),
        )

    def count(self, record: RequestRecord) -> None:
        """Count a finished request."""
        route = record.route
        self.requests.labels(route, record.reason).inc()
        self.responses.labels(str(record.status)).inc()
        self.queue_seconds.observe(record.queue_seconds)
        self.e2e_seconds.labels(route).observe(record.e2e_seconds)
        self.overhead_seconds.labels(route).observe(record.own_seconds)
        if record.ttft_seconds is not None:
            self.ttft_seconds.labels(route).observe(record.ttft_seconds)
        if record.budget is not None:
            self.stops.labels(route, self._name(record.budget)).inc()
        if record.rung:
            self.rungs.labels(route, record.rung).inc()
        for kind in ("think", "probe", "visible"):
            self.tokens.labels(kind).inc(getattr(record, f"{kind}_tokens"))
        self.discarded.inc(record.discarded_tokens)
        self.reasoning.inc(record.reasoning_tokens)
        self.failed_probes.inc(record.failed_probes)

    def show_policies(self, policies: Iterable[tuple[str, Policy]]) -> None:
        """Export the policies in use, each with its model's name."""
        self.policy.clear()
        for model, policy in policies:
            self.policy.labels(model, policy.digest[:8]).set(1)

    def _name(self, budget: int) -> str:
        if len(self._budgets) < _MOST_BUDGETS:
            self._budgets.add(budget)
        return str(budget) if budget in self._budgets else "other"

    def text(self) -> tuple[bytes, str]:
        """Return body and content type of ``/metrics``."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


@dataclass(frozen=True)
class Log:
    """The gateway's log: one JSON object per line."""

    to: TextIO

    def write(self, event: str, **fields: Any) -> None:
        """Write an event."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.to.write(json.dumps({"time": now, "event": event, **fields}) + "\n")
        self.to.flush()

    def request(self, record: RequestRecord) -> None:
        """Write a finished request, without empty fields."""
        fields = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in asdict(record).items()
            if value not in (None, "") and name != "began"
        }
        fields["gen_ai.usage.reasoning.output_tokens"] = fields.pop("reasoning_tokens")
        self.write("request", **fields)

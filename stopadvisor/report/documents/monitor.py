"""What `monitor --json` prints: whether the promise is kept, and what was watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from stopadvisor.policy.claims import claim
from stopadvisor.policy.frozen import Policy
from stopadvisor.report.documents.fields import Document, fill
from stopadvisor.serving.monitoring import Course

__all__ = ["MonitorDocument", "monitor_document"]


class _AlarmFields(TypedDict):
    watch: Annotated[str, "What raised it: `differs`, or the loss of the certificate."]
    kind: Annotated[str, "`e-value`, or `change` of the change detector."]
    request: Annotated[int, "Requests counted by then."]
    time: Annotated[float, "Seconds since 1970."]


class _Watch(TypedDict):
    watch: Annotated[str, "`differs`, or the loss of the certificate, which needs gold."]
    limit: Annotated[float, "The risk that is tested."]
    is_promise: Annotated[bool, "False: an early warning, not the promise itself."]
    e_value: Annotated[float, "Evidence that the limit is broken; an alarm at 1 / delta."]
    detector: Annotated[float, "Evidence of a change; an alarm at `change`."]


class _Delay(TypedDict):
    times: Annotated[int, "The risk, as a multiple of the limit."]
    requests: Annotated[float | None, "Median number until the alarm; null: may never come."]


class _CoursePoint(TypedDict):
    request: Annotated[int, "Requests counted by then."]
    time: Annotated[float, "Seconds since 1970."]
    e_value: Annotated[float, "Of the differing replies."]
    detector: Annotated[float, "Of the differing replies."]
    stop_share: Annotated[float, "Share of requests that stopped, so far."]
    upper: Annotated[float | None, "Upper limit, so far."]


class MonitorDocument(Document):
    """`monitor --json`."""

    digest: Annotated[str, "Of the policy."]
    claim: Annotated[str, "What it promises."]
    verdict: Annotated[str, "`alarm`, `no-alarm`, or `no-audits` where nothing was audited."]
    alarm: Annotated[_AlarmFields | None, "The first, and still on; null where there is none."]
    resets: Annotated[int, "Times that somebody reset an alarm; each began a new test."]
    watched: Annotated[list[_Watch], "Early warnings and the promise."]
    delta: Annotated[float, "Most probability of ever raising a false alarm, for each e-value."]
    change: Annotated[float, "Mean requests to a false alarm of a change detector, at least."]
    share: Annotated[float, "Of requests that are audited."]
    requests: Annotated[int, "Covered requests."]
    stopped: Annotated[int, "Of these, stopped early."]
    audits: Annotated[int, "Audited, stopped or not."]
    resolved: Annotated[int, "Audits of stopped requests that have a result."]
    differing: Annotated[int, "Of these, replies that differ from what full thinking said."]
    shed: Annotated[int, "Audits that were given up."]
    unresolved: Annotated[int, "Audits of stopped requests without a result, shed ones included."]
    gold: Annotated[int, "Audits with gold."]
    gold_losses: Annotated[int, "Sum of their losses."]
    upper: Annotated[
        float | None, "Upper limit of the share of differing replies, for a risk that is constant."
    ]
    delay: Annotated[list[_Delay], "How long it takes to notice a broken limit at this share."]
    decoded_tokens: Annotated[int, "Of all requests."]
    audit_tokens: Annotated[int, "Decoded in the background, on top."]
    saved_tokens: Annotated[float | None, "Estimated from the audits; null without a result."]
    drift: Annotated[dict[str, float], "Evidence that a feature changed; no claim about risk."]
    drifted: Annotated[dict[str, int], "Features that changed, and the request at which it showed."]
    drift_delta: Annotated[float, "Most probability of ever saying so falsely, over all of them."]
    course: Annotated[list[_CoursePoint], "Evenly thinned out."]
    remarks: Annotated[list[str], "What the reader should know."]


_COUNTED = (
    *("requests", "stopped", "audits", "resolved", "differing", "shed", "resets"),
    *("gold", "gold_losses", "audit_tokens"),
)


def monitor_document(
    course: Course, policy: Policy, remarks: Sequence[str], *, drift_delta: float
) -> MonitorDocument:
    """Build the document of a course."""
    settings, counts = course.settings, course.counts
    tests = settings.tests()
    return fill(
        MonitorDocument,
        {name: counts[name] for name in _COUNTED},
        settings,
        course,
        digest=policy.digest,
        claim=claim(policy.content["certificate"]),
        verdict="alarm" if course.alarm else "no-alarm" if counts["audits"] else "no-audits",
        watched=[
            fill(
                _Watch,
                process,
                watch=name,
                limit=tests[name].alpha,
                is_promise=name == settings.loss,
            )
            for name, process in course.processes.items()
        ],
        upper=course.upper_limit(),
        delay=[{"times": times, "requests": settings.delay(times)} for times in (2, 3)],
        decoded_tokens=counts["tokens"],
        drift={name: test.capital for name, test in course.drift.items()},
        drift_delta=drift_delta,
        course=course.points(),
        remarks=list(remarks),
    )

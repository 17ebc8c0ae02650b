"""Audits while serving: some stopped requests think on in the background, and are compared.

Which ones is decided by a keyed hash of an id that the server assigns, never by content, so that
neither clients nor the policy can choose.  Knows a log and a way to finish thinking; no HTTP, no
engine, and no text beyond the comparison of two answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.policy.frozen import Policy
from stopadvisor.serving.audit_log import AuditLog
from stopadvisor.serving.metrics import Metrics
from stopadvisor.serving.monitoring import (
    ALARMS,
    MEANINGS,
    AlarmKind,
    drift_reference,
    exit_code,
    watch_settings,
)
from stopadvisor.serving.serve_settings import AuditSettings

__all__ = ["AuditedReply", "Auditor", "Auditors", "FinishTrace", "FullThinking"]

_log = logging.getLogger("stopadvisor.audits")
_SHOWN_EVERY = 100
"""Requests after which the exported figures are computed again."""


@dataclass(frozen=True)
class AuditedReply:
    """One covered request that was answered."""

    id: str
    """Assigned by the server."""
    stop: int | None
    """Thinking tokens at which it was stopped, or the number of a ladder's reply that was served;
    None where it is the reference's."""
    answer: str | None
    """Its short answer, as taken out of the reply."""
    task: str
    tokens: int
    """Decoded for it in all."""
    prompt_tokens: int | None
    """None where nobody said."""
    first_logprob: float | None = None
    """Mean over the first forced answer's tokens; None where none was asked for."""


@dataclass(frozen=True)
class FullThinking:
    """What full thinking came to."""

    text: str | None
    """The visible answer; None where thinking was cut."""
    tokens: int
    """Decoded for it."""


FinishTrace = Callable[[], Awaitable[FullThinking]]
"""Thinks a stopped request to its end."""


@dataclass
class Auditor:
    """Writes every covered request down, and audits a share of them."""

    policy: Policy
    settings: AuditSettings
    metrics: Metrics
    leave: Callable[[int], None]
    """Ends the server with the exit code of the gravest alarm that is on, where the settings ask
    for that: when an alarm is raised, and at the start where one is still on."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Ids are fresh for each request, so that another key at each start does no harm."""
    _running: set[asyncio.Task[None]] = field(default_factory=set, repr=False)
    _acted: set[AlarmKind] = field(default_factory=set, repr=False)
    _seen: int = 0
    _in_shadow: bool = False

    def __post_init__(self) -> None:
        watched = watch_settings(self.policy, share=self.settings.share)
        self.log = AuditLog(self.settings.folder, watched, drift_reference(self.policy))
        self._show()
        self._look()

    def served(self, found: AuditedReply, finish: FinishTrace | None) -> None:
        """Take note of a request whose reply was sent; begins its audit where it is picked.

        Returns at once.  Within an event loop.  `finish` is None where there is no room for an
        audit: one that is picked is shed.
        """
        picked = self._picks(found.id)
        share = {"share": self.settings.share} if picked else {}
        names = ("id", "stop", "tokens", "prompt_tokens")
        first = {} if found.first_logprob is None else {"first_logprob": found.first_logprob}
        self.log.write("request", **{n: getattr(found, n) for n in names}, **first, **share)
        self._seen += 1
        if picked and found.stop is not None:
            if finish is None or len(self._running) >= self.settings.at_once:
                self._shed(found.id, "shed")
            else:
                task = asyncio.create_task(self._audit(found, finish))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        if picked or self._seen % _SHOWN_EVERY == 0:
            self._show()
        self._look()

    def shed(self) -> None:
        """Give up the audits under way."""
        for task in self._running:
            task.cancel()

    def is_shadowed(self) -> bool:
        """Whether an alarm put the policy into its shadow; `monitor --reset` ends that."""
        if self._in_shadow:
            self.log.take_in_resets()
            self._look()
            self._in_shadow = bool(self.log.course.alarms)
        return self._in_shadow

    async def drain(self, seconds: float) -> None:
        """Wait for audits that run, and give up those that take longer."""
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _picks(self, request_id: str) -> bool:
        digest = hmac.digest(self.key, request_id.encode(), hashlib.sha256)
        return int.from_bytes(digest[:8], "big") < self.settings.share * 2**64

    async def _audit(self, found: AuditedReply, finish: FinishTrace) -> None:
        try:
            finished = await finish()
        except asyncio.CancelledError:
            self._shed(found.id, "shed")
            raise
        except Exception as error:  # noqa: BLE001 - an audit that fails harms nobody, and is counted
            _log.warning("audit of %s failed: %s", found.id, type(error).__name__)
            self._shed(found.id, "failed")
            return
        # The loss `differs`: an empty answer equals nothing, and a trace that was cut said nothing.
        full = None if finished.text is None else extract_natural(found.task, finished.text)
        served = normalize(found.task, found.answer or "")
        differs = not full or not served or served != normalize(found.task, full)
        self.log.write("result", id=found.id, differs=differs, tokens=finished.tokens)
        self.metrics.audits.labels("differs" if differs else "equal").inc()
        self.metrics.audit_tokens.inc(finished.tokens)
        self._show()
        self._look()

    def _shed(self, request_id: str, why: str) -> None:
        self.log.write("shed", id=request_id)
        self.metrics.audits.labels(why).inc()

    def _show(self) -> None:
        """Export where the course stands."""
        course, metrics, digest = self.log.course, self.metrics, self.policy.digest[:8]
        for name, process in course.processes.items():
            metrics.audit_e_value.labels(digest, name).set(process.e_value)
            metrics.audit_change.labels(digest, name).set(process.detector)
        upper = course.upper_limit()
        metrics.audit_upper.labels(digest).set(1.0 if upper is None else upper)
        for kind in ALARMS:
            metrics.audit_alarm.labels(digest, kind).set(kind in course.alarms)

    def _look(self) -> None:
        """Act on each alarm once; what a reset ended may be raised again."""
        alarms = self.log.course.alarms
        self._acted.intersection_update(alarms)
        new = [alarm for kind, alarm in alarms.items() if kind not in self._acted]
        if not new:
            return
        self._acted.update(alarms)
        self._show()
        for alarm in new:
            _log.error(
                "ALARM (%s) of policy %s, at request %d: %s",
                alarm.kind,
                self.policy.digest[:8],
                alarm.request,
                MEANINGS[alarm.kind],
            )
        if self.settings.on_alarm == "shadow":
            self._in_shadow = True
        elif self.settings.on_alarm == "exit":
            self.leave(exit_code(alarms))


@dataclass
class Auditors:
    """One for each policy that promises anything; none without settings."""

    settings: AuditSettings | None
    metrics: Metrics
    leave: Callable[[int], None]
    """See `Auditor`."""
    _by_digest: dict[str, Auditor] = field(default_factory=dict)

    def of(self, policy: Policy) -> Auditor | None:
        """Return a policy's; a log has one writer, also when its policy comes back."""
        if self.settings is None or policy.kind != "stop":
            return None
        if policy.digest not in self._by_digest:
            auditor = Auditor(policy, self.settings, self.metrics, self.leave)
            self._by_digest[policy.digest] = auditor
        return self._by_digest[policy.digest]

    def shed(self) -> None:
        """Give up all audits under way: somebody waits for the place they take."""
        for auditor in self._by_digest.values():
            auditor.shed()

    async def drain(self, seconds: float) -> None:
        """Let audits end, and give up what takes longer."""
        for auditor in self._by_digest.values():
            await auditor.drain(seconds)

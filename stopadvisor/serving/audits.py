"""Audits: let a share of the stopped requests think on in the background, and compare."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stopadvisor.answers.normal_form import extract_natural, normalize
from stopadvisor.ground.errors import OutputError
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
"""Requests between updates of the exported figures."""


@dataclass(frozen=True)
class AuditedReply:
    """The reply to one covered request."""

    id: str
    """Assigned by the server."""
    stop: int | None
    """Thinking tokens at the stop, or the column of the reply that a ladder served; None for full
    thinking and for the reference's reply."""
    answer: str | None
    """The short answer extracted from the reply."""
    task: str
    tokens: int
    """All tokens decoded for it."""
    prompt_tokens: int | None
    """None if not reported."""
    first_logprob: float | None = None
    """Mean log-probability of the first forced answer, if it was requested."""


@dataclass(frozen=True)
class FullThinking:
    """The outcome of an audit."""

    text: str | None
    """The visible answer; None if thinking was cut off."""
    tokens: int
    """Tokens decoded for the audit."""
    cut: bool = False
    """Whether full thinking was cut off, by a limit that calibration had too."""


FinishTrace = Callable[[], Awaitable[FullThinking]]
"""Continues a stopped request to its end."""


@dataclass
class Auditor:
    """Logs every covered request of a policy, and audits a share of the stopped ones.

    A keyed hash of an id that the server assigns picks the requests: neither clients nor the policy
    can influence the choice.
    """

    policy: Policy
    settings: AuditSettings
    metrics: Metrics
    leave: Callable[[int], None]
    """With ``on_alarm="exit"``: ends the server with the exit code of the most severe alarm, when
    one is raised or, at start, still on."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """May change at each start: every request gets a fresh id."""
    _running: set[asyncio.Task[None]] = field(default_factory=set, repr=False)
    _acted: set[AlarmKind] = field(default_factory=set, repr=False)
    _seen: int = 0
    _in_shadow: bool = False

    def __post_init__(self) -> None:
        watched = watch_settings(self.policy, share=self.settings.share)
        self.log = AuditLog(self.settings.folder, watched, drift_reference(self.policy))
        for kind in ALARMS:  # a reset is seen even if the policy gets no more requests
            gauge = self.metrics.audit_alarm.labels(self.policy.digest[:8], kind)
            gauge.set_function(partial(self._is_on, kind))
        self._export()
        self._act_on_alarms()

    def served(self, reply: AuditedReply, finish: FinishTrace | None) -> None:
        """Log a request whose reply was sent, and start its audit in the background if picked.

        Needs a running event loop.  If the server is too busy for audits, `finish` is None, and a
        picked one is shed.
        """
        picked = self._picks(reply.id)
        share = {"share": self.settings.share} if picked else {}
        names = ("id", "stop", "tokens", "prompt_tokens")
        first = {} if reply.first_logprob is None else {"first_logprob": reply.first_logprob}
        self._write("request", **{n: getattr(reply, n) for n in names}, **first, **share)
        self._seen += 1
        if picked and reply.stop is not None:
            if finish is None or len(self._running) >= self.settings.at_once:
                self._log_shed(reply.id, "shed")
            else:
                task = asyncio.create_task(self._audit(reply, finish))
                self._running.add(task)
                task.add_done_callback(partial(self._ended, reply.id))
        if picked or self._seen % _SHOWN_EVERY == 0:
            self._export()
        self._act_on_alarms()

    def shed(self) -> None:
        """Cancel all running audits."""
        for task in self._running:
            task.cancel()

    def is_shadowed(self) -> bool:
        """Whether an alarm has switched the policy to shadow mode; `monitor --reset` ends that."""
        if self._in_shadow:
            self.log.take_in_resets()
            self._act_on_alarms()
            self._in_shadow = bool(self.log.monitor.alarms)
        return self._in_shadow

    async def drain(self, seconds: float) -> None:
        """Wait for running audits; cancel those that take longer."""
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _picks(self, request_id: str) -> bool:
        digest = hmac.digest(self.key, request_id.encode(), hashlib.sha256)
        return int.from_bytes(digest[:8], "big") < self.settings.share * 2**64

    async def _audit(self, reply: AuditedReply, finish: FinishTrace) -> None:
        try:
            thinking = await finish()
        except Exception as error:  # noqa: BLE001 - no request depends on it, and it is counted
            _log.warning("audit of %s failed: %s", reply.id, type(error).__name__)
            self._log_shed(reply.id, "failed")
            return
        # The loss `differs`: nothing equals an empty answer or a trace that was cut off.
        full = None if thinking.text is None else extract_natural(reply.task, thinking.text)
        served = normalize(reply.task, reply.answer or "")
        differs = not full or not served or served != normalize(reply.task, full)
        cut = {"cut": True} if thinking.cut else {}
        self._write("result", id=reply.id, differs=differs, tokens=thinking.tokens, **cut)
        self.metrics.audits.labels("differs" if differs else "equal").inc()
        self.metrics.audit_tokens.inc(thinking.tokens)
        self._export()
        self._act_on_alarms()

    def _ended(self, request_id: str, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if task.cancelled():  # perhaps before its first step
            self._log_shed(request_id, "shed")

    def _log_shed(self, request_id: str, why: str) -> None:
        self._write("shed", id=request_id)
        self.metrics.audits.labels(why).inc()

    def _write(self, kind: str, **fields: Any) -> None:
        """Write a record; log an error, but let no request fail."""
        try:
            self.log.write(kind, **fields)
        except OutputError as error:
            _log.error("%s", error)

    def _is_on(self, kind: AlarmKind) -> bool:
        self.log.take_in_resets()
        return kind in self.log.monitor.alarms

    def _export(self) -> None:
        monitor, metrics, digest = self.log.monitor, self.metrics, self.policy.digest[:8]
        for name, process in monitor.processes.items():
            metrics.audit_e_value.labels(digest, name).set(process.e_value)
            metrics.audit_change.labels(digest, name).set(process.detector)
        upper = monitor.upper_limit()
        metrics.audit_upper.labels(digest).set(1.0 if upper is None else upper)
        for kind in ALARMS:
            metrics.audit_alarm.labels(digest, kind).set(kind in monitor.alarms)

    def _act_on_alarms(self) -> None:
        """Act on each alarm once; after a reset it may be raised again."""
        alarms = self.log.monitor.alarms
        self._acted.intersection_update(alarms)
        new = [alarm for kind, alarm in alarms.items() if kind not in self._acted]
        if not new:
            return
        self._acted.update(alarms)
        self._export()
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
    """One auditor for each policy that can stop; none without settings."""

    settings: AuditSettings | None
    metrics: Metrics
    leave: Callable[[int], None]
    """See `Auditor`."""
    _by_digest: dict[str, Auditor] = field(default_factory=dict)

    def open(self, policies: Iterable[Policy]) -> None:
        """Open the logs of policies; one that was reloaded keeps its auditor."""
        for policy in policies:
            if self.settings and policy.kind == "stop" and policy.digest not in self._by_digest:
                auditor = Auditor(policy, self.settings, self.metrics, self.leave)
                self._by_digest[policy.digest] = auditor

    def of(self, policy: Policy) -> Auditor | None:
        """Return a policy's auditor, if it has one."""
        return self._by_digest.get(policy.digest)

    def is_shadowed(self, policy: Policy) -> bool:
        """Whether an alarm has switched a policy to shadow mode."""
        auditor = self.of(policy)
        return auditor is not None and auditor.is_shadowed()

    def shed(self) -> None:
        """Cancel all running audits, to make room for requests."""
        for auditor in self._by_digest.values():
            auditor.shed()

    async def drain(self, seconds: float) -> None:
        """Wait for running audits; cancel those that take longer."""
        await asyncio.gather(*(one.drain(seconds) for one in self._by_digest.values()))

"""The sheet of `monitor`: whether the promise holds, and how soon a breach would show."""

from __future__ import annotations

from datetime import UTC, datetime

from stopadvisor.report.sheet import Fact, Section, Sheet, Tone
from stopadvisor.report.words import listed, plural, share
from stopadvisor.serving.monitored import MonitoredPromise
from stopadvisor.serving.monitoring import MEANINGS, Alarm, AlarmKind

__all__ = ["monitor_sheet"]

_TONES: dict[str, Tone] = {"alarm": "bad", "no-alarm": "good", "no-audits": "doubtful"}

_DRIFT = {
    "stop": "where requests stop",
    "prompt_tokens": "the length of prompts",
    "first_logprob": "the first answer's confidence",
}


def monitor_sheet(result: MonitoredPromise) -> Sheet:
    """Return the sheet of `monitor`."""
    sections = []
    if result.alarms:
        sections.append(
            Section(
                texts=(
                    "An alarm stays on until somebody resets it by name (monitor --reset NAME), "
                    "which starts new tests. Until then serve with --shadow, or the policy that "
                    "was in use before (stopadvisor promote).",
                )
            )
        )
    if result.remarks:
        sections.append(Section("Remarks", texts=result.remarks))
    headline = "No alarm: no evidence against the promise so far."
    if result.verdict == "no-audits":
        headline = "Nothing was audited, so nothing can be said."
    elif result.alarm is not None:
        headline = _alarm_words(result.alarm)
    return Sheet(headline, _TONES[result.verdict], _facts(result), sections=tuple(sections))


def _facts(result: MonitoredPromise) -> tuple[Fact, ...]:
    rows = [("also", _alarm_words(alarm)) for alarm in result.alarms[1:]]
    rows.append(("promise", result.claim))
    for watch in result.watched:
        name = "promise" if watch.is_promise else "early warning"
        rows.append(
            (
                "evidence",
                f"{name}, at most {share(watch.limit)} of replies {_counted(watch.watch)}: "
                f"e-value {watch.e_value:.3g} (alarm at {1 / watch.delta:.4g}); change detector "
                f"{watch.detector:.3g} (alarm at {watch.change:,.0f})",
            )
        )
    rows.append(("false alarms", _false_alarms(result)))
    rows.append(
        (
            "requests",
            f"{result.requests}, {result.stopped} stopped; "
            f"{result.audits} audited ({share(result.share)} are picked)",
        )
    )
    differing = f"{result.differing} of {result.resolved} stopped and audited replies"
    if result.unresolved:
        differing += f"; {result.unresolved} have no result, {result.shed} were given up"
    rows.append(("differing", differing))
    if result.gold:
        rows.append(("gold", f"{plural(result.gold, 'audit')}, loss {result.gold_losses}"))
    limits = [
        f"at most {share(watch.upper)} {_counted(watch.watch)}"
        for watch in result.watched
        if watch.upper is not None and (watch.watch == "differs" or result.gold)
    ]
    if limits:
        rows.append(
            (
                "limit",
                f"of all replies {'; '.join(limits)} (at {100 * (1 - result.delta):g} % "
                "confidence, whenever you look, if the risk is constant; open audits count)",
            )
        )
    rows += [("delay", _delay(result)), ("cost", _cost(result)), ("drift", _drift(result))]
    return tuple(rows)


_NAMES: dict[AlarmKind, str] = {
    "promise": "ALARM",
    "early-warning": "EARLY WARNING",
    "change": "CHANGE",
}


def _alarm_words(alarm: Alarm) -> str:
    when = datetime.fromtimestamp(alarm.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{_NAMES[alarm.kind]}: {MEANINGS[alarm.kind]} (at request {alarm.request}, {when})."


def _counted(watch: str) -> str:
    return {"differs": "differ", "lost": "are lost", "drop": "are lost, net of gains"}[watch]


def _false_alarms(result: MonitoredPromise) -> str:
    names = "promise" if len(result.watched) == 1 else "promise or early warning"
    text = (
        f"{names}: ever in at most {share(result.delta)} of streams that stay within the "
        f"limit; change: after {result.change:,.0f} requests on average, or more. Each server "
        "watches its own log with these limits"
    )
    if result.replicas > 1:
        text += f"; the {result.replicas} logs read here count as one stream"
    if result.resets:
        text += "; each reset began a new stream, and figures here are since the last one"
    return text


def _delay(result: MonitoredPromise) -> str:
    def times(*, undropped: bool) -> str:
        parts = []
        for one in result.delay:
            requests = one.undropped if undropped else one.requests
            after = "perhaps never"
            if requests is not None:
                after = f"after about {float(f'{requests:.2g}'):,.0f} requests"
            parts.append(f"{ {2: 'twice', 3: 'three times'}[one.times] } the limit {after}")
        return ", ".join(parts)

    needs_gold = any(not watch.is_promise for watch in result.watched)
    text = f"a broken promise shows at {times(undropped=False)}"
    if needs_gold:
        text += ", with gold of every audited reply that differs"
    if result.dropped_share:
        text += (
            f"; {share(result.dropped_share)} of audits were given up, as if at random: without "
            f"that {times(undropped=True)}"
        )
    return text


def _cost(result: MonitoredPromise) -> str:
    decoded, audits = result.decoded_tokens, result.audit_tokens
    if not decoded:
        return "no tokens were counted"
    text = f"audits decoded {audits} tokens, {share(audits / decoded)} on top of {decoded} served"
    saved = result.saved_tokens
    if saved is not None:
        text += f"; stopping saved about {saved:.0f}, {share(saved / (decoded + saved))} "
        text += "(less what probes decoded; less on a ladder, whose audits ask for whole replies)"
    return text


def _drift(result: MonitoredPromise) -> str:
    changed = [f"{_DRIFT[n]} (request {at})" for n, at in result.drifted.items()]
    if changed:
        return f"the traffic changed: {', '.join(changed)}; that alone says nothing about the risk"
    if not result.drift:
        return "not watched: the policy has nothing to compare with"
    return f"no change seen in {listed([_DRIFT[name] for name in result.drift])}"

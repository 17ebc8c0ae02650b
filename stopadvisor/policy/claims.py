"""What a certificate claims: computed again from its counts, and worded from its fields.

Nothing in a file is believed for standing there: the exact test is repeated on the counts when a
policy is loaded, and the sentence that people read is made here, never taken from the file.
The exact test of a drop is repeated at a hundred shares of gained questions, where it says no as
often as the whole test does to within a thousandth.
Knows the certificate's fields and no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stopadvisor.errors import PolicyError
from stopadvisor.policy.values import to_plain
from stopadvisor.rules.losses import LOSSES, LOST
from stopadvisor.stats.trinomial import MOST_QUESTIONS, drop_passes

__all__ = ["binomial_tail", "check_certificate", "claim", "shown_certificate"]

_SLACK = 1e-3
"""Relative: another library's quantile, or one that was rounded to be read, is no lie."""

_LOST = {
    False: LOST.words,
    True: "of the questions that full thinking gets right, at most {alpha:g} % become wrong",
}
_LOST_OF_GROUPS = {
    False: "in at most {alpha:g} % of all groups the question drawn of it becomes wrong that full "
    "thinking gets right",
    True: "of all groups of which full thinking gets the question drawn right, it becomes wrong in "
    "at most {alpha:g} %",
}
"""With `certificate.group_claim`: one question of each group was counted."""

_FEW_LABELS = (
    " Few questions were labelled: a reply equal in normal form to the natural answer takes its "
    "grade, and what differs without a label counts as lost."
)
"""With `certificate.labelled`: how many calibration questions had gold."""


def claim(certificate: Mapping[str, Any], *, simulated: bool = False) -> str:
    """Word a certificate in one sentence, from its fields alone.

    Parameters
    ----------
    certificate : mapping
        With `alpha` and `delta`; `confidence`, `conditional`, `loss`, `group_claim`, `labelled`
        and `grader` where they are set.
    simulated : bool
        The probes come from the simulator, of which alone the claim holds.
    """
    # Looks that were not planned leave less than 1 - delta; a file cannot claim more than that.
    confidence = min(certificate.get("confidence", 1.0), 1 - certificate["delta"])
    of_groups = certificate.get("group_claim") == "groups"
    lost = (_LOST_OF_GROUPS if of_groups else _LOST)[certificate.get("conditional") is True]
    several = certificate.get("guarantees") or [certificate]
    said = [_words(each, lost) for each in several]
    words = said[0] if len(said) == 1 else "all of this holds at once: " + "; ".join(said)
    if of_groups and words != lost.format(alpha=100 * certificate["alpha"]):
        words += ", of each group one question counted"
    drawn = "groups" if of_groups else "questions"
    text = (
        f"With confidence {100 * confidence:.10g} % over the draw of the calibration "
        f"questions, {words}; for independent "
        f"{drawn} from this traffic, under this decoding and this cap."
    )
    if "labelled" in certificate:
        text += _FEW_LABELS
    losses = (LOSSES[str(each.get("loss", LOST.name))] for each in several)
    if "grader" in certificate and any(loss.needs_gold for loss in losses):
        function = certificate["grader"]
        text += (
            f" What is right was decided by {function['name']} (SHA-256 "
            f"{function['sha256'][:12]}), not by comparison with gold."
        )
    return text + " The probes are simulated: it holds for the simulator alone." * simulated


def shown_certificate(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """A policy's certificate with the claim in words; None of a policy that never stops."""
    if content["certificate"] is None:
        return None
    engine = content["engine"]
    simulated = engine is not None and engine["name"] == "simulated"
    certificate: dict[str, Any] = to_plain(content["certificate"])
    return {**certificate, "claim": claim(certificate, simulated=simulated)}


def _words(limited: Mapping[str, Any], lost: str) -> str:
    """One limit in words; of a category it says of which."""
    name = str(limited.get("loss", LOST.name))
    words = lost if name == LOST.name else LOSSES[name].words
    among = limited.get("category")
    text = words.format(alpha=100 * limited["alpha"])
    return text if among is None else f"in category {among!r} {text}"


def binomial_tail(k: int, n: int, p: float) -> float:
    """Chance of at most `k` successes in `n` trials of chance `p`.

    Summed from near its largest term down, in logarithms, until terms no longer count: exact to
    about 1e-10 relative for any size that a policy may hold, in a few thousand terms at most.
    """
    if k >= n or p <= 0:
        return 1.0
    if k < 0 or p >= 1:
        return 0.0
    start = min(k, int(n * p))
    log_odds = math.log(p) - math.log1p(-p)
    log_start = (
        math.lgamma(n + 1) - math.lgamma(start + 1) - math.lgamma(n - start + 1)
        + start * math.log(p) + (n - start) * math.log1p(-p)
    )  # fmt: skip
    terms = [1.0]
    odds = math.exp(log_odds)
    term = 1.0
    for j in range(start, 0, -1):
        term *= j / ((n - j + 1) * odds)
        if term < 1e-18:
            break
        terms.append(term)
    term = 1.0
    for j in range(start, k):
        term *= (n - j) * odds / (j + 1)
        if term < 1e-18:
            break
        terms.append(term)
    return min(1.0, math.exp(log_start) * math.fsum(terms))


_MOST_QUESTIONS = 10_000_000
_DROP_SLACK = 4e-4
"""Absolute, of the limit of a drop: it is found by halving."""


def check_certificate(content: Mapping[str, Any]) -> None:
    """Repeat the exact test on the counts of a checked content.

    `upper` belongs to the share of `delta` that its sequence was tested at (`chain_delta`).  Of
    several limits each is held to its own counts.

    Raises
    ------
    PolicyError
        The counts do not certify `alpha`, or do not give `upper`.
    """
    certificate = content["certificate"]
    if certificate is None:
        return
    _check_limit(certificate)
    several = certificate.get("guarantees")
    if several is None:
        return
    first = {
        "loss": certificate.get("loss", LOST.name),
        "lost": certificate["losses"],
        "gained": certificate.get("gained", 0),
        "category": None,
    }
    first |= {name: certificate[name] for name in ("alpha", "n", "upper")}
    if several[0] != first:
        raise PolicyError(
            "field 'certificate.guarantees': expected the certificate's own limit first, got "
            f"{str(several[0])[:80]}"
        )
    for each in several[1:]:
        _check_limit({**certificate, **each, "losses": each["lost"]})


def _check_limit(certificate: Mapping[str, Any]) -> None:
    """One limit, by its own counts."""
    alpha, upper, n, losses = (certificate[k] for k in ("alpha", "upper", "n", "losses"))
    if n > _MOST_QUESTIONS:
        raise PolicyError(f"field 'certificate.n': expected at most {_MOST_QUESTIONS}, got {n}")
    if upper > alpha * (1 + _SLACK):
        raise PolicyError(
            f"field 'certificate.upper': expected at most alpha ({alpha!r}), got {upper!r}"
        )
    delta = _chain_delta(certificate)
    if not LOSSES[certificate.get("loss", LOST.name)].is_binary:
        _check_drop(certificate, delta)
        return
    if binomial_tail(losses, n, alpha * (1 + _SLACK)) > delta:
        raise PolicyError(
            f"field 'certificate.losses': {losses} of {n} lost do not certify alpha {alpha!r} at "
            f"delta {delta!r}: the exact test gives {binomial_tail(losses, n, alpha):.4g}"
        )
    # The limit is where the p-value is delta; it falls as the share grows.
    low, high = upper * (1 - _SLACK), upper * (1 + _SLACK)
    if not binomial_tail(losses, n, high) <= delta <= binomial_tail(losses, n, low):
        raise PolicyError(
            f"field 'certificate.upper': {losses} of {n} lost do not give {upper!r} as the exact "
            f"limit at delta {delta!r}"
        )


def _check_drop(certificate: Mapping[str, Any], delta: float) -> None:
    n, lost, gained = certificate["n"], certificate["losses"], certificate.get("gained", 0)
    if n > MOST_QUESTIONS:
        raise PolicyError(
            f"field 'certificate.n': expected at most {MOST_QUESTIONS} beside a drop, got {n}"
        )
    for name, limit in (("alpha", certificate["alpha"]), ("upper", certificate["upper"])):
        at = min(limit * (1 + _SLACK) + _DROP_SLACK, 0.9999)
        if not drop_passes(lost, gained, n, at, delta, quick=True):
            raise PolicyError(
                f"field 'certificate.{name}': {lost} lost and {gained} gained of {n} do not show "
                f"a drop of at most {limit!r} at delta {delta!r} by the exact test"
            )


def _chain_delta(certificate: Mapping[str, Any]) -> float:
    """Error probability of the tests of one rule."""
    delta = certificate.get("chain_delta", certificate["delta"])
    if type(delta) is not float or not 0 < delta <= certificate["delta"]:
        raise PolicyError(
            "field 'certificate.chain_delta': expected a float above 0 and at most delta "
            f"({certificate['delta']!r}), got {str(delta)[:40]}"
        )
    return delta

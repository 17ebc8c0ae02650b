"""What fresh questions say about each limit of a certificate, one after the other.

Takes questions at the probes of the rule and where each stops; knows no policy file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stopadvisor.assessment.limits import Shares, counted_rows
from stopadvisor.certification.verdicts import Evidence, Verdict, of_drop, of_pairs, of_questions
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.errors import PolicyError
from stopadvisor.probes.outcomes import GradedTable
from stopadvisor.rules.losses import Guarantee, Loss, loss_of
from stopadvisor.rules.scorer import Scorer

__all__ = ["LimitVerdict", "limit_verdicts", "of_values"]


@dataclass(frozen=True)
class LimitVerdict:
    """What fresh questions say about one of several limits."""

    loss: str
    """What is limited: `lost`, `differs` or `drop`."""
    alpha: float
    """To which share."""
    category: str | None
    """Of whose questions alone; null for all."""
    n: int
    """Fresh questions that were counted."""
    lost: int
    """Of these, how many count 1; with two traces a question, how many replies."""
    gained: int
    """Of these, how many count -1; only of a drop."""
    lower: float
    """One-sided limit below."""
    upper: float
    """One-sided limit above."""
    verdict: Verdict
    """`confirmed`, `contradicted` (at its share of delta) or `silent`, by itself."""


def of_values(
    loss: Loss,
    values: IntArray,
    alpha: float,
    delta: float,
    expected: float,
    counts: Mapping[str, Any],
) -> Evidence:
    """Evidence of single questions about one limit; `counts` are calibration's.

    Parameters
    ----------
    values : ndarray of int, shape (n_traces, n_questions)
        What each counts.
    """
    n = values.shape[1]
    if len(values) == 2:
        # One trace does not say how often two are lost together: at worst always.
        shares = Shares(expected, 1 - expected)
        if counts.get("both") is not None:
            shares = Shares(counts["both"] / counts["n"], counts["none"] / counts["n"])
        both, none = (values > 0).all(axis=0), (values <= 0).all(axis=0)
        return of_pairs(int(both.sum()), int(none.sum()), n, alpha, delta, shares)
    lost, gained = int((values > 0).sum()), int((values < 0).sum())
    if loss.is_binary:
        return of_questions(lost, n, alpha, delta, expected)
    before = counts["n"]
    shares = Shares(counts["losses"] / before, counts.get("gained", 0) / before)
    return of_drop(lost, gained, n, alpha, delta, shares)


def limit_verdicts(
    content: Mapping[str, Any],
    scorer: Scorer,
    probed: GradedTable,
    stops: IntArray,
    delta: float,
    traces: int = 1,
) -> tuple[LimitVerdict, ...]:
    """Each of several limits by itself; `probed` holds first traces, then second ones."""
    several = content["certificate"].get("guarantees", ())
    found = []
    for each in several:
        loss, alpha, category = loss_of(each), each["alpha"], each["category"]
        rows = counted_rows(probed, Guarantee(loss.name, alpha, category))
        if traces == 2 and not loss.is_binary:
            rows = rows[: rows.size // 2]
        values = scorer.losses(probed, loss)[rows, stops[rows]]
        values = values.reshape(traces if loss.is_binary else 1, -1)
        if not rows.size:
            raise PolicyError(
                f"the certificate limits category {category!r}, and no fresh question is of it"
            )

        def at(
            level: float,
            values: IntArray = values,
            loss: Loss = loss,
            each: Mapping[str, Any] = each,
        ) -> Evidence:
            expected = each["lost"] / each["n"] / (1 if each.get("both") is None else 2)
            counts = {**each, "losses": each["lost"]}
            return of_values(loss, values, each["alpha"], level, expected, counts)

        alone, shared = at(delta), at(delta / len(several))
        verdict: Verdict = "confirmed" if alone.verdict == "confirmed" else "silent"
        found.append(
            LimitVerdict(
                loss.name,
                alpha,
                category,
                values.shape[1],
                int((values > 0).sum()),
                int((values < 0).sum()),
                alone.lower,
                alone.upper,
                "contradicted" if shared.verdict == "contradicted" else verdict,
            )
        )
    return tuple(found)

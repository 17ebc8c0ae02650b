"""What stands next to each picture: its title and a sentence with its numbers.

Takes an assessment and its figures as they are; formats no page.
"""

from __future__ import annotations

from dataclasses import dataclass

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.frontier import AlphaSavings
from stopadvisor.policy.shown import promised
from stopadvisor.report.saved import FrontierFigure
from stopadvisor.report.words import alpha_of, by_load, percent, share
from stopadvisor.rules.families import rule_name

__all__ = [
    "CACHED_PRICES", "Caption", "alpha_caption", "frontier_caption", "prices_caption",
    "saving_by_cached_price",
]  # fmt: skip

CACHED_PRICES = (0.0, 0.001, 0.01, 0.1, 1.0)
"""Of a token, in decoded ones, at which the saving is shown; an API's bill often says 0.1."""


@dataclass(frozen=True)
class Caption:
    """The words of one picture."""

    name: str
    """Its id in the page."""
    title: str
    sentence: str
    """What one sees, with its numbers: also the text alternative of the picture."""


def frontier_caption(run: AssessedRun, figure: FrontierFigure) -> Caption:
    """Accuracy against cost."""
    climbs = run.rungs is not None
    full, whole = share(run.fit_full_accuracy), "the reference" if climbs else "full thinking"
    sentence = f"No point is advised: {whole} is right on {full} at 100% of the cost."
    if figure.chosen is not None:
        name, cost, accuracy = figure.chosen
        sentence = (
            f"At the advised point ({name}) {percent(cost)} of the cost gives an accuracy of "
            f"{share(accuracy)}; {whole} gives {full}"
        )
        if climbs:
            sentence += ". Squares are one rung for everybody"
            if run.given_up_share is not None:
                sentence += f"; {share(run.given_up_share)} of the questions are given up"
        elif figure.fixed_at_chosen is not None:
            sentence += f", one fixed budget at the same cost {share(figure.fixed_at_chosen)}"
        sentence += "."
    return Caption(
        "frontier", "Accuracy against cost", f"{sentence} Higher and further left is better."
    )


def saving_by_cached_price(run: AssessedRun) -> dict[float, float]:
    """Net saving of the rule that is priced, in percent, by the price of a cached token.

    The price is a share of a decoded token's; empty where no price would end the saving.
    """
    prices, cost = run.serving.prices, run.serving.by_stack.get(run.recommendation.serving)
    if cost is None or cost.saving_pct is None or cost.break_even_cached_price is None:
        return {}
    here, turn = (p / prices.decoded for p in (prices.cached, cost.break_even_cached_price))
    if turn <= here:
        return {}
    # Full thinking reads nothing from a cache, so that the saving falls along a line.
    fall = cost.saving_pct / (turn - here)
    return {at: fall * (turn - at) for at in sorted({*CACHED_PRICES, here, turn})}


def prices_caption(run: AssessedRun) -> Caption | None:
    """Net saving by load and by the price of a cached token; None where neither is known."""
    loads, cached = by_load(run), saving_by_cached_price(run)
    if not (loads or cached) or run.rungs is not None:
        return None
    parts = []
    if loads:
        parts.append(f"The advised rule saves {loads} requests in flight")
    if cached:
        turn = min(cached, key=lambda at: abs(cached[at]))
        parts.append(f"It saves nothing once a cached token costs {turn:.2g} decoded ones")
    parts.append("At other prices another rule may save more.")
    return Caption("prices", "What other loads and prices would save", ". ".join(parts))


def alpha_caption(run: AssessedRun, figure: AlphaSavings) -> Caption:
    """Saving by promise."""
    alpha, found = alpha_of(run), []
    for name, savings in figure.savings.items():
        by_alpha = dict(zip(figure.alphas, savings, strict=True))
        here = by_alpha[alpha]
        first = next((a for a, s in by_alpha.items() if s is not None and s > 0), None)
        text = f"{rule_name(name)} saves {'nothing' if here is None else percent(here)}"
        if first is not None and first < alpha:
            text += f" (the first saving comes at {share(first)})"
        found.append(text)
    return Caption(
        "alpha",
        "What a stricter promise costs",
        f"Where at most {promised(alpha)} may be lost, {'; '.join(found)}. Each promise has the "
        "rule chosen for it, at the last threshold that the calibration questions could still "
        "certify.",
    )

"""What stands next to each picture: its title, a sentence, and its numbers as a table.

Takes documents and the data of figures, returns words and `Table` values as computed; formats no
page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stopadvisor.assessment.diagnostics import Curve
from stopadvisor.policy.promises import MEANINGS, promised
from stopadvisor.report.figures.data import (
    AlphaFigure,
    CheckpointFigure,
    FrontierFigure,
    RiskFigure,
)
from stopadvisor.report.words import by_load, by_stack, kind_points, listed, percent, share
from stopadvisor.rules.families import RUNG_FAMILIES, rule_name
from stopadvisor.runs.sources import considered_alpha
from stopadvisor.studies.tables import Cell, Column, Table

__all__ = [
    "CACHED_PRICES",
    "Caption",
    "alpha_caption",
    "checkpoint_caption",
    "frontier_caption",
    "kinds_caption",
    "prices_caption",
    "profile_caption",
    "risk_caption",
    "saving_by_cached_price",
]

Document = Mapping[str, Any]

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
    basis: str
    """Whose questions these are."""
    table: Table | None = None
    """Its numbers, where no table of the sheet holds them."""


# --- From documents -------------------------------------------------------------------------------


def profile_caption(document: Document) -> Caption:
    """The five-way profile."""
    profile = document["profile"]
    total = sum(row["count"] for row in profile.values())
    shares = {name: share(row["share"]) for name, row in profile.items()}
    along, place = "their thinking", "checkpoint"
    if "rungs" in document:
        along, place = "the ladder", "rung"
    return Caption(
        "profile",
        f"How questions behave along {along}",
        f"{shares['early_solved']} are right at the first {place} and at the end, "
        f"{shares['beneficial']} become right once and stay so, {shares['oscillating']} change "
        f"sides again and again, {shares['harmful']} were right somewhere and end wrong, "
        f"{shares['unsolved']} are never right.",
        f"{total} fit questions",
    )


def kinds_caption(document: Document) -> Caption | None:
    """The best rule of each kind at the same risk; None where there is none."""
    points = kind_points(document)
    if not points:
        return None
    said = [
        f"{percent(p['fit_total_saving_pct'])} by {rule_name(p['family'])}"
        for p in points
        if p["feasible"]
    ]
    return Caption(
        "kinds",
        "What each kind of rule saves at the same risk",
        f"Where at most {promised(considered_alpha(document))} may be lost, the best rules save "
        f"{listed(said) if said else 'nothing'}. Lighter bars leave out the traces that were cut "
        "off: such a trace cannot be lost, and much of what a fixed budget saves comes from there.",
        f"{document['split']['fit']} fit questions, out of fold",
    )


def saving_by_cached_price(document: Document) -> dict[float, float]:
    """Net saving of the rule that is priced, in percent, by the price of a cached token.

    The price is a share of a decoded token's; empty where no price would end the saving.
    """
    prices = document["serving"].get("prices")
    row = by_stack(document).get(document["recommendation"]["serving"])
    if prices is None or row is None or row["break_even_cached_price"] is None:
        return {}
    here, turn = (p / prices["decoded"] for p in (prices["cached"], row["break_even_cached_price"]))
    if turn <= here:
        return {}
    # Full thinking reads nothing from a cache, so that the saving falls along a line.
    fall = row["saving_pct"] / (turn - here)
    return {at: fall * (turn - at) for at in sorted({*CACHED_PRICES, here, turn})}


def prices_caption(document: Document) -> Caption | None:
    """Net saving by load and by the price of a cached token; None where neither is known."""
    loads, cached = document["serving"].get("by_load") or (), saving_by_cached_price(document)
    if not (loads or cached) or "rungs" in document:
        return None
    parts = []
    if loads:
        parts.append(f"The advised rule saves {by_load(document)} requests in flight")
    if cached:
        turn = min(cached, key=lambda at: abs(cached[at]))
        parts.append(f"It saves nothing once a cached token costs {turn:.2g} decoded ones")
    rows = [("requests in flight", row["in_flight"], row["saving_pct"]) for row in loads]
    rows += [("decoded tokens a cached one costs", at, saving) for at, saving in cached.items()]
    return Caption(
        "prices",
        "What other loads and prices would save",
        ". ".join(parts) + ". At other prices another rule may save more.",
        str(document["serving"]["operating_point"]),
        Table(
            "prices",
            "Saving by load and by the price of a cached token",
            (Column("of", "of"), Column("value", "value"), Column("saving_pct", "saving", "%")),
            tuple(rows),
        ),
    )


# --- From figures --------------------------------------------------------------------------------


def frontier_caption(data: FrontierFigure) -> Caption:
    """Accuracy against cost."""
    full, whole = share(data.full_accuracy), "the reference" if data.climbs else "full thinking"
    if data.chosen is None:
        sentence = f"No point is advised: {whole} is right on {full} at 100% of the cost."
    else:
        name, cost, accuracy = data.chosen
        sentence = (
            f"At the {data.chosen_name} ({name}) {percent(cost)} of the cost gives an accuracy "
            f"of {share(accuracy)}; {whole} gives {full}"
        )
        if data.climbs:
            sentence += ". Squares are one rung for everybody"
        elif data.fixed_at_chosen is not None:
            sentence += f", one fixed budget at the same cost {share(data.fixed_at_chosen)}"
        sentence += "."
    curves = (*data.rules, data.fixed)
    return Caption(
        "frontier",
        "Accuracy against cost",
        sentence + " Higher and further left is better.",
        data.basis,
        Table(
            "frontier",
            f"Accuracy against {data.cost_of}",
            (
                Column("rule", "rule"),
                Column("at", "threshold or budget"),
                Column("cost_pct", "cost", "%"),
                Column("accuracy", "accuracy", "share"),
            ),
            tuple(row for curve in curves for row in _curve_rows(curve)),
        ),
    )


def _curve_rows(curve: Curve) -> list[tuple[Cell, ...]]:
    """The points that lie a whole percent from the one before, in cost or in accuracy."""
    rows: list[tuple[Cell, ...]] = []
    last: tuple[int, int] | None = None
    for at, cost, accuracy in zip(curve.at, curve.cost, curve.accuracy, strict=True):
        here = (round(cost), round(100 * accuracy))
        if here != last:
            rows.append((curve.name, at, cost, accuracy))
        last = here
    return rows


def risk_caption(data: RiskFigure) -> Caption:
    """Lost-correct risk along the thresholds."""
    parts, (counted, meaning) = [], MEANINGS[data.loss]
    if data.family in RUNG_FAMILIES:
        meaning = meaning.replace("full thinking", "the reference")
        meaning = meaning.replace("the early answer", "the cheaper reply")
    shown = data.observed if data.observed is not None else data.expected
    if data.marked is not None and shown is not None:
        at, lost = data.thresholds[data.marked] or 0.0, shown[data.marked] or 0.0
        parts.append(
            f"At the {data.marked_name} threshold of {at:.4g}, {share(lost)} {counted} "
            f"({round(lost * data.n)} of {data.n})"
        )
    else:
        parts.append("No threshold is advised or exported")
    parts.append(f"the promise allows {promised(data.alpha)}")
    if data.limit is not None:
        parts.append(f"{share(data.limit)} is the {data.limit_name}")
    empty = (None,) * len(data.thresholds)
    at_thresholds: list[Cell] = list(data.thresholds)
    if data.first_stops_none:
        at_thresholds[0] = "none stops by it"
    columns = (at_thresholds, *(v or empty for v in (data.expected, data.observed, data.upper)))
    return Caption(
        "risk",
        "What a lower threshold loses",
        f"{'; '.join(parts)}. {meaning}",
        data.basis,
        Table(
            "risk",
            f"Risk along the thresholds of {data.family}, careful ones first",
            (
                Column("threshold", "threshold"),
                Column("fit_risk", "lost, fit", "share"),
                Column("calibration_risk", "lost, calibration", "share"),
                Column("upper_limit", "upper limit", "share"),
            ),
            tuple(zip(*columns, strict=True)),
        ),
    )


def alpha_caption(data: AlphaFigure) -> Caption:
    """Saving by risk target."""
    at = data.alphas.index(data.alpha)
    found = []
    for name, savings in data.savings.items():
        here = savings[at]
        first = next(
            (a for a, s in zip(data.alphas, savings, strict=True) if s is not None and s > 0), None
        )
        text = f"{rule_name(name)} saves {'nothing' if here is None else percent(here)}"
        if first is not None and first < data.alpha:
            text += f" (the first saving comes at {share(first)})"
        found.append(text)
    columns: dict[Column, Sequence[Cell]] = {Column("alpha", "may be lost"): data.alphas}
    for name, savings in data.savings.items():
        columns[Column(f"{name.replace(' ', '_')}_saving_pct", f"{name}, saving", "%")] = savings
    sentence = f"Where at most {promised(data.alpha)} may be lost, {'; '.join(found)}."
    sentence += (
        " Each promise has the rule chosen for it, at the last threshold that the calibration "
        "questions could still certify."
    )
    columns[Column("chance", "probability to certify", "chance")] = data.probabilities
    return Caption(
        "alpha",
        "What a stricter promise costs",
        sentence,
        data.basis,
        Table(
            "alpha",
            "Saving by what may be lost",
            tuple(columns),
            tuple(zip(*columns.values(), strict=True)),
        ),
    )


def checkpoint_caption(figure: CheckpointFigure) -> Caption:
    """Accuracy by checkpoint."""
    data = figure.data
    middle = len(data.budgets) // 2
    return Caption(
        "checkpoints",
        "Accuracy at each checkpoint",
        f"Stopping everything at {data.budgets[0]} thinking tokens is right on "
        f"{share(data.accuracy[0])}, at {data.budgets[middle]} on "
        f"{share(data.accuracy[middle])}, at {data.budgets[-1]} on "
        f"{share(data.accuracy[-1])}; full thinking on {share(data.full_accuracy)}. At "
        f"{data.budgets[middle]} tokens {share(data.thinking[middle])} are still thinking.",
        figure.basis,
        Table(
            "checkpoints",
            "Accuracy and traces by checkpoint",
            (
                Column("budget", "budget", "tokens"),
                Column("accuracy", "right if stopped", "share"),
                Column("thinking", "still thinking", "share"),
            ),
            tuple(zip(data.budgets, data.accuracy, data.thinking, strict=True)),
        ),
    )

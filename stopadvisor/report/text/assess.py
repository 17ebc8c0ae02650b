"""An assessment for people: what to do first, then the tables it rests on.

Reads the document that ``assessment.json`` holds, so that screen and file say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from stopadvisor.assessment.recommendation import FIXED, LABELS, probability_words
from stopadvisor.report.documents.assess import matched_points
from stopadvisor.report.text.screen import Screen
from stopadvisor.report.words import (
    advised_point,
    beside,
    favoured,
    in_unit,
    interval,
    listed,
    number,
    percent,
    reason,
    risk_difference,
    rule_headline,
    saved,
    share,
    shell_quote,
)

__all__ = ["PAPER_FLAW", "show_assessment", "show_label_savings"]

Document = Mapping[str, Any]

PAPER_FLAW = (
    "Paper protocol: it reproduces the published analysis and is flawed as advice. Its intervals "
    "keep thresholds frozen, which tells two equal families apart far more often than the 5 % "
    "they stand for, and its profile opens every question. Act on --protocol deploy."
)
_ORDER = ("early_solved", "beneficial", "harmful", "unsolved", "oscillating")


def show_assessment(document: Document, out: TextIO) -> None:
    """Print what `assess` found."""
    screen = Screen(out)
    paper = document["protocol"] == "paper"
    advice = document["recommendation"]
    stops = advice["policy"] != "full-budget"
    screen.headline(_headline(advice), "good" if stops else "doubtful")
    screen.facts(_paper_facts(document) if paper else _facts(document))
    run = shell_quote(document["run"])
    if paper:
        screen.command(f"stopadvisor assess {run} --alpha {document['alpha']:g}")
    elif stops:
        screen.command(f"stopadvisor calibrate {run} --alpha {document['alpha']:g}")
    if paper:
        screen.items("Read this first", [PAPER_FLAW])
    _profile(screen, document)
    _matched_risk(screen, document)
    show_label_savings(screen, document.get("label_savings", []))
    _serving(screen, document)
    screen.items("Why", advice["reasons"])


def _headline(advice: Document) -> str:
    if advice["policy"] == "full-budget":
        return "Keep the full thinking budget: do not stop early."
    return rule_headline(advice["family"], advice.get("where"))


def _facts(document: Document) -> list[tuple[str, str]]:
    advice, split = document["recommendation"], document["split"]
    point = advised_point(document)
    rows = [("why", reason(advice))]
    if point is not None:
        rows += [
            ("asks", advice["where"]),
            (
                "saves",
                f"{_measured(document)}"
                f"{percent(point['fit_total_saving_pct'])} of the cost under {advice['serving']}"
                f"{in_unit(document['settings']['weights'])} "
                f"(at least {percent(document['fit_saving_lower_pct'])}, one-sided 95 %; "
                f"{percent(point['fit_uncut_saving_pct'])} on traces that were not cut off); "
                f"{percent(point['fit_think_saving_pct'])} of the thinking{_beside(document)}",
            ),
            (
                "may lose",
                f"an estimated {share(point['fit_risk'])} of all questions; accuracy "
                f"{share(document['fit_full_accuracy'])} -> {share(point['fit_accuracy'])}",
            ),
        ]
        rows += [
            ("or", row.removeprefix(FIXED)) for row in advice["reasons"] if row.startswith(FIXED)
        ]
        rows.append(
            (
                "certain",
                f"not yet: run calibrate to certify that at most {share(document['alpha'])} are "
                f"lost; estimated chance {probability_words(document['chance_to_certify'])}",
            )
        )
    else:
        rows.append(("saves", "nothing, and loses nothing: serve without probes, as you do now"))
    rows += [
        ("labels", row.removeprefix(LABELS)) for row in advice["reasons"] if row.startswith(LABELS)
    ]
    if document["workload"].get("on_stop") == "answer":
        text = "thinking is closed and the model writes its visible answer"
        if point is not None and point["feasible"]:
            text += f"; {percent(point['fit_answer_saving_pct'])} of its tokens saved"
        rows.append(("on stop", text))
    if server := document.get("server"):
        regime = server["regime"] or "serving regime unknown"
        rows.append(("server", f"{regime}, as measured: {server['reason']}"))
    rows.append(
        (
            "based on",
            f"{split['fit']} fit questions of {document['workload']['n_questions']}; "
            f"{split['calibration']} for calibration and {split['test']} for test stay closed",
        )
    )
    return rows


def _measured(document: Document) -> str:
    """The saving on the server as it was measured, first of all where another stack was asked for.

    Costs are those of the measured server anyway where nobody asked for others.
    """
    regime = (document.get("server") or {}).get("regime")
    if regime in (None, document["recommendation"]["serving"]):
        return ""
    saving = document["serving"].get(regime, {}).get("saving_pct")
    if saving is None:
        return ""
    return f"under {regime}, as this server was measured, {saved(saving)}; "


def _beside(document: Document) -> str:
    if _measured(document):
        return ""
    rows = {k: row["saving_pct"] for k, row in document["serving"].items() if isinstance(row, dict)}
    return beside(rows, document["recommendation"]["serving"])


def _paper_facts(document: Document) -> list[tuple[str, str]]:
    advice, split = document["recommendation"], document["split"]
    point = advised_point(document)
    rows = [("why", reason(advice))]
    if point is not None:
        rows += [
            (
                "saves",
                f"{percent(point['total_saving_pct'])} of all tokens, "
                f"{percent(point['think_saving_pct'])} of the thinking (test questions)",
            ),
            (
                "may lose",
                f"{share(point['test_risk'])} of test questions were lost; accuracy "
                f"{share(point['test_accuracy'])}, full thinking "
                f"{share(document['full_accuracy'])} of all questions",
            ),
        ]
    rows.append(
        ("based on", f"{split['calibration']} calibration and {split['test']} test questions")
    )
    return rows


# --- Tables ---------------------------------------------------------------------------------------


def _profile(screen: Screen, document: Document) -> None:
    regime, profile = document["regime"], document["profile"]
    total = sum(row["count"] for row in profile.values())
    screen.table(
        f"How {total} {'' if regime['basis'] == 'all' else 'fit '}questions behave: the mix "
        f"favours {favoured(regime['predicted'])}",
        ("", "count", "share", "95 % interval", ""),
        [
            (
                name.replace("_", " "),
                str(profile[name]["count"]),
                share(profile[name]["share"]),
                interval(profile[name]["ci95"], 100),
                screen.bar(profile[name]["share"]),
            )
            for name in _ORDER
        ],
    )


def _matched_risk(screen: Screen, document: Document) -> None:
    if document["protocol"] == "paper":
        screen.table(
            "Rules of each kind at equal risk (test questions)",
            ("alpha", "kind", "rule", "threshold", "risk", "accuracy", "saving"),
            [
                (f"{point['alpha']:g}", point["side"], *_at_risk(point))
                for point in matched_points(document)
            ],
            left=3,
        )
    else:
        screen.table(
            "The best rules of each kind at equal risk (fit questions)",
            ("rule", "threshold", "risk", "accuracy", "saving", "expected"),
            # One rule may be the best of two kinds.
            dict.fromkeys(
                (*_at_risk(point), percent(point["expected_saving_pct"]))
                for point in matched_points(document)
            ),
        )
        screen.text("expected: what calibration is expected to certify, on average")
    for row in document["matched_risk"]:
        if row["delta_saving_pp"] is not None:
            screen.text(f"alpha {row['alpha']:g}: {row['verdict']}: {risk_difference(row)}")


def _at_risk(point: Document) -> tuple[str, ...]:
    return (
        point["family"],
        number(point["threshold"]),
        share(point["risk"]) if point["feasible"] else "not feasible",
        share(point["accuracy"]),
        percent(point["total_saving_pct"]),
    )


def show_label_savings(screen: Screen, rows: Sequence[Document]) -> None:
    """The table of savings by labels; nothing where there are none."""
    if not rows:
        return
    screen.table(
        "What more labels would buy (expected net saving; imitated calibrations)",
        ("labels", "of them for calibration", "saving", ""),
        [
            (
                str(row["labels"]),
                str(row["calibration"]),
                percent(row["saving_pct"]),
                "here" if row["is_here"] else "",
            )
            for row in rows
        ],
        left=0,
    )


def _serving(screen: Screen, document: Document) -> None:
    serving, asked = document["serving"], document["recommendation"]["serving"]
    if serving["operating_point"] is None:
        return
    named = {name: row for name, row in serving.items() if name != "operating_point"}
    if document["protocol"] == "paper":
        screen.table(
            "Net saving by serving stack",
            ("", "saving", ""),
            [
                (name, percent(row["saving_pct"]), "asked for" if name == asked else "")
                for name, row in named.items()
            ],
        )
        screen.text(serving["operating_point"])
        return
    priced = any(row["money_per_1000"] for row in named.values())
    screen.table(
        f"Net saving of the rule chosen for {asked} (*), on each serving stack",
        (
            "",
            "saving",
            *(("per 1000",) if priced else ()),
            "probes",
            "break-even\nprobes",
            "break-even\ncached",
        ),
        [
            (
                f"{name} *" if name == asked else name,
                percent(row["saving_pct"]),
                *((number(row["money_per_1000"]["policy"]),) if priced else ()),
                f"{row['probes']:.2f}",
                _decimals(row["break_even_probes"], 2),
                _decimals(row["break_even_cached_price"], 3),
            )
            for name, row in named.items()
        ],
    )
    screen.text(serving["operating_point"])
    unit = document["settings"]["weights"]["unit"]
    others = listed([name for name in named if name != asked])
    screen.text(
        f"For {others} another rule may save more: assess with --serving. Break-even: with that "
        "many probes per request, each at its cost here, or at that price of a cached token "
        f"({unit}), stopping saves nothing."
    )
    if priced:
        full = next(row["money_per_1000"]["full"] for row in named.values())
        screen.text(f"Full thinking costs {full:.4g} per 1000 requests.")


def _decimals(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"

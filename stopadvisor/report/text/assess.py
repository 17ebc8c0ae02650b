"""An assessment for people: what to do first, then the tables it rests on.

Reads the document that ``assessment.json`` holds, so that screen and file say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from stopadvisor.assessment.recommendation import FIXED, LABELS, probability_words
from stopadvisor.policy.promises import promise_of
from stopadvisor.report.documents.assess import matched_points
from stopadvisor.report.headline import (
    Effect,
    accuracy_words,
    answers_label,
    assessed_effect,
    other_stacks,
    saving_words,
)
from stopadvisor.report.screen import Screen
from stopadvisor.report.words import (
    COMMON_STACK,
    KINDS_OF_QUESTION,
    advised_point,
    by_load,
    by_stack,
    computed_for,
    explained,
    favoured,
    interval,
    kind_of_rule,
    listed,
    number,
    percent,
    plural,
    risk_difference,
    rule_headline,
    share,
    shell_quote,
    why,
)
from stopadvisor.rules.losses import LOST, Guarantee
from stopadvisor.runs.archives import SIMULATED

__all__ = [
    "PAPER_FLAW",
    "graded_rows",
    "next_command",
    "show_assessment",
    "show_label_needs",
    "show_label_savings",
]

Document = Mapping[str, Any]

PAPER_FLAW = (
    "Paper protocol: it reproduces the published analysis and is flawed as advice. Its intervals "
    "take thresholds for given, so that they tell two equal rules apart far more often than in 5 % "
    "of cases, and its profile opens every question. Act on --protocol deploy."
)


def show_assessment(document: Document, out: TextIO, *, verbose: bool = False) -> None:
    """Print what `assess` found."""
    screen = Screen(out)
    paper = document["protocol"] == "paper"
    advice = document["recommendation"]
    stops = advice["policy"] != "full-budget"
    screen.headline(document["headline"], "good" if stops else "doubtful")
    screen.facts(_paper_facts(document) if paper else _facts(document), next_command(document))
    if paper:
        screen.items("Read this first", [PAPER_FLAW])
    _profile(screen, document)
    _matched_risk(screen, document, verbose=verbose)
    if not verbose:
        show_label_needs(screen, document.get("label_needs", []))
        screen.note("--verbose adds thresholds, forecasts, costs by serving stack and the reasons.")
        return
    show_label_savings(screen, document.get("label_savings", []))
    show_label_needs(screen, document.get("label_needs", []))
    _serving(screen, document)
    screen.items("Why, step by step", advice["reasons"])


def next_command(document: Document) -> str | None:
    """The command that follows; None where full thinking is advised."""
    run = shell_quote(document["run"])
    if document["protocol"] == "paper":
        return f"stopadvisor assess {run} --alpha {document['alpha']:g}"
    if document["recommendation"]["policy"] == "full-budget":
        return None
    return f"stopadvisor calibrate {run} {_limits(document)}"


def _limits(document: Document) -> str:
    """What was asked for, as options of `calibrate`; it takes what cannot be asked otherwise."""
    alpha, settings = document["alpha"], document["settings"]
    also = [Guarantee(**limit) for limit in settings.get("also", [])]
    if document["workload"]["graded_by"] == "agreement" or not ("loss" in settings or also):
        return f"--alpha {alpha:g}"
    first = Guarantee(settings.get("loss", LOST.name), alpha)
    of_all = ",".join(str(limit) for limit in (first, *also) if limit.category is None)
    among = [f"--guarantee {shell_quote(str(each))}" for each in also if each.category]
    return " ".join((f"--alpha {of_all}", *among))


def _facts(document: Document) -> list[tuple[str, str]]:
    advice, split, effect = document["recommendation"], document["split"], assessed_effect(document)
    closed = f"{split['calibration']} stay closed for calibrate"
    if split["test"]:
        closed += f", {split['test']} for a test after it"
    basis = f"{split['fit']} of {document['workload']['n_questions']} questions (fit); {closed}"
    if document["workload"]["engine"] == SIMULATED:
        basis += "; simulated probes: no model was asked, and this advice is about none"
    priced = computed_for(document)
    if effect is None:
        rows = [
            ("why", why(document)),
            ("do", "serve as you do now, without probes; there is nothing to calibrate"),
            *([("stack", f"{explained(advice['serving'])}{priced}")] if priced else []),
            *_server(document),
        ]
    else:
        lower = percent(document["fit_saving_lower_pct"])
        promise = document.get("asked") or promise_of({"alpha": document["alpha"]})
        rows = [
            (
                "certain",
                f"not yet: estimates from {plural(split['fit'], 'fit question')}. `calibrate` can "
                f"promise: {promise}; probability "
                f"{probability_words(document['chance_to_certify'])}",
            ),
            ("advice", rule_headline(advice["family"], advice.get("where"))),
            ("why", why(document)),
            ("saves", f"{saving_words(effect)}; at least {lower} (one-sided 95 %)"),
            (answers_label(effect), accuracy_words(effect)),
            *_stack(document, effect),
        ]
    rows += [("or", row.removeprefix(FIXED)) for row in advice["reasons"] if row.startswith(FIXED)]
    rows += [
        ("labels", row.removeprefix(LABELS)) for row in advice["reasons"] if row.startswith(LABELS)
    ]
    rows += graded_rows(document["workload"]["graded_by"], document)
    if document["workload"].get("on_stop") == "answer":
        text = "thinking is closed and the model writes its visible answer"
        point = advised_point(document)
        if point is not None and point["feasible"]:
            text += f"; {percent(point['fit_answer_saving_pct'])} of its tokens saved"
        rows.append(("on stop", text))
    return [*rows, ("based on", basis)]


def _stack(document: Document, effect: Effect) -> list[tuple[str, str]]:
    """For which stack the rule was chosen, the server's own measure, and the other stacks."""
    stack = f"{explained(effect.serving)}{computed_for(document)}"
    rows = [("stack", stack), *_server(document)]
    if (row := by_stack(document).get(effect.serving)) and row["decoded_saving_pct"] is not None:
        fewer, less = -row["decoded_saving_pct"], -row["held_saving_pct"]
        rows.append(("tokens", f"decoded {fewer:+.1f}%, KV-token-time {less:+.1f}%"))
    if loads := by_load(document):
        rows.append(("in flight", f"the same rule saves {loads} requests in flight"))
    elsewhere = f"the same rule {listed(other_stacks(effect))}{_anew(document, effect)}"
    rows.append(("elsewhere", elsewhere))
    money = document["serving"].get(effect.serving, {}).get("money_per_1000")
    if money:
        text = f"{money['policy']:.4g} instead of {money['full']:.4g} per 1000 requests"
        rows.append(("price", text))
    return rows


def graded_rows(graded_by: str, document: Document) -> list[tuple[str, str]]:
    """What stands for right answers where gold is missing, and how far that can be trusted."""
    rows = []
    if graded_by == "agreement":
        text = "a reply counts as right where it is what full thinking answers"
        rows.append(("no gold", text))
    if repeats := document.get("repeats"):
        found = f"{repeats['differing']} of {repeats['questions']} fit questions"
        spread = f"{share(repeats['share'])} {interval(repeats['ci95'], 100)}"
        text = (
            f"full thinking gave another answer to {found} when it thought again: {spread}; "
            "nothing is subtracted for that"
        )
        rows.append(("itself", text))
    return rows


def _anew(document: Document, effect: Effect) -> str:
    """How to choose for the stack that most people have."""
    if effect.serving in (COMMON_STACK, "vllm"):
        return ""
    again = f"{shell_quote(document['run'])} --serving {COMMON_STACK} {_limits(document)}"
    return (
        f"; a certificate is for one stack: on vLLM first `stopadvisor assess {again}`, which may "
        "advise another rule, or none"
    )


def _paper_facts(document: Document) -> list[tuple[str, str]]:
    advice, split = document["recommendation"], document["split"]
    point = advised_point(document)
    rows = [("why", why(document))]
    if point is not None:
        rows = [
            ("advice", rule_headline(advice["family"], advice.get("where"))),
            *rows,
            (
                "saves",
                f"{percent(point['total_saving_pct'])} of all tokens, "
                f"{percent(point['think_saving_pct'])} of the thinking (test questions)",
            ),
            (
                "loses",
                f"{share(point['test_risk'])} of the test questions, where accuracy is "
                f"{share(point['test_accuracy'])}; full thinking gets "
                f"{share(document['full_accuracy'])} of all questions right",
            ),
        ]
    rows.append(
        ("based on", f"{split['calibration']} calibration and {split['test']} test questions")
    )
    return rows


def _server(document: Document) -> list[tuple[str, str]]:
    """What the server itself was measured to do, where it was."""
    server = document.get("server")
    if not server:
        return []
    return [("server", f"{server['regime'] or 'not known'}, as measured: {server['reason']}")]


# --- Tables ---------------------------------------------------------------------------------------


def _profile(screen: Screen, document: Document) -> None:
    regime, profile = document["regime"], document["profile"]
    total = sum(row["count"] for row in profile.values())
    by = ", by agreement" if document["workload"]["graded_by"] == "agreement" else ""
    screen.table(
        f"How {total} {'' if regime['basis'] == 'all' else 'fit '}questions behave{by}: the mix "
        f"favours {favoured(regime['predicted'])}",
        ("", "count", "share", "95 % interval", ""),
        [
            (
                name.replace("_", " "),
                str(profile[name]["count"]),
                share(profile[name]["share"]),
                interval(profile[name]["ci95"], 100),
                KINDS_OF_QUESTION[name],
            )
            for name in KINDS_OF_QUESTION
        ],
    )


def _matched_risk(screen: Screen, document: Document, *, verbose: bool) -> None:
    if document["protocol"] == "paper":
        screen.table(
            "The best rules at the same risk (test questions)",
            ("alpha", "rule", "threshold", "lost", "accuracy", "saves"),
            [
                (f"{p['alpha']:g}", kind_of_rule(p["family"]), number(p["threshold"]), *_at_risk(p))
                for p in matched_points(document)
            ],
            left=2,
        )
    else:
        advised = document["recommendation"]["family"]
        # One rule may be the best of two kinds.
        rows = {point["family"]: point for point in matched_points(document)}.values()
        stack = document["recommendation"]["serving"]
        screen.table(
            f"The best rules at the same risk (fit questions, {stack})",
            ("rule", *_graded_columns(document), "saves", *(("threshold", "forecast") * verbose)),
            [
                (
                    f"{kind_of_rule(p['family'])}{' *' * (p['family'] == advised)}",
                    *_at_risk(p),
                    *((number(p["threshold"]), percent(p["expected_saving_pct"])) * verbose),
                )
                for p in rows
            ],
        )
        starred = "*: advised. " * (advised is not None)
        if any(not point["feasible"] for point in rows):
            starred += "Too many: no threshold of it could be certified. "
        forecast = "Forecast: what calibration is expected to certify, on average." * verbose
        if starred + forecast:
            screen.text((starred + forecast).strip())
    for row in document["matched_risk"]:
        paper = document["protocol"] == "paper"
        if row["delta_saving_pp"] is not None and (verbose or paper):
            alpha = f"alpha {row['alpha']:g}: " * paper
            screen.text(f"{alpha}{risk_difference(row)}.")


def _graded_columns(document: Document) -> tuple[str, str]:
    """What risk and accuracy are called."""
    loss = document["settings"].get("loss", LOST.name)
    if document["workload"]["graded_by"] == "agreement":
        return "differs", "agrees"
    return {"differs": "differs", "drop": "drop"}.get(loss, "lost"), "accuracy"


def _at_risk(point: Document) -> tuple[str, ...]:
    return (
        share(point["risk"]) if point["feasible"] else "too many",
        share(point["accuracy"]),
        percent(point["total_saving_pct"]),
    )


def show_label_savings(screen: Screen, rows: Sequence[Document]) -> None:
    """The table of savings by labels; nothing where there are none."""
    if not rows:
        return
    screen.table(
        "What more labels would buy (forecast of the saving that calibration certifies)",
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


def show_label_needs(screen: Screen, rows: Sequence[Document]) -> None:
    """The gold labels that a promise on lost answers would take; nothing where there are none."""
    if not rows:
        return
    screen.table(
        "What gold labels would buy: a promise about lost answers (imitated calibrations)",
        ("if of the replies that differ", "labels", "saving"),
        [
            (
                "(no labels: at most so many differ)"
                if row["lost_of_differing"] is None
                else f"{share(row['lost_of_differing'])} are lost",
                f"about {row['labels']}" if row["labels"] else "0",
                percent(row["saving_pct"]),
            )
            for row in rows
        ],
    )
    screen.text(
        "Only a question whose reply differs can be lost, so that few labels will do; `stopadvisor "
        "label` asks for them. Which share of those is lost nobody knows beforehand."
    )


def _serving(screen: Screen, document: Document) -> None:
    serving, asked = document["serving"], document["recommendation"]["serving"]
    if serving["operating_point"] is None:
        return
    named = by_stack(document)
    if document["protocol"] == "paper":
        screen.table(
            "What another rule saves on each serving stack",
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
        f"What the rule chosen for {asked} (*) saves on each serving stack",
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
    screen.text(
        "Probes: mean number per request. Break-even: with so many probes per request, or at that "
        f"price of a cached token ({unit}), stopping saves nothing."
    )
    if priced:
        full = next(row["money_per_1000"]["full"] for row in named.values())
        screen.text(f"Full thinking costs {full:.4g} per 1000 requests.")


def _decimals(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"

"""The sheet of `assess`: the advice, then the tables it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.promises import Promise
from stopadvisor.assessment.recommendation import FIXED, LABELS, probability_words
from stopadvisor.ground.constants import LARGE_ALPHA, MOST_TRUNCATED
from stopadvisor.paper.analysis import Assessed, AssessedByPaper
from stopadvisor.policy.shown import promise_of, promised
from stopadvisor.report.headline import (
    Effect,
    accuracy_words,
    answers_label,
    assessed_effect,
    capacity_facts,
    gain_against_advice,
    other_stacks,
    questions_to_tell,
    saving_words,
)
from stopadvisor.report.sheet import Fact, Section, Sheet
from stopadvisor.report.sheets.calibrate import CLOSED_ANSWER, graded_facts
from stopadvisor.report.sheets.plan import label_need_sections, label_savings
from stopadvisor.report.words import (
    COMMON_STACK,
    KINDS_OF_QUESTION,
    advised_rule,
    alpha_of,
    bracketed,
    by_load,
    computed_for,
    explained,
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
from stopadvisor.rules.costs import LADDER
from stopadvisor.rules.losses import DIFFERS, LOSSES, LOST, Guarantee
from stopadvisor.rules.outcomes import StackCost

__all__ = ["PAPER_FLAW", "assess_sheet"]

PAPER_FLAW = (
    "The paper's protocol repeats the published analysis and is flawed as advice: its intervals "
    "take thresholds as given, so they tell two equal rules apart far more often than in 5 % of "
    "cases, and its profile opens every question. Act on --protocol deploy."
)


def assess_sheet(result: Assessed, *, verbose: bool = False) -> Sheet:
    """Return the sheet; `verbose` adds thresholds, forecasts, costs and the reasons."""
    advice = result.recommendation
    if isinstance(result, AssessedByPaper):
        facts = _paper_facts(result)
        sections = [Section("Read this first", texts=(PAPER_FLAW,)), _profile(result)]
        sections.append(_paper_rules(result))
        costs = _paper_costs(result)
    else:
        facts = _facts(result)
        sections = [_promises(result, result.promises)] if result.promises else []
        sections += [_profile(result), _rules(result, verbose=verbose), *_single_rungs(result)]
        if verbose:
            sections += label_savings(result.label_savings)
        sections += label_need_sections(result.label_needs or ())
        costs = _costs(result)
    if verbose:
        sections += costs
        sections.append(Section("Why, step by step", texts=advice.reasons))
    return Sheet(
        result.headline,
        "doubtful" if advice.policy == "full-budget" else "good",
        tuple(facts),
        _next(result),
        sections=tuple(sections),
        footnote=""
        if verbose
        else "--verbose adds thresholds, forecasts, costs by serving stack and the reasons.",
    )


def _next(result: Assessed) -> str | None:
    """Return the next command; None if full thinking is advised."""
    run = shell_quote(result.run)
    if isinstance(result, AssessedByPaper):
        return f"stopadvisor assess {run} --alpha {alpha_of(result):g}"
    if result.standing == ():
        return None
    despite = []
    if result.recommendation.policy == "full-budget":
        if gain_against_advice(result) is None:
            return None
        despite.append("advice")
    loss = LOSSES[result.settings.loss or LOST.name]
    graded, most = result.workload.graded_by == "gold", LARGE_ALPHA * result.fit_full_accuracy
    if graded and loss.needs_gold and alpha_of(result) > most:
        despite.append("large-alpha")
    if result.workload.truncated_share > MOST_TRUNCATED:
        despite.append("truncated")
    words = ["stopadvisor calibrate", run, _limits(result)]
    return " ".join((*words, *(f"--despite {what}" for what in despite)))


def _limits(run: AssessedRun) -> str:
    """Return the assessed limits as `--alpha` of `calibrate`; losses are named unless default."""
    default = DIFFERS if run.workload.graded_by == "agreement" else LOST
    asked = Guarantee(run.settings.loss or LOST.name, alpha_of(run)), *(run.settings.also or ())
    limits = run.standing or asked
    if limits == (Guarantee(default.name, limits[0].alpha),):
        return f"--alpha {limits[0].alpha:g}"
    return f"--alpha {shell_quote(','.join(map(str, limits)))}"


# --- Facts ----------------------------------------------------------------------------------------


def _facts(run: AssessedRun) -> Iterator[Fact]:
    advice, split, effect = run.recommendation, run.split, assessed_effect(run)
    if effect is None:
        yield "why", why(run)
        climbs = advice.serving == LADDER
        now = "the reference as you do now" if climbs else "as you do now, without probes"
        more = questions_to_tell(run)
        then = "there is nothing to calibrate"
        if more is not None:
            then = f"assess again with about {more:,} questions"
        yield "do", f"serve {now}; {then}"
        if priced := computed_for(run):
            yield "stack", f"{explained(advice.serving)}{priced}"
    else:
        promise = run.asked or promise_of((Guarantee("lost", alpha_of(run)),))
        chance = probability_words(run.chance_to_certify)
        text = f"`calibrate` can promise: {promise}; probability {chance}"
        if run.standing is not None:
            text = "A look has shown calibration outcomes: `calibrate` takes only its settings"
        yield "certain", f"not yet: estimates from {plural(split.fit, 'fit question')}. {text}"
        yield from capacity_facts(effect)
        cost = run.serving.by_stack.get(effect.serving)
        if cost and (money := cost.money_per_1000):
            yield "price", f"{money.policy:.4g} instead of {money.full:.4g} per 1000 requests"
        yield "advice", rule_headline(str(advice.family), advice.where)
        yield "why", why(run)
        lower = percent(run.fit_saving_lower_pct)
        yield "saves", f"{saving_words(effect)}; at least {lower} (one-sided 95 %)"
        yield answers_label(effect), accuracy_words(effect)
        yield from _stack(run, effect, cost)
    for name, mark in (("or", FIXED), ("labels", LABELS)):
        for row in advice.reasons:
            if row.startswith(mark):
                yield name, row.removeprefix(mark)
    yield from graded_facts(run.workload.graded_by, run.repeats)
    if run.workload.on_stop == "answer":
        text, rule = CLOSED_ANSWER, advised_rule(run)
        if rule is not None and rule.feasible:
            text += f"; {percent(rule.fit_answer_saving_pct)} of its tokens saved"
        yield "on stop", text
    closed = f"{split.calibration} stay closed for calibrate"
    if run.counted is not None:
        closed += f" ({run.counted} count: one of each group or set of copies)"
    if split.test:
        closed += f", {split.test} for a test after it"
    yield "based on", f"{split.fit} of {run.workload.n_questions} questions (fit); {closed}"


def _stack(run: AssessedRun, effect: Effect, cost: StackCost | None) -> Iterator[Fact]:
    """Yield the stack that the rule was chosen for, and its savings on the others."""
    yield "stack", f"{explained(effect.serving)}{computed_for(run)}"
    if cost and cost.decoded_saving_pct is not None:
        text = f"decoded {-cost.decoded_saving_pct:+.1f}%"
        if effect.serving == LADDER:
            yield "tokens", text
            seconds = run.request_seconds
            full = run.rungs[-1].request_seconds if run.rungs else None
            if seconds is not None and full is not None:
                yield "time", f"{seconds:.3g} s instead of {full:.3g} s per request"
        elif cost.held_saving_pct is not None:
            yield "tokens", f"{text}, KV-token-time {-cost.held_saving_pct:+.1f}%"
    if loads := by_load(run):
        yield "in flight", f"the same rule saves {loads} requests in flight"
    if others := other_stacks(effect):
        again = ""
        if effect.serving not in (COMMON_STACK, "vllm", LADDER):
            words = f"{shell_quote(run.run)} --serving {COMMON_STACK} {_limits(run)}"
            again = (
                f"; a certificate is for one stack: on vLLM first `stopadvisor assess {words}`, "
                "which may advise another rule, or none"
            )
        yield "elsewhere", f"the same rule {listed(others)}{again}"


def _paper_facts(run: AssessedByPaper) -> Iterator[Fact]:
    advice, split, rule = run.recommendation, run.split, run.advised
    if rule is not None:
        yield "advice", rule_headline(str(advice.family), advice.where)
    yield "why", why(run)
    if rule is not None:
        yield (
            "saves",
            f"{percent(rule.total_saving_pct)} of all tokens, {percent(rule.think_saving_pct)} of "
            "the thinking (test questions)",
        )
        yield (
            "loses",
            f"{share(rule.test_risk)} of the test questions, where accuracy is "
            f"{share(rule.test_accuracy)}; full thinking gets {share(run.full_accuracy)} of all "
            "questions right",
        )
    yield "based on", f"{split.calibration} calibration and {split.test} test questions"


# --- Tables ---------------------------------------------------------------------------------------


def _profile(run: Assessed) -> Section:
    regime, profile = run.regime, run.profile
    total = sum(row.count for row in profile.values())
    by = ", by agreement" if run.workload.graded_by == "agreement" else ""
    return Section(
        f"How {total} {'' if regime.basis == 'all' else 'fit '}questions behave{by}",
        ("", "count", "share", "95 % interval", ""),
        tuple(
            (
                name.replace("_", " "),
                str(profile[name].count),
                share(profile[name].share),
                bracketed(profile[name].ci95, 100),
                text,
            )
            for name, text in KINDS_OF_QUESTION.items()
        ),
    )


def _rules(run: AssessedRun, *, verbose: bool) -> Section:
    advised, (row,) = run.recommendation.family, run.matched_risk
    texts = []
    note = "*: advised. " * (advised is not None)
    if any(not rule.feasible for rule in row.kinds):
        note += "Too many: no threshold of it could be certified. "
    note += "Forecast: what calibration is expected to certify, on average." * verbose
    if note:
        texts.append(note.strip())
    if verbose and row.delta_saving_pp is not None:
        texts.append(f"{risk_difference(row)}.")
    return Section(
        f"The best rules at the same risk (fit questions, {run.recommendation.serving})",
        ("rule", *_graded_columns(run), "saves", *(("threshold", "forecast") * verbose)),
        tuple(
            (
                f"{kind_of_rule(rule.family)}{' *' * (rule.family == advised)}",
                share(rule.fit_risk) if rule.feasible else "too many",
                share(rule.fit_accuracy),
                percent(rule.fit_total_saving_pct),
                *((number(rule.threshold), percent(rule.expected_saving_pct)) * verbose),
            )
            for rule in row.kinds
        ),
        tuple(texts),
    )


def _single_rungs(run: AssessedRun) -> Iterator[Section]:
    """Yield the table of single rungs, and why this loss is counted."""
    if run.rungs is None:
        return
    loss, right = _graded_columns(run)
    texts = {
        "drop": "Counted: the drop in accuracy. The reference is drawn independently of the "
        "rungs before it, so its own luck would count as lost answers.",
        "lost": "Counted: lost answers. A reference that is drawn again differs from itself, too; "
        "--loss drop leaves that out.",
    }
    if run.rungs[0].name == run.rungs[-1].name:
        texts["lost"] = "Counted: lost answers, because the reference contains the rungs before it."
    shown = [texts[loss]] if loss in texts else []
    if run.given_up_share is not None:
        shown.append(f"The advised rule gives up {share(run.given_up_share)} of these questions.")
    is_timed = run.rungs[-1].request_seconds is not None
    if is_timed:
        shown.append(
            "Seconds: mean time of a request, measured at the recording's concurrency. A climb "
            "asks one rung after the other, so their times add up."
        )
    yield Section(
        "Each rung for everybody (fit questions)",
        ("rung", loss, right, "saves", "tokens saved", *(("seconds",) * is_timed)),
        tuple(
            (
                f"{row.name}{f' x {row.replies}' if row.replies > 1 else ''}",
                share(row.risk),
                share(row.accuracy),
                percent(row.saving_pct),
                percent(row.token_saving_pct),
                *((number(row.request_seconds),) * is_timed),
            )
            for row in run.rungs
        ),
        tuple(shown),
    )


def _graded_columns(run: AssessedRun) -> tuple[str, str]:
    """Return the names of the columns of risk and accuracy."""
    if run.workload.graded_by == "agreement":
        return "differs", "agrees"
    loss = run.settings.loss
    return loss if loss in ("differs", "drop") else "lost", "accuracy"


def _paper_rules(run: AssessedByPaper) -> Section:
    return Section(
        "The best rules at the same risk (test questions)",
        ("alpha", "rule", "threshold", "lost", "accuracy", "saves"),
        tuple(
            (
                f"{row.alpha:g}",
                kind_of_rule(rule.family),
                number(rule.threshold),
                share(rule.test_risk) if rule.feasible else "too many",
                share(rule.test_accuracy),
                percent(rule.total_saving_pct),
            )
            for row in run.matched_risk
            for rule in (row.learned, row.scalar)
        ),
        tuple(f"alpha {row.alpha:g}: {risk_difference(row)}." for row in run.matched_risk),
        left=2,
    )


def _promises(run: AssessedRun, promises: Sequence[Promise]) -> Section:
    """Return the table of promises, if `assess` ran without --alpha."""
    risk, accuracy = _graded_columns(run)
    n, taken = run.counted or run.split.calibration, run.matched_risk[0].alpha
    texts = [
        "* The figures here are for this promise. The last two columns: the probability that the "
        "calibration questions at hand certify a saving, and how many would make it 90 %."
    ]
    saves = any(each.alpha == taken and each.saving_pct > 0 for each in promises)
    if run.recommendation.policy == "full-budget" and saves:
        texts.append(
            f"The saving at * is a forecast that {plural(run.split.fit, 'fit question')} did not "
            "confirm: it may be nothing, and a certificate may be for a tiny saving."
        )
    return Section(
        "What each promise would buy (no --alpha was given)",
        (risk, "saves", accuracy, f"certified by {n}", "questions for 90 %"),
        tuple(
            (
                f"{promised(each.alpha)}{' *' * (each.alpha == taken)}",
                percent(each.saving_pct) if each.saving_pct > 0 else "nothing",
                f"{each.accuracy_points:+.1f} points" if each.saving_pct > 0 else "-",
                probability_words(each.probability),
                "-" if each.labels_for_90 is None else f"{each.labels_for_90:,}",
            )
            for each in promises
        ),
        tuple(texts),
    )


def _costs(run: AssessedRun) -> Iterator[Section]:
    costs = run.serving
    if costs.operating_point is None or run.rungs is not None:  # a ladder has prices of its own
        return
    asked, named = run.recommendation.serving, costs.by_stack
    money = [cost.money_per_1000 for cost in named.values() if cost.money_per_1000 is not None]
    texts = [
        costs.operating_point,
        "Probes: mean number per request. Break-even: at this many probes per request, or at this "
        f"price of a cached token ({run.settings.weights.unit}), stopping saves nothing.",
    ]
    if money:
        texts.append(f"Full thinking costs {money[0].full:.4g} per 1000 requests.")
    yield Section(
        f"What the rule chosen for {asked} (*) saves on each serving stack",
        (
            *("", "saving", *(("per 1000",) if money else ()), "probes"),
            *("break-even\nprobes", "break-even\ncached"),
        ),
        tuple(
            (
                f"{name} *" if name == asked else name,
                percent(cost.saving_pct),
                *((number(cost.money_per_1000.policy),) if cost.money_per_1000 else ()),
                _decimals(cost.probes, 2),
                _decimals(cost.break_even_probes, 2),
                _decimals(cost.break_even_cached_price, 3),
            )
            for name, cost in named.items()
        ),
        tuple(texts),
    )


def _paper_costs(run: AssessedByPaper) -> Iterator[Section]:
    asked, costs = run.recommendation.serving, run.serving
    named = (
        ("kv-fork", costs.kv_fork),
        ("prefix-cache", costs.prefix_cache),
        ("black-box", costs.black_box),
    )
    yield Section(
        "What another rule saves on each serving stack",
        ("", "saving", ""),
        tuple(
            (name, percent(cost.saving_pct), "asked for" if name == asked else "")
            for name, cost in named
        ),
        (costs.operating_point,),
    )


def _decimals(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"

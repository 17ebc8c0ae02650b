"""What `assess --json` prints and ``assessment.json`` holds, under either protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

from stopadvisor.assessment.assess import FitAssessment
from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.measured import LoadSaving
from stopadvisor.paper.assess import PaperAssessment
from stopadvisor.paper.protocol import MatchedRisk, PaperResult
from stopadvisor.policy.promises import asked
from stopadvisor.report.documents.fields import Document, fields_of, fill
from stopadvisor.report.documents.parts import (
    GradedByField,
    PartCountFields,
    PriceFields,
    ProfileFields,
    RepeatFields,
    RequestTokens,
    WeightFields,
)
from stopadvisor.report.headline import assessed_headline
from stopadvisor.rules.costs import Serving, ServingCost
from stopadvisor.rules.losses import LOST
from stopadvisor.rules.roofline import Prices
from stopadvisor.rules.schedules import grid_positions
from stopadvisor.runs.server_regime import RegimeMeasure

__all__ = [
    "AssessDocument",
    "LabelNeedFields",
    "LabelSavingFields",
    "assessment_document",
    "matched_points",
]


class _WorkloadFields(TypedDict):
    n_questions: Annotated[int, "In all parts."]
    n_checkpoints: Annotated[int, "Most probes of a question."]
    budgets: Annotated[
        list[int], "Thinking tokens at which all questions that think on were probed."
    ]
    full_reference: Annotated[str, "What full thinking means: `natural` or `last-checkpoint`."]
    graded_by: GradedByField
    truncated_share: Annotated[float, "Share of the traces that were cut off."]
    model: Annotated[str | None, "Its name; null for an archive or a simulation."]
    engine: Annotated[str | None, "What asked it, with its version."]
    sha256: Annotated[str, "Of the workload file, or of the archive."]
    on_stop: NotRequired[Annotated[Literal["answer"], "Only with `--on-stop answer`."]]


class _Regime(TypedDict):
    predicted: Annotated[str, "`learned`, `scalar`, `mixed` or `full-budget`."]
    stability: Annotated[float, "Share of posterior draws with the same regime."]
    basis: Annotated[str, "`fit` questions or `all`."]


class _PointFields(TypedDict):
    feasible: Annotated[bool, "Whether a threshold keeps the risk."]
    family: Annotated[str, "The best rule of its kind."]
    threshold: Annotated[
        float | None,
        "Stop when the score reaches it; null, as what follows, where no threshold keeps the risk.",
    ]
    candidates: Annotated[int, "Thresholds tried."]
    schedule: NotRequired[
        Annotated[
            list[int] | None,
            "Deploy only: thinking tokens at which it probes; null where each trace has its own.",
        ]
    ]
    where: NotRequired[Annotated[str, "Deploy only: the same in words."]]
    expected_saving_pct: NotRequired[
        Annotated[float, "Deploy only: net saving that calibration is expected to certify."]
    ]
    fit_risk: NotRequired[
        Annotated[float | None, "Deploy only: share lost of the fit questions, out of fold."]
    ]
    fit_accuracy: NotRequired[Annotated[float | None, "Deploy only: accuracy with stopping."]]
    fit_think_saving_pct: NotRequired[
        Annotated[float | None, "Deploy only: thinking tokens saved."]
    ]
    fit_total_saving_pct: NotRequired[Annotated[float | None, "Deploy only: net saving."]]
    fit_uncut_saving_pct: NotRequired[
        Annotated[float | None, "Deploy only: net saving on traces that were not cut off."]
    ]
    fit_answer_saving_pct: NotRequired[
        Annotated[
            float,
            "Deploy with `--on-stop answer` only: tokens of the visible answer that are saved.",
        ]
    ]
    test_risk: NotRequired[
        Annotated[float, "Paper only: share lost of the paper's test questions."]
    ]
    test_accuracy: NotRequired[Annotated[float, "Paper only: accuracy with stopping."]]
    think_saving_pct: NotRequired[Annotated[float, "Paper only: thinking tokens saved."]]
    total_saving_pct: NotRequired[Annotated[float, "Paper only: net saving."]]


class _Difference(TypedDict):
    median: Annotated[float, "Over bootstrap resamples of the questions."]
    ci95: Annotated[
        list[float], "Nominally 99 % where no loss is allowed on fit, as 95 % falls short there."
    ]


class _MatchedRiskFields(TypedDict):
    alpha: Annotated[float, "The risk that both sides keep."]
    learned: Annotated[_PointFields | None, "The best rule that combines the signals."]
    scalar: Annotated[_PointFields | None, "The best rule of one signal."]
    fixed_budget: NotRequired[
        Annotated[
            _PointFields | None, "Deploy only: the best fixed budget, without any probe before."
        ]
    ]
    agreement: NotRequired[
        Annotated[_PointFields | None, "Deploy only: the best rule of equal answers."]
    ]
    delta_saving_pp: Annotated[
        _Difference | None, "Saving of learned minus scalar, in percentage points."
    ]
    verdict: Annotated[str, "`learned better`, `scalar better`, `comparable` or `inconclusive`."]


class _Money(TypedDict):
    policy: Annotated[float, "With stopping."]
    full: Annotated[float, "With full thinking."]


class _ServingCostFields(TypedDict):
    saving_pct: Annotated[float | None, "Net saving."]
    decoded_saving_pct: NotRequired[
        Annotated[float | None, "Deploy only: of the decoded tokens alone."]
    ]
    held_saving_pct: NotRequired[
        Annotated[
            float | None, "Deploy only: of KV-token-time, the context of every decoded token."
        ]
    ]
    tokens: NotRequired[Annotated[RequestTokens | None, "Deploy only: of one request."]]
    money_per_1000: NotRequired[
        Annotated[_Money | None, "Deploy with `--price` only: money per 1000 requests."]
    ]
    probes: NotRequired[Annotated[float | None, "Deploy only: probes per request."]]
    break_even_probes: NotRequired[
        Annotated[float | None, "Deploy only: probes per request at which the saving is gone."]
    ]
    break_even_cached_price: NotRequired[
        Annotated[float | None, "Deploy only: price of a cached token at which the saving is gone."]
    ]


class _LoadFields(TypedDict):
    in_flight: Annotated[int, "Requests that decode together."]
    decoded: Annotated[float, "Seconds of a decoded token, at the mean context."]
    saving_pct: Annotated[float, "Net saving on fit questions."]


_Serving = TypedDict(
    "_Serving",
    {
        "operating_point": Annotated[str | None, "The rule that is priced, in words."],
        "prices": NotRequired[Annotated[PriceFields, "Deploy only: what tokens cost."]],
        "by_load": NotRequired[
            Annotated[list[_LoadFields], "Computed prices only: the same rule at other loads."]
        ],
        "vllm": NotRequired[
            Annotated[_ServingCostFields, "Only where asked for: the policy runs inside vLLM."]
        ],
        "kv-fork": Annotated[_ServingCostFields, "The server keeps the whole cache of a request."],
        "prefix-cache": Annotated[_ServingCostFields, "The server caches prefixes in blocks."],
        "black-box": Annotated[_ServingCostFields, "Every request pays for its whole prefix."],
    },
)


class _RecommendationFields(TypedDict):
    policy: Annotated[str, "`learned`, `scalar`, `fixed-budget` or `full-budget`."]
    family: Annotated[str | None, "The advised rule; null for the full budget."]
    schedule: Annotated[
        list[int] | None,
        "Thinking tokens at which to probe; null for the full budget, and where each trace has "
        "positions of its own.",
    ]
    where: NotRequired[
        Annotated[str | None, "Deploy only: the same in words; null for the full budget."]
    ]
    serving: Annotated[str, "The serving regime for which it was chosen."]
    reasons: Annotated[list[str], "Why, step by step."]


class _Wish(TypedDict):
    loss: Annotated[str, "What is limited: `lost`, `differs` or `drop`."]
    alpha: Annotated[float, "To which share."]
    category: Annotated[str | None, "Of whose questions alone; null for all."]


class _SettingsFields(TypedDict):
    serving: Annotated[str, "The serving regime."]
    weights: Annotated[WeightFields, "Prices of tokens."]
    cache_block: Annotated[int, "Tokens per block of the prefix cache."]
    families: Annotated[list[str], "Rules that may be chosen."]
    loss: NotRequired[
        Annotated[
            Literal["differs", "drop"],
            "What `alpha` limits, where that is not lost answers; `differs` without gold.",
        ]
    ]
    also: NotRequired[
        Annotated[list[_Wish], "Only where asked for: further limits that hold at once."]
    ]


class LabelSavingFields(TypedDict):
    """A number of labels, and what it is expected to buy."""

    calibration: Annotated[int, "Calibration questions."]
    labels: Annotated[int, "Questions in all, split as these are."]
    saving_pct: Annotated[float, "Net saving that calibration is expected to certify."]
    is_here: Annotated[bool, "Whether so many calibration questions there are."]


class LabelNeedFields(TypedDict):
    """A promise about lost answers, and the gold labels that it would take."""

    lost_of_differing: Annotated[
        float | None,
        "Assumed: of the replies that differ, those that are lost. Null: nothing is labelled, and "
        "the promise is about replies that differ.",
    ]
    labels: Annotated[int, "Calibration questions that would have to be labelled, on average."]
    saving_pct: Annotated[
        float, "Net saving that would be certified, on average, as fit questions measure it."
    ]


class _ServerFields(TypedDict):
    regime: Annotated[str | None, "What it was measured to be; null where that is not clear."]
    cache_block: Annotated[int | None, "Tokens per block of its cache, where it says."]
    basis: Annotated[str, "`cached-tokens` or `wall-clock`."]
    read_cost: Annotated[
        float | None, "Seconds of reading a token back, as a part of those of prefilling it."
    ]
    reason: Annotated[str, "What shows it, in words."]


class _ProtocolFields(TypedDict, total=False):
    """What one of the two protocols gives alone."""

    fit_full_accuracy: Annotated[float, "Deploy only: accuracy of full thinking on fit questions."]
    fit_saving_lower_pct: Annotated[
        float | None,
        "Deploy only: one-sided 95 % lower limit of the net saving, on questions that had no part "
        "in the choice.",
    ]
    label_savings: Annotated[
        list[LabelSavingFields],
        "Deploy only: what the advised rule is expected to save by the number of labels.",
    ]
    label_needs: Annotated[
        list[LabelNeedFields],
        "Deploy without gold only: gold labels that a promise about lost answers would take.",
    ]
    repeats: Annotated[
        RepeatFields, "Deploy only, where questions thought twice: full thinking beside itself."
    ]
    chance_to_certify: Annotated[
        float | None, "Deploy only: estimated probability that `calibrate` certifies a saving."
    ]
    settings: Annotated[_SettingsFields, "Deploy only: what `calibrate` takes over."]
    asked: Annotated[
        str, "Deploy only: all limits asked for in words, where they are not one on lost answers."
    ]
    full_accuracy: Annotated[float, "Paper only: accuracy of full thinking."]


class _ServedFields(TypedDict, total=False):
    server: Annotated[_ServerFields, "Only where probes came from a server."]


class _CommonFields(Document):
    protocol: Annotated[Literal["deploy", "paper"], "What to act on, or the published analysis."]
    alpha: Annotated[float, "The risk asked for."]
    delta: Annotated[float, "1 minus the confidence asked for."]
    run: Annotated[str, "Where the probes are."]
    workload: Annotated[_WorkloadFields, "What was probed."]
    split: Annotated[PartCountFields, "Questions in each part."]
    profile: Annotated[ProfileFields, "Of the fit questions; under the paper's protocol of all."]
    regime: Annotated[_Regime, "What the profile predicts."]
    matched_risk: Annotated[list[_MatchedRiskFields], "A row for each alpha."]
    serving: Annotated[_Serving, "Net saving of one rule under each serving regime."]
    recommendation: Annotated[_RecommendationFields, "What to do."]


class _RemarkFields(TypedDict):
    remarks: Annotated[list[str], "What the reader should know."]
    headline: Annotated[str, "First line of the screen and of the report."]


class AssessDocument(_CommonFields, _RemarkFields, _ProtocolFields, _ServedFields):
    """`assess --json` and `assessment.json`."""


def assessment_document(
    assessment: FitAssessment | PaperAssessment,
    remarks: Sequence[str] = (),
    server: RegimeMeasure | None = None,
    *,
    loads: Sequence[LoadSaving] = (),
) -> AssessDocument:
    """Build the document; under deploy the same fit questions give the same bytes.

    Notes
    -----
    It carries no time, and nothing of a calibration question under the deploy protocol.
    """
    source = assessment.source
    if isinstance(assessment, PaperAssessment):
        on_stop = None
        matched = [_matched_risk(row, row.alpha) for row in assessment.paper.matched_risk]
        serving = _paper_serving(assessment.paper)
    else:
        on_stop = "answer" if source.table.on_stop == "answer" else None
        matched = [_matched_risk(assessment.choice, assessment.choice.settings.alpha)]
        serving = _fit_serving(assessment.choice)
        if loads:
            serving["by_load"] = [fill(_LoadFields, row) for row in loads]
    common = fill(
        _CommonFields,
        assessment,
        run=str(source.folder),
        workload=fill(
            _WorkloadFields,
            assessment,
            source,
            source.table,
            budgets=list(grid_positions(source.table)),
            full_reference=assessment.reference,
            graded_by=assessment.graded_by,
            sha256=source.workload_sha256,
            on_stop=on_stop,
        ),
        split=fill(PartCountFields, assessment.split),
        profile=fill(ProfileFields, assessment.profile.shares),
        regime=fill(_Regime, assessment.profile, assessment),
        matched_risk=matched,
        serving=serving,
    )
    found = {
        **common,
        **_protocol_fields(assessment),
        "remarks": list(remarks),
        **fill(_ServedFields, server=server),
    }
    return cast(AssessDocument, {**found, "headline": assessed_headline(found)})


def _protocol_fields(assessment: FitAssessment | PaperAssessment) -> _ProtocolFields:
    if isinstance(assessment, PaperAssessment):
        return {"full_accuracy": assessment.full_accuracy}
    choice, settings = assessment.choice, assessment.choice.settings
    return fill(
        _ProtocolFields,
        fit_full_accuracy=choice.full_accuracy,
        fit_saving_lower_pct=choice.saving_lower,
        label_savings=assessment.label_savings,
        label_needs=assessment.label_needs or None,
        repeats=assessment.repeats,
        chance_to_certify=choice.probability,
        settings=fill(
            _SettingsFields,
            settings,
            weights=settings.weights.to_dict(),
            loss=None if settings.loss == LOST.name else settings.loss,
            also=settings.also or None,
        ),
        asked=None if settings.is_lost else asked(settings.guarantees),
    )


def _matched_risk(found: Choice | MatchedRisk, alpha: float) -> _MatchedRiskFields:
    spread = found.delta_saving_pp
    return fill(
        _MatchedRiskFields,
        found,
        alpha=alpha,
        delta_saving_pp=None
        if spread is None
        else {"median": spread.median, "ci95": [spread.low, spread.high]},
    )


def _fit_serving(choice: Choice) -> _Serving:
    point = choice.advised_point
    rows = {row.serving: row for row in choice.serving}
    names: tuple[Serving, ...] = ("kv-fork", "prefix-cache", "black-box")
    if choice.settings.serving == "vllm":
        names = ("vllm", *names)
    at = None
    if point is not None and point.threshold is not None:
        at = (
            f"{point.family} at threshold {point.threshold:.4g}, {point.where}; fit questions, out "
            "of fold"
        )
    costs = {name: _serving_cost(rows.get(name)) for name in names}
    prices = fill(PriceFields, Prices.of(choice.settings.weights))
    return fill(_Serving, costs, operating_point=at, prices=prices)


def _serving_cost(row: ServingCost | None) -> _ServingCostFields:
    """One rule under one regime, per request; all null where no rule is advised."""
    if row is None:
        return fill(
            _ServingCostFields, dict.fromkeys(field.name for field in fields_of(_ServingCostFields))
        )
    money, full = row.money_per_1000, row.full_money_per_1000
    return fill(
        _ServingCostFields,
        row,
        tokens=row,
        money_per_1000=None if money is None or full is None else {"policy": money, "full": full},
        break_even_cached_price=row.break_even_cached,
    )


def _paper_serving(paper: PaperResult) -> _Serving:
    at = paper.serving.threshold
    return fill(
        _Serving,
        {name: {"saving_pct": saving} for name, saving in paper.serving.saving_pct.items()},
        operating_point=f"learned at its peak-gain threshold {at:g}, probing at every checkpoint; "
        "all questions, out of fold",
    )


# --- For those who show it ------------------------------------------------------------------------


def matched_points(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each side of an assessment's matched-risk rows, its figures under one set of names.

    The document names them for the questions they are of: fit questions, or under the paper's
    protocol test questions.
    """
    of, prefix = ("test", "") if document["protocol"] == "paper" else ("fit", "fit_")
    for row in document["matched_risk"]:
        for side in ("learned", "scalar", "agreement", "fixed_budget"):
            point = row.get(side)
            if point is not None:
                yield {
                    "alpha": row["alpha"],
                    "side": side.replace("_", " "),
                    **{name: point[name] for name in ("family", "feasible", "threshold")},
                    "risk": point[f"{of}_risk"],
                    "accuracy": point[f"{of}_accuracy"],
                    "think_saving_pct": point[f"{prefix}think_saving_pct"],
                    "total_saving_pct": point[f"{prefix}total_saving_pct"],
                    "expected_saving_pct": point.get("expected_saving_pct"),
                }

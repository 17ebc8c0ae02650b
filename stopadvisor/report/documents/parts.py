"""Parts that several documents share, and what holds for all: the fields that other programs read.

A document is a `TypedDict`; the sentence beside a field's type describes it in the JSON Schema
files and in this wing's README.  Knows no command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NotRequired, TypedDict

if TYPE_CHECKING:  # an error's document loads nothing that computes
    from stopadvisor.stats.bootstrap import Interval

__all__ = [
    "CertificateFields",
    "ExpectedFields",
    "GradedByField",
    "KindShare",
    "LabelFields",
    "PartCountFields",
    "ProfileFields",
    "ProvenanceFields",
    "RepeatFields",
    "RequestTokens",
    "WeightFields",
    "interval_list",
]


class KindShare(TypedDict):
    """One kind of question."""

    count: Annotated[int, "Questions of this kind."]
    share: Annotated[float, "Their share."]
    ci95: Annotated[list[float], "Its exact interval."]


class ProfileFields(TypedDict):
    """How questions behave along their thinking."""

    early_solved: Annotated[KindShare, "Right at the first checkpoint and at the end."]
    beneficial: Annotated[KindShare, "Wrong at first, right once and for good."]
    harmful: Annotated[KindShare, "Right somewhere, wrong at the end."]
    unsolved: Annotated[KindShare, "Never right."]
    oscillating: Annotated[KindShare, "Changing between right and wrong."]


class PartCountFields(TypedDict):
    """Questions in each part of the split."""

    fit: Annotated[int, "Choose and fit the rule."]
    calibration: Annotated[int, "Closed until `calibrate` opens them."]
    test: Annotated[int, "Measure what a policy does."]


class WeightFields(TypedDict):
    """Price of a token of each kind."""

    prefilled: Annotated[float, "Read for the first time."]
    cached: Annotated[float, "Read from the cache."]
    decoded: Annotated[float, "Generated."]
    unit: Annotated[str, "What the prices are in."]
    request: NotRequired[Annotated[float, "Measured only: of a request, whatever it reads."]]
    round_trip: NotRequired[
        Annotated[
            float, "Measured only: tokens that a trace decodes while a request is on its way."
        ]
    ]


class RequestTokens(TypedDict):
    """Mean tokens of a request."""

    decoded: Annotated[float, "Generated."]
    cached: Annotated[float, "Read from the cache."]
    prefilled: Annotated[float, "Read for the first time."]


class ProvenanceFields(TypedDict):
    """What a certificate was computed from: of fit and calibration questions, as SHA-256."""

    probes_sha256: Annotated[str, "Of all that was recorded of them."]
    labels_sha256: Annotated[str, "Of which of their answers are right."]


class GraderFields(TypedDict):
    """A function that said which answers are right."""

    name: Annotated[str, "As `--grader` named it, with its own version behind it."]
    sha256: Annotated[str, "Of its module's file."]


class LabelFields(TypedDict):
    """Labels of calibration questions, of which few have gold."""

    workload: Annotated[int, "Questions whose gold came with the workload."]
    asked: Annotated[int, "Of the others, those that somebody was asked about."]
    used: Annotated[int, "Of these, those whose right answer is settled."]
    cannot_tell: Annotated[int, "Questions that a labeller could not tell; they count as lost."]
    disagreeing: Annotated[int, "Questions that two labellers answered differently; the same."]
    more_labels: Annotated[int, "About how many are still worth asking for."]
    more_saving_pp: Annotated[float, "Points of net saving that they are expected to add."]


class GuaranteeFields(TypedDict):
    """One of several limits that hold at once."""

    loss: Annotated[str, "What is limited: `lost`, `differs` or `drop`."]
    alpha: Annotated[float, "To which share."]
    n: Annotated[int, "Calibration questions that were counted."]
    lost: Annotated[int, "Of these, how many count 1."]
    gained: Annotated[int, "Of these, how many count -1; only of a drop."]
    upper: Annotated[float, "Upper limit at this threshold alone; not the claim."]
    category: Annotated[str | None, "Of whose questions alone it speaks; null for all."]


class CertificateFields(TypedDict):
    """What was shown about one frozen policy."""

    alpha: Annotated[float, "The share of questions that may be lost."]
    delta: Annotated[float, "Error probability of this look."]
    confidence: Annotated[float, "1 minus what all looks so far have spent."]
    bound: Annotated[
        str, "The test of the risk; `betting` where groups of several questions enter whole."
    ]
    multiplicity: Annotated[str, "How thresholds share the error probability."]
    n: Annotated[int, "Calibration questions that were counted."]
    losses: Annotated[int, "Lost questions among them."]
    upper: Annotated[float, "Exact upper limit of the risk at this threshold alone; not the claim."]
    reference: Annotated[str, "What full thinking means: `natural` or `last-checkpoint`."]
    looks: Annotated[int, "Number of this look at the calibration questions."]
    looks_elsewhere: Annotated[
        int,
        "Looks on record at other questions of the run, or at other probes of these in runs "
        "beside it.",
    ]
    planned_looks: Annotated[int | None, "Looks planned beforehand."]
    ledger_head: NotRequired[Annotated[str, "Digest of this look's line in the run's looks.jsonl."]]
    provenance: NotRequired[
        Annotated[ProvenanceFields, "What it was computed from; not in older policies."]
    ]
    chain_delta: Annotated[float, "Error probability of this rule's tests."]
    conditional: Annotated[
        bool, "Whether alpha is a share of the questions that full thinking gets right."
    ]
    alpha_over_full_accuracy: Annotated[
        float,
        "Alpha divided by the accuracy of full thinking, on fit questions where there are any.",
    ]
    truncated_share: Annotated[float, "Share of the calibration traces that were cut off."]
    max_think: Annotated[int | None, "Cap on thinking tokens."]
    differs_upper: NotRequired[
        Annotated[
            float,
            "Upper limit of the share of replies that differ from full thinking's at this "
            "threshold; what audits are held against, and no claim.",
        ]
    ]
    groups: NotRequired[
        Annotated[int, "Only where bets on groups certify questions: groups that were counted."]
    ]
    group_cap: NotRequired[Annotated[int, "Only there: most questions that a group can hold."]]
    group_claim: NotRequired[
        Annotated[
            Literal["groups"],
            "Only where groups hold several questions and one of each was counted: the claim is "
            "about groups.",
        ]
    ]
    labelled: NotRequired[
        Annotated[
            int,
            "Only where few calibration questions have gold: how many do; what differs without any "
            "counts as lost.",
        ]
    ]
    grader: NotRequired[
        Annotated[GraderFields, "Only with `--grader`: the function that graded the answers."]
    ]
    loss: NotRequired[
        Annotated[Literal["differs", "drop"], "What alpha limits; without it lost answers."]
    ]
    gained: NotRequired[
        Annotated[int, "Only of a drop: questions that stopping made right; `losses` made wrong."]
    ]
    guarantees: NotRequired[
        Annotated[list[GuaranteeFields], "All limits, the first as above; only where more hold."]
    ]
    claim: Annotated[str, "The certificate in one sentence."]
    on_stop: NotRequired[Annotated[Literal["answer"], "Only with `--on-stop answer`."]]
    answer_cap: NotRequired[
        Annotated[int, "Only with `--on-stop answer`: most tokens of a visible answer."]
    ]
    transfer: NotRequired[Annotated[str, "Only after `calibrate --from`: the transfer protocol."]]
    source_digest: NotRequired[
        Annotated[str, "Only after `calibrate --from`: digest of the source policy."]
    ]
    source_model: NotRequired[
        Annotated[str | None, "Only after `calibrate --from`: model of the source policy."]
    ]


GradedByField = Annotated[
    Literal["gold", "agreement"],
    "What says that an answer is right. By `agreement`, where gold is missing, it is right where "
    "it is what full thinking answers: then every accuracy here is a share that agrees, and every "
    "risk one that differs.",
]


class RepeatFields(TypedDict):
    """How often full thinking differed from itself; never subtracted from anything."""

    questions: Annotated[int, "Fit questions that thought twice."]
    differing: Annotated[int, "Of them, those that were answered otherwise the second time."]
    share: Annotated[float, "Their share: what agreement with full thinking can mean at all."]
    ci95: Annotated[list[float], "Its exact interval."]


class ExpectedFields(TypedDict):
    """What a policy is expected to do; `test_…` only where the split has a test part."""

    weights: Annotated[WeightFields, "Prices in which the savings are counted."]
    cache_block: Annotated[int, "Tokens per block of the prefix cache."]
    fit_total_saving_pct: Annotated[
        float | None,
        "Net saving on fit questions, out of fold; null for a rule that was fitted elsewhere.",
    ]
    fit_risk: Annotated[float | None, "Share lost of the fit questions."]
    graded_by: NotRequired[
        Annotated[
            Literal["agreement"],
            "Only without gold: accuracies are shares that agree with full thinking.",
        ]
    ]
    loss: NotRequired[Annotated[str, "What risks count, where that is not lost answers."]]
    calibration_n: NotRequired[Annotated[int, "Calibration questions that entered the bound."]]
    calibration_risk: NotRequired[Annotated[float, "Share lost of them."]]
    calibration_total_saving_pct: NotRequired[Annotated[float, "Net saving on them."]]
    calibration_total_saving_band95: NotRequired[
        Annotated[
            list[float], "Its 95 % band, wide enough for a threshold that these questions chose."
        ]
    ]
    calibration_think_saving_pct: NotRequired[Annotated[float, "Thinking tokens saved on them."]]
    calibration_uncut_saving_pct: NotRequired[
        Annotated[float | None, "Net saving on those that were not cut off."]
    ]
    calibration_accuracy: NotRequired[Annotated[float, "Accuracy with stopping on them."]]
    calibration_full_accuracy: NotRequired[Annotated[float, "Accuracy of full thinking on them."]]
    calibration_answer_saving_pct: NotRequired[
        Annotated[
            float,
            "Only with `--on-stop answer`: tokens of the visible answer that are saved on them.",
        ]
    ]
    saving_by_serving: NotRequired[
        Annotated[
            dict[str, float],
            "Net saving of the same rule by serving regime: on test questions where there are any, "
            "else on calibration questions.",
        ]
    ]
    test_n: NotRequired[Annotated[int, "Test questions."]]
    test_total_saving_pct: NotRequired[Annotated[float, "Net saving."]]
    test_total_saving_ci95: NotRequired[
        Annotated[list[float] | None, "Its bootstrap-t interval; null where none was stopped."]
    ]
    test_think_saving_pct: NotRequired[Annotated[float, "Thinking tokens saved."]]
    test_uncut_saving_pct: NotRequired[
        Annotated[float | None, "Net saving on traces that were not cut off."]
    ]
    test_risk: NotRequired[Annotated[float, "Share lost."]]
    test_risk_ci95: NotRequired[Annotated[list[float], "Its exact interval."]]
    test_accuracy: NotRequired[Annotated[float, "Accuracy with stopping."]]
    test_accuracy_ci95: NotRequired[Annotated[list[float], "Its exact interval."]]
    test_full_accuracy: NotRequired[Annotated[float, "Accuracy of full thinking."]]
    test_answer_saving_pct: NotRequired[
        Annotated[
            float, "Only with `--on-stop answer`: tokens of the visible answer that are saved."
        ]
    ]


def interval_list(interval: Interval | None) -> list[float] | None:
    """Both ends of an interval; None where there is none."""
    return None if interval is None else [interval.low, interval.high]

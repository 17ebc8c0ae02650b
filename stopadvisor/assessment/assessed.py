"""The result of `assess`, as written to ``assessment.json``.

Both protocols share these keys; `paper.analysis` adds its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stopadvisor.assessment.candidates import AlwaysRung
from stopadvisor.assessment.choice import FitComparison
from stopadvisor.assessment.promises import LabelNeed, LabelRow, Promise
from stopadvisor.assessment.recommendation import Recommendation
from stopadvisor.ground.results import Shown
from stopadvisor.probes.table import GradedBy, ProbeTable, grid_positions
from stopadvisor.probes.trajectories import Share
from stopadvisor.rules.costs import Weights
from stopadvisor.rules.losses import Guarantee, LossName
from stopadvisor.rules.outcomes import StackCost
from stopadvisor.rules.roofline import Prices
from stopadvisor.runs.sources import Source
from stopadvisor.workload.questions import PartCounts

__all__ = [
    "AssessedRun", "AssessedSettings", "AssessedWorkload", "AssessmentResult", "LoadSaving",
    "PredictedRegime", "Repeats", "StackCosts",
]  # fmt: skip


# --- What both protocols show ---------------------------------------------------------------------


@dataclass(frozen=True)
class AssessedWorkload:
    """What was probed."""

    n_questions: int
    """Questions in all parts."""
    n_checkpoints: int
    """Most probes of a question."""
    budgets: tuple[int, ...]
    """Thinking tokens at which every question still thinking was probed."""
    full_reference: str
    """What full thinking means: `natural` or `last-checkpoint`."""
    graded_by: Literal["gold", "agreement"]
    """How answers are graded. By `agreement`, if gold is missing, an answer is right if it equals
    full thinking's: then every accuracy here is a share that agrees, and every risk one that
    differs."""
    truncated_share: float
    """Share of the traces that were cut off."""
    model: str | None
    """Its name; null for an archive."""
    engine: str | None
    """The engine that ran it, with its version."""
    sha256: str
    """SHA-256 of the workload file, or of the archive."""
    on_stop: Literal["answer"] | None = None
    """Only with `--on-stop answer`."""

    @classmethod
    def of(
        cls, source: Source, n_questions: int, shown: ProbeTable, graded_by: GradedBy
    ) -> AssessedWorkload:
        """Describe a source; `shown` are the questions whose traces were used."""
        return cls(
            n_questions=n_questions,
            n_checkpoints=source.table.n_checkpoints,
            budgets=tuple(grid_positions(source.table)),
            full_reference=shown.reference,
            graded_by=graded_by,
            truncated_share=float(shown.truncated.mean()),
            model=source.model,
            engine=source.engine,
            sha256=source.workload_sha256,
            on_stop="answer" if shown.on_stop == "answer" else None,
        )


@dataclass(frozen=True)
class PredictedRegime:
    """Regime predicted from the mix of questions."""

    predicted: str
    """`learned`, `scalar`, `mixed` or `full-budget`."""
    stability: float
    """Share of posterior draws with the same regime."""
    basis: Literal["all", "fit"]
    """`fit` questions or `all`."""


@dataclass(frozen=True, kw_only=True)
class AssessmentResult:
    """Result that both protocols share."""

    alpha: float | None
    """The risk asked for; null if none was: `promises` then compares several, and all else is at
    the one in `matched_risk`."""
    delta: float
    """1 minus the confidence asked for."""
    run: str
    """Where the probes are."""
    workload: AssessedWorkload
    """What was probed."""
    split: PartCounts
    """Questions in each part."""
    profile: Mapping[str, Share]
    """Kinds of questions, among the fit questions; under the paper's protocol, among all."""
    regime: PredictedRegime
    """What the profile predicts."""
    recommendation: Recommendation
    """What to do."""
    remarks: tuple[str, ...]
    """What the reader should know."""
    headline: str = ""
    """First line of the screen and of the report."""


# --- Deploy ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadSaving:
    """Saving of the advised rule at a load other than the one it was chosen for."""

    in_flight: int
    """Requests that decode together."""
    decoded: float
    """Seconds per decoded token, at the mean context."""
    saving_pct: float
    """Net saving on fit questions."""


@dataclass(frozen=True, kw_only=True)
class StackCosts:
    """Cost of the advised rule on each serving stack."""

    operating_point: str | None
    """The rule that is priced, in words."""
    prices: Prices
    """Prices of tokens."""
    by_load: tuple[LoadSaving, ...] | None = None
    """Only for computed prices: the same rule at other loads."""
    vllm: StackCost | None = None
    """Only if asked for: the policy runs inside vLLM."""
    ladder: StackCost | None = None
    """Only for a ladder: every reply at the price of its rung."""
    kv_fork: StackCost = field(metadata={"alias": "kv-fork"})
    """The server keeps the whole cache of a request."""
    prefix_cache: StackCost = field(metadata={"alias": "prefix-cache"})
    """The server caches prefixes in blocks."""
    black_box: StackCost = field(metadata={"alias": "black-box"})
    """Every request pays for its whole prefix."""

    @property
    def by_stack(self) -> dict[str, StackCost]:
        """The priced stacks, by name."""
        named = {
            "vllm": self.vllm,
            "kv-fork": self.kv_fork,
            "prefix-cache": self.prefix_cache,
            "black-box": self.black_box,
            "ladder": self.ladder,
        }
        return {name: cost for name, cost in named.items() if cost is not None}


@dataclass(frozen=True)
class AssessedSettings:
    """Settings that `calibrate` takes over."""

    serving: str
    """The serving regime."""
    weights: Weights
    """Prices of tokens."""
    cache_block: int
    """Tokens per block of the prefix cache."""
    families: tuple[str, ...]
    """Rules that may be chosen."""
    loss: LossName | None = None
    """What `alpha` limits, if not lost answers; `differs` without gold."""
    also: tuple[Guarantee, ...] | None = None
    """Only if asked for: further limits that hold at once."""
    on_give_up: Literal["reply"] | None = None
    """Only if asked for: a question that is given up gets the cheap reply."""


@dataclass(frozen=True)
class Repeats:
    """How often a second full trace gives another answer, on fit questions sampled twice.

    Shown next to a promise about differing replies, and never subtracted from it.
    """

    questions: int
    """Fit questions sampled twice."""
    differing: int
    """Those answered differently the second time; a missing answer always differs."""
    share: float
    """Their share: how often full thinking disagrees with itself."""
    ci95: tuple[float, float]
    """Exact (Clopper-Pearson) 95 % interval of the share."""


@dataclass(frozen=True, kw_only=True)
class AssessedRun(AssessmentResult, Shown):
    """The deploy protocol's result, to act on, from fit questions alone."""

    rungs: tuple[AlwaysRung, ...] | None = None
    """Only for a ladder: each rung always served, on fit questions."""
    given_up_share: float | None = None
    """Only if the advised rule gives up: share of the fit questions that it gives up."""
    request_seconds: float | None = field(default=None, metadata={"present_with": "rungs"})
    """Only for a ladder: mean seconds of a request under the advised rule, measured like those of
    each rung. Times of the rungs that a climb asks add up, because it asks one after the other; for
    `rung-agreement` the sum is an upper limit, because it asks at once for replies that it is sure
    to need. Null without a rule, or if the times in `rungs` are null."""

    protocol: Literal["deploy"] = "deploy"
    """The protocol to act on; the other one is the published analysis."""
    matched_risk: tuple[FitComparison, ...]
    """One row, for the alpha asked for."""
    serving: StackCosts
    """Net saving of the advised rule under each serving regime."""
    fit_full_accuracy: float
    """Accuracy of full thinking on fit questions."""
    fit_saving_lower_pct: float | None
    """One-sided 95 % lower limit of the net saving: over resamples, each rule measured on questions
    that had no part in its choice."""
    label_savings: tuple[LabelRow, ...]
    """Expected saving of the advised rule by the number of labels."""
    label_needs: tuple[LabelNeed, ...] | None = None
    """Only without gold: gold labels that a promise about lost answers would take."""
    repeats: Repeats | None = None
    """Only if questions were sampled twice: full thinking against itself."""
    chance_to_certify: float
    """Estimated probability that `calibrate` certifies a saving."""
    settings: AssessedSettings
    """What `calibrate` takes over."""
    asked: str | None = None
    """All limits asked for, in words, unless there is only one, on lost answers."""
    promises: tuple[Promise, ...] | None = None
    """Only without `--alpha`: what several risks would buy."""
    counted: int | None = None
    """Calibration questions that a certificate counts, one of each group; missing if all."""
    standing: tuple[Guarantee, ...] | None = None
    """Only if a look has shown outcomes of calibration questions: the limits that `calibrate` may
    still certify on them with these settings."""

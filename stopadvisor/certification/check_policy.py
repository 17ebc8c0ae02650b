"""Check a policy against fresh probes: the use case of `stopadvisor verify`.

All refusals come before a look is recorded and an outcome read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stopadvisor.answers.grading import BY_GOLD, described
from stopadvisor.assessment.fit_assessment import meaning_of_cut, remark_on_reading, words_on_cut
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.certify import unjudged
from stopadvisor.certification.looks import open_rows
from stopadvisor.certification.verification import (
    Verification,
    fresh_questions,
    scorer_of,
    under_reference,
    verify,
)
from stopadvisor.ground.arrays import IntArray
from stopadvisor.ground.constants import DEFAULT_DELTA, TRUNCATED_WARN
from stopadvisor.ground.errors import PolicyError, ProbeError
from stopadvisor.ground.printable import short_repr
from stopadvisor.ground.results import Shown
from stopadvisor.policy.claims import CertificateTerms
from stopadvisor.policy.evidence import SplitTerms
from stopadvisor.policy.frozen import MIXED_TASKS, Policy
from stopadvisor.policy.rung_policies import check_rungs
from stopadvisor.policy.terms import PolicyTerms
from stopadvisor.probes.outcomes import OpenQuestions
from stopadvisor.probes.trigger import MarkerTrigger
from stopadvisor.rules.costs import Serving, Weights
from stopadvisor.rules.losses import DIFFERS
from stopadvisor.rules.scorer import view_at
from stopadvisor.runs.access import PolicyCheck, record_check
from stopadvisor.runs.archives import names_questions
from stopadvisor.runs.imported import IMPORTED
from stopadvisor.runs.look_log import read_log
from stopadvisor.runs.manifest import recorded_sampling
from stopadvisor.runs.prices import default_settings
from stopadvisor.runs.sources import Source, read_assessment
from stopadvisor.runs.storage import lock_directory
from stopadvisor.workload.questions import PARTS

__all__ = ["CheckRequest", "CheckedPolicy", "check_kind", "check_policy", "check_probed"]


@dataclass(frozen=True)
class CheckRequest:
    """Which questions check a policy, and how savings are counted."""

    serving: Serving | None = None
    """Serving regime; None for the policy's own."""
    weights: Weights | None = None
    """Prices; None for those of the policy's own expectation."""
    transfer: bool = False
    """Allow probes of another model, template or engine."""
    test_only: bool = False
    """Use the test part only; calibration questions stay closed."""
    policies: int | None = None
    """Number of checks planned on these questions, which share delta; None keeps the earlier
    plan."""


@dataclass(frozen=True, kw_only=True)
class CheckedPolicy(Verification, Shown):
    """`verify --json`: what fresh probes say about a policy."""

    policy: str
    """File of the policy."""
    digest: str
    """Its digest."""
    run: str
    """Where the probes are."""
    part: Literal["all", "test"]
    """Which questions were used."""
    transfer: Literal["zero-shot"] | None
    """Whether conditions other than the policy's were allowed."""
    check: PolicyCheck
    """Its number among the checks on these questions."""
    remarks: tuple[str, ...]
    """What the reader should know."""
    headline: str = ""
    """First line of the screen."""


def check_policy(
    policy: Policy, file: str, source: Source, probes: str, request: CheckRequest
) -> CheckedPolicy:
    """Check a policy against the probes of a source.

    `file` and `probes` are their names in the result.

    Raises
    ------
    PolicyError
        The probes do not match what the policy is bound to, or none of them is fresh.
    ProbeError
        The source has no test part, lacks the answers of the certificate's full reference, or its
        log of looks cannot be read.
    """
    terms, certificate = policy.terms, policy.terms.certificate
    if certificate is None:
        raise PolicyError("a full-budget policy has no certificate to verify")
    source.require_whole()
    remarks = _bound(policy, source, transfer=request.transfer)
    view = source
    if request.test_only:
        rows = source.parts == PARTS.index("test")
        if not rows.any():
            raise ProbeError(f"{source.folder}: --test-only: its split has no test part")
        view = replace(source, table=source.table.take(rows), parts=source.parts[rows])
    sha = source.workload_sha256
    if source.ladder is None:
        check_probed(policy, file, source)
    # Without gold, only fit questions were sampled twice.
    repeats = view.without_repeats() is not view
    fresh = fresh_questions(terms, view.table, workload_sha256=sha, alone=repeats)
    scorer_of(terms, under_reference(certificate.reference, view.table.take(fresh.rows)))
    with lock_directory(view.folder):
        check = record_check(
            view.folder,
            policy.digest,
            view.table.take(fresh.rows).keys,
            delta=certificate.delta,
            planned=request.policies,
        )
    questions, looked = _open(policy, certificate, view, fresh.rows)
    remarks += looked + remark_on_reading(questions, source)
    remarks += unjudged(source, questions.keys)
    result = verify(
        terms,
        fresh,
        questions,
        serving=request.serving,
        weights=request.weights,
        delta=check.share_of(certificate.delta),
        rng=np.random.default_rng(source.seed),
    )
    differs = result.loss == DIFFERS.name
    if differs and certificate.loss != DIFFERS.name:
        remarks.append(
            "not every fresh question has gold: replies that differ from full thinking were "
            "counted, every lost one among them; few of them confirm the promise, many do not "
            "contradict it"
        )
    if result.truncated_share > TRUNCATED_WARN:
        remarks.append(
            f"{result.truncated_share:.1%} of {words_on_cut(source.table)[0]}: "
            f"{meaning_of_cut(differs)}"
        )
    # An imported run has no model either, but has a cap and names its questions.
    of_archive = source.is_archive or (terms.model is None and terms.max_think is None)
    split, keys = terms.split, source.table.keys
    named = split is not None and names_questions([*split.fit, *split.calibration, *keys])
    if of_archive and not named and sha != terms.workload_sha256:
        remarks.append(
            "archives do not name their questions: that none of these fitted or calibrated the "
            "policy cannot be checked"
        )
    if check.number > 1 and check.planned is None:
        remarks.append(
            f"this is check number {check.number} on these questions: each verdict has its own "
            f"delta, and the probability that any is wrong is up to {check.spent:g} on either side "
            "(--looks K with the first shares delta)"
        )
    remarks += _not_on_record(certificate.ledger_head, terms.split, source)
    return CheckedPolicy(
        **vars(result),
        policy=file,
        digest=policy.digest,
        run=probes,
        part="test" if request.test_only else "all",
        transfer="zero-shot" if request.transfer else None,
        check=check,
        remarks=tuple(remarks),
    )


def _bound(policy: Policy, source: Source, *, transfer: bool) -> list[str]:
    """Check that the probes match what the policy is bound to; return differences as remarks."""
    manifest = source.manifest
    probed = None if source.ladder else manifest  # a ladder is bound by its rungs alone
    remarks = []
    try:
        check_kind(policy.terms, source)
        if probed is not None:
            plan = probed["plan"]
            remarks = policy.check_source(
                probed["engine"],
                source.table.entropy_source,
                cue=plan["cue"],
                cap=plan["cap"],
                max_think=plan["max_think"],
                prompt_template=probed["prompt_template"] or probed["prompt_templates"],
                sampling={
                    **{key: plan[key] for key in ("greedy", "temperature")},
                    **recorded_sampling(probed),
                },
                answer_cap=plan.get("answer_cap"),
            )
        if manifest is not None:
            remarks += _graded_alike(policy.terms.grading, manifest["grading"])
        task = policy.terms.task
        others = sorted(set(source.table.tasks) - {task})
        if others and task != MIXED_TASKS:
            raise PolicyError(f"the policy answers task '{task}', got '{others[0]}'")
    except PolicyError as error:
        if not transfer:
            raise PolicyError(f"{error} (--transfer verifies it there anyway)") from error
        remarks.append(f"zero-shot transfer: {error}")
    return remarks


def check_kind(terms: PolicyTerms, source: Source) -> None:
    """Refuse replies of another ladder, and probes of one trace where the policy climbs."""
    ladder, ours = source.ladder, terms.ladder
    if ladder is None and ours is None:
        return
    if ladder is None or ours is None:
        kinds = "climbs a ladder", "stops the thinking of one trace"
        what = kinds[ours is None], "replies of a ladder" if ladder else "probes of one trace"
        raise PolicyError(f"the policy {what[0]}, and {source.folder} holds {what[1]}")
    check_rungs(terms, ladder)
    manifest, template = source.manifest, terms.prompt_template
    if manifest is None or template is None or manifest["engine"]["engine"] == IMPORTED:
        return  # the prompt of one of them is not known
    asked = manifest["prompt_template"] or manifest["prompt_templates"]
    if (dict(template) if isinstance(template, Mapping) else template) != asked:
        raise PolicyError(
            f"the policy was calibrated with the prompt template {short_repr(template)}, got "
            f"{short_repr(asked)}"
        )


def check_probed(policy: Policy, file: str, source: Source) -> None:
    """Refuse a run that was not probed where a policy probes; the error says how to probe it."""
    trigger, manifest = policy.trigger, source.manifest
    try:
        view_at(trigger, source.table)
        plan = {} if manifest is None else manifest["plan"]
        markers = {*map(tuple, plan.get("markers", ()))}
        if plan and isinstance(trigger, MarkerTrigger) and markers != {*trigger.markers}:
            raise ProbeError(f"{source.folder} was probed at other markers")
    except ProbeError as error:
        problem = f"the policy probes {trigger.describe()}: {error}"
        if manifest is not None and policy.terms.model is not None:
            workload = shlex.quote(manifest["workload"]["path"])
            command = f"stopadvisor probe {workload} --like {shlex.quote(file)}"
            problem += f": `{command}` probes where the policy does"
        raise PolicyError(problem) from error


def _graded_alike(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Refuse another normal form or grading function; remark on other versions."""
    normalizer = theirs.get("normalizer", ours["normalizer"])
    if normalizer != ours["normalizer"]:
        raise PolicyError(
            f"the policy compares answers by normaliser {ours['normalizer']!r}, the run by "
            f"{normalizer!r}: grade it again with `stopadvisor assess RUN --regrade`"
        )
    theirs = {"grader": ours["grader"], **theirs}
    names = [identity["grader"] for identity in (ours, theirs)]
    digests = [identity.get("grader_sha256") for identity in (ours, theirs)]
    if names[0] == names[1] and digests[0] == digests[1]:
        return []
    if names[0] != names[1] and any(digests):
        raise PolicyError(
            f"the policy's questions were graded by {described(ours)}, the run by "
            f"{described(theirs)}: grade it again with `stopadvisor assess RUN --regrade "
            f"--grader {names[0].partition(' ')[0] if digests[0] else BY_GOLD}`"
        )
    return [
        f"the run was graded by {described(theirs)}, the calibration questions by {described(ours)}"
    ]


def _not_on_record(head: str, split: SplitTerms | None, source: Source) -> list[str]:
    """Remark on a policy calibrated on this run's questions by a look that is not in its log."""
    if not head or split is None or not set(split.calibration) <= set(source.table.keys):
        return []
    if head in {look.head for look in read_log(source.folder).looks}:
        return []
    return [
        f"the log of looks of {source.folder} does not hold the look {head[:8]} that this policy "
        "names: either it was calibrated on another run of these questions, or this log was put "
        "back to an earlier state, and then no certificate from here can be trusted"
    ]


def _open(
    policy: Policy, certificate: CertificateTerms, view: Source, rows: IntArray
) -> tuple[OpenQuestions, list[str]]:
    """Open these questions, recording a look at the calibration questions among them."""
    # At least the default: a policy certified at delta = 0.001 must not buy a cheap look.
    delta = max(certificate.delta, DEFAULT_DELTA)
    request = {"protocol": "verify", "policy": policy.digest}
    assessed = read_assessment(view.folder)
    # A run that was never assessed may later be calibrated only at the policy's alpha.
    stands = assessed is not None and assessed["alpha"] is not None
    overrides = SettingsOverrides(alpha=None if stands else certificate.alpha)
    settings = overrides.settings(assessed, defaults=default_settings(view))
    questions, n_looked = open_rows(view, rows, request, delta=delta, standing=settings)
    said = (
        f"{n_looked} of these are calibration questions of {view.folder}: recorded as a "
        f"look; a later calibrate there has less confidence, and may not ask for anything but "
        f"alpha = {settings.alpha:g} under {settings.serving} (--test-only leaves them closed)"
    )
    return questions, [said] if n_looked else []

"""Certify a rule, then write, sign and promote its policy: the use case of `calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stopadvisor.assessment.assessed import Repeats
from stopadvisor.certification.certify import Certification, CertifyRequest, certify
from stopadvisor.certification.labelling import LabelCounts
from stopadvisor.certification.transfer import TARGET_CALIBRATED, certify_transfer
from stopadvisor.ground.errors import OutputError, PolicyError
from stopadvisor.ground.results import Shown, to_document
from stopadvisor.policy.evidence import ProfileShare
from stopadvisor.policy.file import Format
from stopadvisor.policy.frozen import Policy, load_policy, sign_policy
from stopadvisor.policy.run_policies import free_file, own_name, promote, put, stops_already
from stopadvisor.policy.shown import (
    Certificate,
    Expected,
    certificate_of,
    promise_of,
    server_words,
    where_of,
)
from stopadvisor.policy.signature import PemKey
from stopadvisor.policy.terms import trigger_of
from stopadvisor.rules.losses import LOST, LossName
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import lock_directory
from stopadvisor.stats.bounds import Certified, NotCertified

__all__ = [
    "CalibratedRun", "Headline", "LookEntry", "PolicyTarget", "RuleTest",
    "Transfer", "calibrated", "issue",
]  # fmt: skip


# --- The result -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LookEntry:
    """A look at the calibration questions."""

    number: int
    """Number of this look at these calibration questions."""
    planned: int | None
    """Number of looks planned beforehand."""
    spent: float
    """Error probability spent by all looks so far."""
    elsewhere: int
    """Number of looks on record at other questions of the run, or at other probes of these in
    neighbouring runs."""
    head: str
    """Digest of its line in the run's looks.jsonl."""
    opened: bool
    """Whether its figures are shown: those of a certificate, of labelling, or of the last planned
    look. Any other look shows only that it failed."""


@dataclass(frozen=True)
class RuleTest:
    """A rule that was tested."""

    family: str
    """The rule."""
    certified: bool
    """Whether a threshold passed."""
    position: int | None
    """Index of the last threshold that passed, in the order fixed on fit."""
    n: int
    """Calibration questions counted; all of them if the look showed no figure."""
    losses: int | None
    """Lost questions at that threshold; lost replies if two traces count."""
    upper: float | None
    """Exact upper limit there."""
    reason: str | None
    """Why none passed."""
    labels_needed: int | None
    """Number of labels that would suffice."""
    gained: int | None = None
    """Only for a drop: questions that stopping made right."""
    both: int | None = None
    """Only if two traces count: questions with both replies lost."""
    one: int | None = None
    """Questions with one reply lost."""
    differing: int | None = None
    """Only if labels were planned: replies that differ."""
    planned_labels: int | None = None
    """Number of these that were labelled, the first ones; `losses` are among them."""


@dataclass(frozen=True)
class Transfer:
    """The source policy of a rule."""

    protocol: str
    """How the policy was carried over."""
    source: str = field(metadata={"alias": "from"})
    """File of the source policy."""
    source_digest: str
    """Its digest."""
    source_model: str | None
    """Its model; null for an archive."""


@dataclass(frozen=True, kw_only=True)
class CalibratedRun(Shown):
    """A certificate or a refusal, and the policy that was written."""

    protocol: Literal["deploy"] = "deploy"
    """The only protocol that certifies."""
    run: str
    """Where the probes are."""
    alpha: float
    """The risk asked for."""
    loss: LossName | None = None
    """What it limits, `differs` or `drop`; lost answers if missing."""
    asked: str | None = None
    """All limits asked for, in words, unless there is only one, on lost answers."""
    delta: float
    """Error probability of this look; if looks were planned, of all of them together."""
    confidence: float | None
    """Confidence of a certificate from this look; null, like `look`, if no look was taken."""
    look: LookEntry | None
    """This look at the calibration questions."""
    certified: bool
    """Whether a rule was certified."""
    policy: str
    """The file that was written; no other policy is ever written there."""
    digest: str
    """Digest of that policy, which the calibration belongs to."""
    promoted: str | None
    """Its copy, the policy in use; null if another stays in use, or with `--out`."""
    kind: Literal["stop", "full-budget"]
    """`stop` or `full-budget`."""
    family: str | None
    """The exported rule; null for `full-budget`, like the next three."""
    schedule: tuple[int, ...] | None
    """Thinking tokens at which it probes; also null if each trace has positions of its own."""
    where: str | None
    """The same in words."""
    threshold: float | None
    """It stops when the score reaches this."""
    serving: str
    """The serving regime for which it was chosen."""
    on_stop: Literal["answer"] | None = None
    """Only with `--on-stop answer`."""
    certificate: Certificate | None
    """The certificate; null if nothing was certified."""
    refusal: NotCertified | None
    """Why nothing was certified."""
    tested: tuple[RuleTest, ...]
    """Each rule that was tested."""
    expected: Expected | None
    """Expected risk and saving of the policy."""
    graded_by: Literal["gold", "agreement"]
    """How answers are graded. By `agreement`, if gold is missing, an answer is right if it equals
    full thinking's: then every accuracy here is a share that agrees, and every risk one that
    differs."""
    advised_family: str | None
    """The rule that `assess` advised; null for the full budget, like the next three."""
    advised_schedule: tuple[int, ...] | None
    """Where it probes."""
    advised_where: str | None
    """The same in words."""
    advised_fit_total_saving_pct: float | None
    """Its net saving on fit questions."""
    changed: str | None
    """Why the exported rule is not the advised one; null if it is."""
    profile: Mapping[str, ProfileShare] | None
    """Trajectory types of the fit questions; with `--from`, of the calibration questions."""
    remarks: tuple[str, ...]
    """What the reader should know."""
    headline: str
    """First line of the screen and of the report."""
    repeats: Repeats | None = None
    """Only if fit questions were sampled twice: full thinking against itself."""
    transfer: Transfer | None = None
    """Only with `--from`."""
    labels: LabelCounts | None = None
    """Only if some calibration questions lack gold: the labels there are."""
    traces: int | None = None
    """Only if two traces of each calibration question were counted."""
    serve_with: tuple[str, ...] | None = None
    """Arguments after `stopadvisor serve POLICY`; missing if its stack has no server."""


Headline = Callable[[Expected | None, str], str]
"""Writes the first line from expected figures (None if not certified) and the serving stack."""


def calibrated(
    found: Certification,
    source: Source,
    files: PolicyFiles,
    headline: Headline,
    source_policy: Path | None,
) -> CalibratedRun:
    """Build the result from a certification and the files of its policy.

    `source_policy` is the file that the rule came from; None if it was chosen on this run.
    """
    settings, terms, calibration = found.settings, found.policy.terms, found.calibration
    n = calibration.first.n_questions
    look, taken_from, transfer = found.look, found.source, None
    if taken_from is not None:
        model = None if taken_from.terms.model is None else taken_from.terms.model.name
        transfer = Transfer(TARGET_CALIBRATED, str(source_policy), taken_from.digest, model)
    # A transfer chooses nothing on fit questions, so nothing was advised.
    names = "family", "schedule", "where", "fit_total_saving_pct"
    advised: dict[str, Any] = {f"advised_{name}": None for name in names}
    if found.assessment is not None:
        choice, advice = found.assessment.choice, found.assessment.recommendation
        point = choice.advised_point
        advised = {
            "advised_family": advice.family,
            "advised_schedule": advice.schedule,
            "advised_where": advice.where,
            "advised_fit_total_saving_pct": None
            if advice.family is None or point is None
            else point.fit_total_saving_pct,
            "repeats": found.assessment.repeats,
            "labels": found.labels,
        }
    entry = schedule = None
    if look is not None:
        entry = LookEntry(
            look.number, look.planned, look.spent, look.elsewhere, look.head, look.opened
        )
    if terms.kind == "stop" and terms.ladder is None:
        schedule = trigger_of(terms).positions
    return CalibratedRun(
        run=str(source.folder),
        alpha=settings.alpha,
        loss=None if settings.loss == LOST.name else settings.loss,
        asked=None if settings.is_lost else promise_of(settings.guarantees),
        delta=settings.delta if look is None else look.delta,
        confidence=None if look is None else look.confidence,
        look=entry,
        certified=calibration.rule is not None,
        policy=str(files.policy),
        digest=terms.digest,
        promoted=None if files.promoted is None else str(files.promoted),
        kind=terms.kind,
        family=terms.family,
        schedule=schedule,
        where=where_of(terms),
        threshold=terms.threshold,
        serving=terms.serving,
        on_stop="answer" if terms.on_stop == "answer" else None,
        certificate=certificate_of(terms),
        refusal=calibration.refusal,
        tested=tuple(_tested(family, result, n) for family, result in calibration.tested),
        expected=terms.expected,
        graded_by=calibration.entered.graded_by,
        profile=terms.profile,
        remarks=(*found.remarks, *files.remarks),
        headline=headline(terms.expected, terms.serving),
        changed=found.changed,
        traces=None if calibration.traces == 1 else calibration.traces,
        transfer=transfer,
        **advised,
        serve_with=server_words(terms, source.model_to_serve),
    )


def _tested(family: str, result: Certified | NotCertified, n: int) -> RuleTest:
    if isinstance(result, NotCertified):
        needed = result.labels_needed
        return RuleTest(family, False, None, n, None, None, result.reason, needed)
    found = (result.index, result.n, result.losses, result.upper, None, None)
    sample = (result.differing, result.planned_labels)
    return RuleTest(family, True, *found, result.gained, result.both, result.one, *sample)


# --- On disk --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyFiles:
    """The files of a policy."""

    policy: Path
    promoted: Path | None
    """Its copy, the policy in use; None if another stays in use."""
    remarks: tuple[str, ...] = ()
    """Why the file is not the requested one, if it is not."""


@dataclass(frozen=True)
class PolicyTarget:
    """Where to write a policy, and with which key to sign it."""

    out: Path | None = None
    """The file, JSON if its name ends in .json; None for a new file in the run, copied to
    ``policy.joblib`` when it is promoted."""
    key: PemKey | None = None
    """Signing key, if any."""

    @property
    def format(self) -> Format:
        """Format of the file."""
        return "json" if self.out is not None and self.out.suffix == ".json" else "joblib"

    def check(self, folder: Path) -> None:
        """Refuse a file that cannot be written, before a look is spent."""
        target = self.out or folder / f"policy.{self.format}"
        if target.is_dir():
            raise OutputError(f"cannot write the policy to {target}: it is a folder")
        if not target.parent.is_dir():
            raise OutputError(f"cannot write the policy to {target}: there is no such folder")
        if self.out is not None and self.out.exists() and self.out.stat().st_size:
            try:
                load_policy(self.out)
            except PolicyError as error:
                raise OutputError(
                    f"cannot write the policy to {target}: the file that is there holds no policy; "
                    "name another, or remove it"
                ) from error

    def place(self, policy: Policy, alpha: float, folder: Path) -> PolicyFiles:
        """Choose the files of a policy; never one that holds another certified policy."""
        if self.out is not None:
            file = free_file(self.out, policy, alpha)
            if file == self.out:
                return PolicyFiles(file, None)
            remark = (
                f"{self.out} holds another certified policy and is left unchanged: the new one is "
                f"{file}"
            )
            return PolicyFiles(file, None, (remark,))
        file = folder / f"{own_name(alpha, policy.digest)}.{self.format}"
        stands = stops_already(folder, format=self.format)
        use = policy.kind == "stop" or not stands
        return PolicyFiles(file, folder / f"policy.{self.format}" if use else None)


def issue(
    source: Source,
    request: CertifyRequest,
    target: PolicyTarget,
    headline: Headline,
    *,
    source_policy: Path | None = None,
) -> CalibratedRun:
    """Certify a rule and write its policy; if nothing passed, one that never stops.

    Holds the lock of the `source` meanwhile.  `source_policy` is another run's policy whose rule is
    to be calibrated here; None to choose a rule on this run.

    Raises
    ------
    OutputError
        A file cannot be written, or another process is working on the run.
    PolicyError
        `source_policy` cannot be read or transferred.
    CalibrationError, ProbeError
        As `certify`.
    """
    target.check(source.folder)
    with lock_directory(source.folder):
        if source_policy is None:
            found = certify(source, request)
        else:
            policy = load_policy(source_policy)
            found = certify_transfer(policy, str(source_policy), source, request)
        files = target.place(found.policy, found.settings.alpha, source.folder)
        result = calibrated(found, source, files, headline, source_policy)
        put(found.policy, files.policy, to_document(result), format=target.format)
        if target.key is not None:
            sign_policy(files.policy, target.key, digest=found.policy.digest)
        if files.promoted is not None:
            promote(files.policy)
    return result

"""From a request to the policy on disk: certify, name its file, write it, sign it, put it in use.

The use case of `stopadvisor calibrate`.  Knows no command line; whoever calls words the headline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stopadvisor.assessment.choice import Choice
from stopadvisor.assessment.sequences import ThresholdSequence
from stopadvisor.certification.calibrated import CalibratedRun, Headline, calibrated
from stopadvisor.certification.certify import Certification, CertifyRequest, certify
from stopadvisor.certification.partial_labels import may_be_lost
from stopadvisor.certification.transfer import certify_transfer
from stopadvisor.ground.arrays import FloatArray
from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.results import to_document
from stopadvisor.policy.file import Format
from stopadvisor.policy.frozen import Policy, load_policy, sign_policy
from stopadvisor.policy.run_policies import free_file, own_name, promote, put, stops_already
from stopadvisor.policy.signature import Key
from stopadvisor.rules.losses import LOST, Loss
from stopadvisor.rules.scorer import Scorer
from stopadvisor.runs.server_regime import read_regime
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import lock_directory
from stopadvisor.stats.bounds import max_losses, upper_limit

__all__ = ["CalibratedRisk", "Issued", "PolicyFiles", "PolicyTarget", "issue"]


@dataclass(frozen=True)
class PolicyTarget:
    """Where a policy is to go, and how."""

    out: Path | None = None
    """JSON where the name ends in .json; None: a file of its own in the run, and a copy where the
    policy is put in use."""
    key: Key | None = None
    """Signs the policy."""

    @property
    def format(self) -> Format:
        """Format of the file."""
        return "json" if self.out is not None and self.out.suffix == ".json" else "joblib"

    def check(self, folder: Path) -> None:
        """Refuse a file that cannot be written before a look is spent on it."""
        target = self.out or folder / f"policy.{self.format}"
        if target.is_dir():
            raise OutputError(f"cannot write the policy to {target}: it is a folder")
        if not target.parent.is_dir():
            raise OutputError(f"cannot write the policy to {target}: there is no such folder")

    def place(self, policy: Policy, alpha: float, folder: Path) -> PolicyFiles:
        """Name the files of a policy; none that holds another certified one is named."""
        if self.out is not None:
            file = free_file(self.out, policy, alpha)
            if file == self.out:
                return PolicyFiles(file, None)
            remark = (
                f"{self.out} holds another certified policy and stays as it is: the new one is "
                f"{file}"
            )
            return PolicyFiles(file, None, (remark,))
        file = folder / f"{own_name(alpha, policy.digest)}.{self.format}"
        stands = stops_already(folder, format=self.format)
        use = policy.kind == "stop" or not stands
        return PolicyFiles(file, folder / f"policy.{self.format}" if use else None)


@dataclass(frozen=True)
class PolicyFiles:
    """The files of a policy."""

    policy: Path
    promoted: Path | None
    """Its copy, the policy in use; None where another stays in use."""
    remarks: tuple[str, ...] = ()
    """Why the file is not the one that was asked for."""


@dataclass(frozen=True)
class Issued:
    """A policy on disk."""

    result: CalibratedRun
    """Its calibration, which stands next to it too."""
    choice: Choice | None
    """What was chosen for it; None where that was not on the run's fit questions alone."""
    risk: CalibratedRisk | None
    """Along the thresholds of its rule, where the look may show it."""


def issue(
    source: Source,
    request: CertifyRequest,
    target: PolicyTarget,
    headline: Headline,
    *,
    source_policy: Path | None = None,
) -> Issued:
    """Certify a rule and write the policy that follows; one that never stops where nothing passed.

    Parameters
    ----------
    source : Source
        Its lock is held meanwhile.
    request : CertifyRequest
    target : PolicyTarget
    headline : callable
        Words the first line.
    source_policy : Path, optional
        Policy of another run, whose rule is calibrated here; None to choose one here.

    Raises
    ------
    OutputError
        A file cannot be written, or another process works on the run.
    PolicyError
        `source_policy` cannot be read, or not be carried over.
    CalibrationError
        Settings out of range, or too few questions.
    ProbeError
        The run's assessment or log of looks cannot be read.
    """
    target.check(source.folder)
    with lock_directory(source.folder):
        if source_policy is None:
            found = certify(source, request)
        else:
            policy = load_policy(source_policy)
            found = certify_transfer(policy, str(source_policy), source, request)
        chosen = None if request.fresh else found.assessment
        files = target.place(found.policy, found.settings.alpha, source.folder)
        server = None if source.is_archive else read_regime(source.folder)
        result = calibrated(
            found,
            str(source.folder),
            str(files.policy),
            None if files.promoted is None else str(files.promoted),
            files.remarks,
            headline,
            source_policy=None if source_policy is None else str(source_policy),
            measured=None if server is None else server.regime,
            model=source.model_to_serve,
        )
        put(found.policy, files.policy, to_document(result), format=target.format)
        if target.key is not None:
            sign_policy(files.policy, target.key, digest=found.policy.digest)
        if files.promoted is not None:
            promote(files.policy)
    return Issued(result, None if chosen is None else chosen.choice, _calibrated_risk(found))


@dataclass(frozen=True)
class CalibratedRisk:
    """Risk of a calibrated rule on its calibration questions."""

    scorer: Scorer
    order: FloatArray  # (n_thresholds,) linear scale, as tested
    risk: FloatArray  # (n_thresholds,) what a reply counts on average
    n: int
    alpha: float
    delta: float
    """Of this sequence."""
    exported: int | None
    """Index of the exported threshold; None where nothing was certified."""
    loss: Loss = LOST
    is_binomial: bool = True
    """Whether one trace of each question decides, and every label that can matter."""

    @property
    def limit(self) -> float:
        """Share lost up to which the test passes; negative where none does.

        Only the binomial test has one: what passes of a drop depends on how many are gained, of
        two traces on how many are lost together, and of a sample of labels on how many differ.
        """
        if not self.is_binomial:
            return -1.0
        return max_losses(self.n, self.alpha, self.delta) / self.n

    def sequence_in(self, choice: Choice) -> ThresholdSequence | None:
        """The rule on fit questions that was calibrated; None where it was fitted elsewhere."""
        for sequence in choice.compared:
            same = sequence.scorer.family == self.scorer.family
            if same and np.array_equal(sequence.thresholds, self.order):
                return sequence
        return None

    def upper_limits(self) -> FloatArray | None:
        """Upper limit of each risk by itself, shape (n_thresholds,); None where `limit` is none.

        The other tests have to be inverted for each, which takes up to a minute for 400 thresholds.
        """
        if not self.is_binomial:
            return None
        losses = np.rint(self.risk * self.n).astype(int)
        return np.array([upper_limit(int(k), self.n, self.delta) for k in losses])


def _calibrated_risk(found: Certification) -> CalibratedRisk | None:
    """Risk of the exported rule along its thresholds, or of the first that was refused.

    None where no look was taken or it showed no figure, where a rule from another run was refused,
    and where one was refused on few labels.
    """
    calibration, settings = found.calibration, found.settings
    if found.look is None or not found.look.opened:
        return None
    if calibration.rule is not None:
        scorer, order = calibration.rule.scorer, calibration.rule.order
        exported: int | None = calibration.rule.certificate.index
        delta = calibration.rule.certificate.delta
    elif found.assessment is not None and found.labels is None:
        first = found.assessment.choice.sequences[0]
        scorer, order, exported, delta = first.scorer, first.thresholds, None, settings.delta
    else:
        return None
    counted, alpha = settings.counted, settings.alpha
    entered = calibration.entered if counted.is_binary else calibration.first
    n = calibration.first.n_questions
    view = scorer.view(entered)
    curve, losses, plan = scorer.curve(view, order), scorer.losses(view, counted), calibration.plan
    risk = curve.totals(losses)[0].round() / entered.n_questions
    is_sample = plan is not None and plan.is_sample
    if plan is not None and is_sample:
        risk = plan.risk(curve.each(may_be_lost(view)), curve.each(losses > 0))
    is_binomial = counted.is_binary and entered.n_questions == n and not is_sample
    return CalibratedRisk(scorer, order, risk, n, alpha, delta, exported, counted, is_binomial)

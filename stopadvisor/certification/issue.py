"""From a request to the policy on disk: certify, name its file, write it, sign it, put it in use.

The use case of `stopadvisor calibrate`.  Knows no command line; whoever calls words the headline.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stopadvisor.certification.calibrated import CalibratedRun, Headline, calibrated
from stopadvisor.certification.certify import CertifyRequest, certify
from stopadvisor.certification.transfer import certify_transfer
from stopadvisor.ground.errors import OutputError
from stopadvisor.ground.results import to_document
from stopadvisor.policy.file import Format
from stopadvisor.policy.frozen import Policy, load_policy, sign_policy
from stopadvisor.policy.run_policies import free_file, own_name, promote, put, stops_already
from stopadvisor.policy.signature import PemKey
from stopadvisor.runs.sources import Source
from stopadvisor.runs.storage import lock_directory

__all__ = ["PolicyFiles", "PolicyTarget", "issue"]


@dataclass(frozen=True)
class PolicyTarget:
    """Where a policy is to go, and how."""

    out: Path | None = None
    """JSON where the name ends in .json; None: a file of its own in the run, and a copy where the
    policy is put in use."""
    key: PemKey | None = None
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


def issue(
    source: Source,
    request: CertifyRequest,
    target: PolicyTarget,
    headline: Headline,
    *,
    source_policy: Path | None = None,
) -> CalibratedRun:
    """Certify a rule and write the policy that follows; one that never stops where nothing passed.

    The lock of the `source` is held meanwhile.  `headline` words the first line; `source_policy` is
    a policy of another run, whose rule is calibrated here, and None to choose one here.

    Raises
    ------
    OutputError
        A file cannot be written, or another process works on the run.
    PolicyError
        `source_policy` cannot be read, or not be carried over.
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
        result = calibrated(
            found,
            str(source.folder),
            str(files.policy),
            None if files.promoted is None else str(files.promoted),
            files.remarks,
            headline,
            source_policy=None if source_policy is None else str(source_policy),
            model=source.model_to_serve,
        )
        put(found.policy, files.policy, to_document(result), format=target.format)
        if target.key is not None:
            sign_policy(files.policy, target.key, digest=found.policy.digest)
        if files.promoted is not None:
            promote(files.policy)
    return result

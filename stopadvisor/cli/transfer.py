"""`calibrate --from`: the rule of another policy, certified here.

The steps that differ from a plain calibration, and what is printed of them; the order of the steps
is `calibrate`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from stopadvisor._version import __version__
from stopadvisor.assessment.choice import Settings
from stopadvisor.certification.budgets import check_budgets
from stopadvisor.certification.calibration import Calibration, entering_rows
from stopadvisor.certification.transfer import (
    calibrate_transfer,
    check_transfer,
    target_view,
    transferred_content,
)
from stopadvisor.policy.frozen import Policy
from stopadvisor.report.documents.calibrate import CalibrateDocument, certification_fields
from stopadvisor.report.documents.parts import look_remarks
from stopadvisor.report.documents.transfer import ComparisonFields, transfer_fields
from stopadvisor.report.text.screen import Screen, interval, number, percent, share
from stopadvisor.runs.ledger import Look, LookRequest
from stopadvisor.runs.sources import ASSESSMENT, Source, looks_elsewhere

__all__ = ["Transfer", "show_transfer"]

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Transfer:
    """A policy and the target on which it is to be calibrated."""

    policy: Policy
    path: Path
    target: Source
    asked: Settings
    settings: Settings
    """As asked, delta shared between planned looks."""
    planned: int | None

    @classmethod
    def prepare(
        cls, policy: Policy, path: Path, target: Source, asked: Settings, planned: int | None
    ) -> Transfer:
        """Refuse what can be refused before a look is spent."""
        settings = replace(asked, delta=asked.delta / (planned or 1))
        check_budgets(policy, str(path), target)
        check_transfer(policy.content, target)
        entering_rows(target_view(target).part("calibration"), settings)
        return cls(policy, path, target, asked, settings, planned)

    def ask(self) -> LookRequest:
        """The look at every question outside the test part."""
        given = asdict(self.asked)
        for name in ("delta", "families"):
            del given[name]
        request = {
            "protocol": "transfer",
            "policy": self.policy.digest,
            **given,
            "data": self.target.fingerprint(),
            "version": __version__,
        }
        keys = target_view(self.target).part("calibration").keys
        elsewhere = looks_elsewhere(self.target, keys)
        return LookRequest(keys, request, self.asked.delta, self.planned, elsewhere)

    def calibrate(self) -> Calibration:
        """Certify; the first that opens an outcome."""
        return calibrate_transfer(self.policy.content, self.target, self.settings)

    def content(self, calibration: Calibration, look: Look) -> dict[str, Any]:
        """Fields of the transferred policy."""
        return transferred_content(
            self.policy.content, self.target, calibration, self.settings, look
        )

    def document(
        self,
        calibration: Calibration,
        look: Look,
        content: Document,
        written: Path,
        n_earlier: int,
        comparison: ComparisonFields | None,
    ) -> CalibrateDocument:
        """What `calibrate --from --json` prints: `calibrate`'s fields, and `transfer`."""
        return {
            **certification_fields(
                self.target.folder,
                self.settings.alpha,
                calibration,
                look,
                conditional=self.settings.conditional,
                content=content,
                policy_path=written,
            ),
            # Nothing is chosen on fit questions here, so nothing was advised.
            "advised_family": None,
            "advised_schedule": None,
            "advised_fit_total_saving_pct": None,
            "profile": content["profile"],
            "remarks": self._remarks(n_earlier, look),
            "transfer": transfer_fields(self.policy.content, self.path, comparison),
        }

    def _remarks(self, n_earlier: int, look: Look) -> list[str]:
        found = look_remarks(look, n_earlier)
        source, target = self.policy.content, self.target
        if (target.folder / ASSESSMENT).exists() and not target.is_archive:
            found.append(
                "the fit questions, open to assess before, calibrate here: the certificate takes "
                "policy and alpha as settled without them"
            )
        differs = source["entropy_source"] != target.table.entropy_source
        if differs and self.policy.reads_logprobs:
            found.append(
                f"the policy's entropies were '{source['entropy_source']}', here they are "
                f"'{target.table.entropy_source}': the certificate holds, the rule may suit less"
            )
        if source["model"] is None and source["workload_sha256"] != target.workload_sha256:
            found.append(
                "the policy comes from an archive, which does not name its questions: that none of "
                "these fitted it cannot be checked"
            )
        return found


def show_transfer(document: Document, out: TextIO) -> None:
    """Print where the rule came from, and the comparison where one was asked for."""
    screen = Screen(out)
    transfer = document["transfer"]
    model = transfer["source_model"] or "no model (an archive)"
    screen.items(
        "Transfer",
        [
            f"The rule comes from {transfer['from']} ({model}, digest "
            f"{transfer['source_digest'][:8]}); its threshold was certified here."
        ],
    )
    comparison = transfer["comparison"]
    if comparison is None:
        return
    screen.table(
        f"Compared on {comparison['n_test']} test questions, {comparison['labels']} labels to use",
        ("", "labels", "saving", "", "risk", ""),
        [
            (
                row["protocol"],
                str(row["labels_used"]),
                percent(row["test_total_saving_pct"]),
                interval(row["test_total_saving_ci95"]),
                share(row["test_risk"]),
                interval(row["test_risk_ci95"], 100),
            )
            for row in comparison["rows"]
        ],
    )
    for row in comparison["rows"]:
        rule = "full budget"
        if row["family"] is not None:
            rule = f"{row['family']} at {number(row['threshold'])}"
        text = "certified here" if row["certified"] else f"not certified here: {row['reason']}"
        if row["test_verdict"] is not None:
            text += f"; the test questions alone: {row['test_verdict']}"
        screen.text(f"{row['protocol']} ({rule}): {text}")
    screen.text(
        f"Training a rule here was look number {comparison['look']['number']} at these questions; "
        f"a certificate of it has confidence {share(comparison['look']['confidence'])}. Intervals "
        "are pointwise, and the policy written is the target-calibrated one whatever they show."
    )

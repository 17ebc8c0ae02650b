"""The verdict of `verify` as JUnit XML, which pipelines show with their tests."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from stopadvisor.certification.check_policy import CheckedPolicy
from stopadvisor.ground.printable import printable
from stopadvisor.report.words import share
from stopadvisor.runs.storage import replace_file

__all__ = ["write_junit"]

_DRIFTED = 0.05


def write_junit(checked: CheckedPolicy, path: Path) -> None:
    """Write one case for the certificate, and one for each feature of the questions.

    A contradiction is a failure.  What the probes are too few to say is skipped, and so is drift,
    which alone says nothing of the risk.
    """
    certificate = (
        f"{checked.losses} of {checked.n * (checked.traces or 1)} fresh "
        f"{'questions' if checked.traces is None else 'replies'} count against the policy, "
        f"between {share(checked.lower)} and {share(checked.upper)}; it promises at most "
        f"{share(checked.alpha)}"
    )
    suite = ElementTree.Element("testsuite", name="stopadvisor verify", errors="0")
    end = {"contradicted": "failure", "silent": "skipped"}.get(checked.verdict)
    _case(suite, "certificate", end, certificate)
    for drift in checked.drift:
        text = f"distance {drift.distance:.3f}, adjusted p {drift.adjusted_p:.3g}"
        drifted = drift.adjusted_p <= _DRIFTED
        _case(suite, f"drift.{drift.feature}", "skipped" if drifted else None, text)
    for kind, counted in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        suite.set(kind, str(len(list(suite.iter(counted)))))
    ElementTree.indent(suite)
    text = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    replace_file(path, text.encode() + b"\n")


def _case(suite: ElementTree.Element, name: str, end: str | None, text: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="policy", name=printable(name))
    if end is None:
        ElementTree.SubElement(case, "system-out").text = printable(text)
    else:
        ElementTree.SubElement(case, end, message=printable(text))

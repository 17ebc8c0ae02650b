"""What studies of the paper share: views of the sources, the comparison at equal risk, resamples.

Knows no study by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stopadvisor.assessment.choice import Settings
from stopadvisor.ground.arrays import FloatArray, IntArray
from stopadvisor.ground.errors import CalibrationError, StudyError
from stopadvisor.ground.progress import tracked
from stopadvisor.paper.peaks import resample_gains
from stopadvisor.paper.protocol import MatchedRisk, PaperSetting, match_risk, paper_split
from stopadvisor.rules.families import SCALAR_FAMILIES
from stopadvisor.runs.access import View, labels, view
from stopadvisor.runs.manifest import differences, identity_of
from stopadvisor.runs.sources import Source
from stopadvisor.studies.tables import Outline, Row, StudyOptions, StudyReport

__all__ = [
    "compare_at_risk", "gains_resampled", "paper_setting", "paper_views", "require_related",
    "study_each", "study_settings",
]  # fmt: skip


def study_each(
    outline: Outline,
    sources: Sequence[Source],
    options: StudyOptions,
    rows: Callable[[View, StudyOptions], Iterable[Row | str]],
) -> StudyReport:
    """Run a study that looks at one source at a time."""
    views = paper_views(sources)
    made = [row for shown in tracked("studying runs", views) for row in rows(shown, options)]
    return outline.result(made, options, views)


def paper_views(sources: Sequence[Source]) -> list[View]:
    """What may be shown of each source, under the paper's ``last-checkpoint`` reference.

    Raises
    ------
    StudyError
        A question that may be shown has no gold.
    """
    views = [view(source, name) for source, name in zip(sources, labels(sources), strict=True)]
    for shown in views:
        if shown.table.graded_by != "gold":
            raise StudyError(
                f"{shown.label}: the paper's analysis takes gold for every question, and not all "
                "of these have it"
            )
    return [replace(v, table=v.table.with_reference("last-checkpoint")) for v in views]


def paper_setting(view: View) -> PaperSetting:
    """Scores and costs of a view under the paper's protocol."""
    try:
        return PaperSetting.build(view.table)
    except CalibrationError as error:
        raise StudyError(f"{view.label}: {error}") from error


def compare_at_risk(
    setting: PaperSetting, options: StudyOptions, *, rivals: Sequence[str] = SCALAR_FAMILIES
) -> MatchedRisk:
    """The learned rule against others at `options.alpha`, on the paper's 40/60 split."""
    (comparison,) = match_risk(
        setting,
        *paper_split(len(setting.correct)),
        alphas=[options.alpha],
        delta=options.delta,
        rivals=rivals,
        n_resamples=options.resamples,
    )
    return comparison


def gains_resampled(
    stops: Mapping[str, IntArray], setting: PaperSetting, options: StudyOptions
) -> dict[str, FloatArray]:
    """Gain of each rule in each resample, (n_resamples,); thresholds frozen, the same resamples."""
    return resample_gains(
        stops,
        setting.costs.thinking,
        setting.correct,
        n_resamples=options.resamples,
        rng=np.random.default_rng(options.seed),
    )


def study_settings(options: StudyOptions) -> Settings:
    """Settings of the deploy protocol in a study."""
    return Settings(
        alpha=options.alpha,
        delta=options.delta,
        serving=options.serving,  # type: ignore[arg-type]  # Settings itself checks it
    )


def require_related(sources: Sequence[Source], *, varied: Collection[str]) -> None:
    """Refuse runs that differ in more than a study varies.

    `varied` holds dotted names of manifest fields that may differ, such as ``plan.cue``.

    Raises
    ------
    StudyError
        One is an archive, which does not say how it was drawn; two runs have no question in
        common; or they differ in another field.
    """
    names = labels(sources)
    identities = []
    for name, source in zip(names, sources, strict=True):
        if source.manifest is None:
            raise StudyError(f"{name} is an archive: it does not say how its probes were drawn")
        identities.append(identity_of(source.manifest))
    keys = set(sources[0].table.keys)
    for name, identity, source in zip(names[1:], identities[1:], sources[1:], strict=True):
        if not keys & set(source.table.keys):
            raise StudyError(f"{name} and {names[0]} have no question in common")
        for difference in differences(identity, identities[0]):
            if difference.partition(":")[0] not in varied:
                raise StudyError(
                    f"runs may differ in {', '.join(sorted(varied))} only; {name} against "
                    f"{names[0]}: {difference}"
                )

"""Whether runs can be compared: what differs in their manifests, beside what a study varies.

Reads manifests alone; knows no outcome and no study.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stopadvisor.ground.errors import StudyError
from stopadvisor.runs.access import labels
from stopadvisor.runs.manifest import differences, identity_of
from stopadvisor.runs.sources import Source

__all__ = ["require_related"]


def require_related(sources: Sequence[Source], *, varied: Collection[str]) -> None:
    """Refuse runs that differ in more than a study varies.

    `varied` holds dotted names of manifest fields that may differ, such as ``plan.cue``.

    Raises
    ------
    StudyError
        An archive, which says nothing of how it was drawn; runs over other questions; or runs
        that differ in another field.
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
        for found in differences(identity, identities[0]):
            if found.partition(":")[0] not in varied:
                raise StudyError(
                    f"runs may differ in {', '.join(sorted(varied))} only; {name} beside "
                    f"{names[0]}: {found}"
                )

"""Groups of several questions, as fit questions show them: how large, and how they lose together.

What is read here is settled before calibration; of calibration questions come in their number and
that of their groups, nothing else.
"""

from __future__ import annotations

import numpy as np

from stopadvisor.assessment.requirements import Settings
from stopadvisor.errors import CalibrationError
from stopadvisor.probes.grouping import group_numbers, group_sizes, question_rows
from stopadvisor.probes.outcomes import FitQuestions
from stopadvisor.stats.group_test import GroupTest

__all__ = ["group_test", "require_whole_groups"]


def group_test(
    table: FitQuestions, n_calibration: int, n_groups: int | None, settings: Settings
) -> GroupTest | None:
    """Say how questions will be tested, where a group can hold several.

    Parameters
    ----------
    table : FitQuestions
        All of them.
    n_calibration : int
        Calibration questions.
    n_groups : int, optional
        Their groups; None for as many as groups of the size on fit.
    settings : Settings
        `group_cap` is None for the largest group on fit.

    Returns
    -------
    GroupTest or None
        None where every group is one question, or one of each is all that is to be counted.

    Raises
    ------
    CalibrationError
        A fit group is larger than the cap, or the settings test single questions.
    """
    if settings.group_claim == "groups":
        return None
    cap = settings.group_cap
    sizes = group_sizes(table)
    largest = int(sizes.max(initial=1))
    if cap is not None and largest > cap:
        raise CalibrationError(
            f"--group-cap must be at least the largest fit group, {largest} questions, got {cap}"
        )
    most = cap or largest
    if most == 1:
        return None
    require_whole_groups(settings, most)
    size = float(sizes.mean()) if n_groups is None else n_calibration / max(n_groups, 1)
    # A calibration group may be larger than declared: then it is refused, but not here.
    size = min(max(size, 1.0), float(most))
    return GroupTest(most, size, _lost_together(table, settings))


def require_whole_groups(settings: Settings, most: int) -> None:
    """Refuse settings that test single questions, where a group can hold `most`."""
    for name, single in (
        ("--conditional", settings.conditional),
        (f"--bound {settings.bound}", settings.bound != "exact"),
        ("a limit on drop", any(not each.counted.is_binary for each in settings.guarantees)),
        ("a limit of one category", any(each.category for each in settings.guarantees)),
    ):
        if single:
            raise CalibrationError(
                f"{name} counts single questions, and a group here holds up to {most}: leave it "
                "out, or say --group-claim groups"
            )


def _lost_together(table: FitQuestions, settings: Settings) -> float:
    """Lost questions in a group that loses any, on average.

    Whatever rule comes of it: of all groups, stopped at each of their probes in turn, as far as the
    share lost is below alpha there, and at all probes where it is nowhere.
    """
    table = table.take(question_rows(table))
    groups = group_numbers(table)
    lost = settings.counted_on(table.graded_by).of(table)[:, :-1]
    per_group = np.zeros((int(groups.max(initial=0)) + 1, lost.shape[1]))
    np.add.at(per_group, groups, lost)
    risk = lost.mean(axis=0)
    near = (risk > 0) & (risk < settings.alpha)
    losing = per_group[:, near if near.any() else risk > 0]
    return float(losing[losing > 0].mean()) if losing.any() else 1.0

"""Parts that several documents share, and what holds for all: the fields that other programs read.

A document is a `TypedDict`; the sentence beside a field's type describes it in the JSON Schema
files and in this wing's README.  Knows no command.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

__all__ = [
    "GradedByField",
    "KindShare",
    "PartCountFields",
    "ProfileFields",
    "RepeatFields",
    "RequestTokens",
    "WeightFields",
]


class KindShare(TypedDict):
    """One kind of question."""

    count: Annotated[int, "Questions of this kind."]
    share: Annotated[float, "Their share."]
    ci95: Annotated[list[float], "Its exact interval."]


class ProfileFields(TypedDict):
    """How questions behave along their thinking."""

    early_solved: Annotated[KindShare, "Right at the first checkpoint and at the end."]
    beneficial: Annotated[KindShare, "Wrong at first, right once and for good."]
    harmful: Annotated[KindShare, "Right somewhere, wrong at the end."]
    unsolved: Annotated[KindShare, "Never right."]
    oscillating: Annotated[KindShare, "Changing between right and wrong."]


class PartCountFields(TypedDict):
    """Questions in each part of the split."""

    fit: Annotated[int, "Choose and fit the rule."]
    calibration: Annotated[int, "Closed until `calibrate` opens them."]
    test: Annotated[int, "Measure what a policy does."]


class WeightFields(TypedDict):
    """Price of a token of each kind."""

    prefilled: Annotated[float, "Read for the first time."]
    cached: Annotated[float, "Read from the cache."]
    decoded: Annotated[float, "Generated."]
    unit: Annotated[str, "What the prices are in."]
    request: NotRequired[Annotated[float, "Measured only: of a request, whatever it reads."]]
    round_trip: NotRequired[
        Annotated[
            float, "Measured only: tokens that a trace decodes while a request is on its way."
        ]
    ]


class RequestTokens(TypedDict):
    """Mean tokens of a request."""

    decoded: Annotated[float, "Generated."]
    cached: Annotated[float, "Read from the cache."]
    prefilled: Annotated[float, "Read for the first time."]


GradedByField = Annotated[
    Literal["gold", "agreement"],
    "What says that an answer is right. By `agreement`, where gold is missing, it is right where "
    "it is what full thinking answers: then every accuracy here is a share that agrees, and every "
    "risk one that differs.",
]


class RepeatFields(TypedDict):
    """How often full thinking differed from itself; never subtracted from anything."""

    questions: Annotated[int, "Fit questions that thought twice."]
    differing: Annotated[int, "Of them, those that were answered otherwise the second time."]
    share: Annotated[float, "Their share: what agreement with full thinking can mean at all."]
    ci95: Annotated[list[float], "Its exact interval."]

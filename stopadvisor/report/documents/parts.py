"""Parts that several documents share, and what holds for all: the fields that other programs read.

A document is a `TypedDict`; the sentence beside a field's type describes it in the JSON Schema
files and in this wing's README.  Knows no command.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from stopadvisor.rules.roofline import PriceSource

__all__ = [
    "GradedByField",
    "KindShare",
    "PartCountFields",
    "PriceFields",
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
    held: NotRequired[
        Annotated[
            float,
            "Computed only: what a decoded token costs more for each token of its context; "
            "`decoded` is without any.",
        ]
    ]
    context: NotRequired[Annotated[float, "Computed only: at which mean context, in tokens."]]
    gpu: NotRequired[Annotated[str, "Computed only: for which accelerators."]]
    model: NotRequired[Annotated[str, "Computed only: for which model."]]
    in_flight: NotRequired[Annotated[int, "Not of a bill: requests that decode together."]]


class PriceFields(TypedDict):
    """What tokens cost, and where that is known from."""

    source: Annotated[PriceSource, "Where the prices are from."]
    gpu: Annotated[str | None, "Accelerators for which they were computed."]
    in_flight: Annotated[int | None, "Requests that decode together."]
    prefilled: Annotated[float, "Of a token that is read for the first time."]
    cached: Annotated[float, "Of one read back from the cache."]
    decoded: Annotated[float, "Of one that is decoded, at the mean context."]
    request: Annotated[float, "Of a request, whatever it reads and decodes."]


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

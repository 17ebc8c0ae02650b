"""Honest policies of every kind, and a judge of what no policy may claim.

`impossible` judges a loaded content with scipy, and without any code of the loader:
`tests/policy/test_mutants.py` checks that the loader refuses whatever it finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scipy import stats

from stopadvisor.policy.file import sealed
from stopadvisor.policy.frozen import load_policy
from stopadvisor.stats.bounds import upper_limit
from stopadvisor.stats.intervals import exact_interval
from stopadvisor.stats.label_sample import sample_limit, sample_passes
from stopadvisor.stats.trinomial import drop_limit, drop_passes, risk_of_pairs
from tests.policy_content import (
    anywhere_content,
    built,
    certificate_content,
    example_content,
    family_content,
    ladder_content,
)

__all__ = ["EXAMPLE", "impossible", "originals", "shipped"]

POLICIES = sorted((Path(__file__).parents[2] / "policies").glob("*.joblib"))
_KEPT = 4
"""Entries of long lists that are kept: a mutant of a short file is loaded in a millisecond."""
_MOST_TOKENS = 2**24


# --- Honest policies ------------------------------------------------------------------------------


def _certified(losses: int, n: int, *, chain_delta: float = 0.05, **more: Any) -> dict[str, Any]:
    """A certificate as `calibrate` writes it."""
    certificate = certificate_content(n=n, losses=losses)
    certificate |= {"chain_delta": chain_delta, "upper": upper_limit(losses, n, chain_delta)}
    certificate["max_think"] = 4096
    return certificate | {"differs_upper": upper_limit(losses + 4, n, 0.05)} | more


def _expected(losses: int, n: int) -> dict[str, Any]:
    shares = {"risk": losses / n, "accuracy": 60 / n, "full_accuracy": 62 / n}
    expected: dict[str, Any] = example_content()["expected"] | {
        "calibration_n": n,
        "test_n": n,
        "test_risk_ci95": list(exact_interval(losses, n)),
        "test_accuracy_ci95": list(exact_interval(60, n)),
    }
    return expected | {f"{p}_{k}": v for p in ("calibration", "test") for k, v in shares.items()}


@cache
def shipped() -> tuple[dict[str, Any], ...]:
    """Contents of the shipped policies, with few or short question ids."""
    found = []
    for path in POLICIES:
        content = load_policy(path).content
        for part in ("fit", "test"):
            content["split"][part] = content["split"][part][:_KEPT]
        # As many as the certificate counts, but under short names.
        content["split"]["calibration"] = [
            str(k) for k in range(len(content["split"]["calibration"]))
        ]
        if content["calibration_features"] is not None:  # one that never stops has none
            content["calibration_features"] = content["calibration_features"][:_KEPT]
        found.append(content | {"digest": sealed(content)[1]})
    return tuple(found)


@cache
def originals() -> tuple[dict[str, Any], ...]:
    """The shipped policies, and others of every kind of promise and of trigger."""
    planned = {"planned_looks": 3, "looks": 2}
    drop = _certified(9, 240, loss="drop", gained=5, upper=drop_limit(9, 5, 240, 0.05))
    first = {"loss": "lost", "alpha": 0.15, "n": 80, "lost": 5, "gained": 0, "category": None}
    several = [first | {"upper": upper_limit(5, 80, 0.05)}]
    several.append(several[0] | {"loss": "differs", "lost": 6, "upper": upper_limit(6, 80, 0.05)})
    thirds = _certified(3, 80, chain_delta=0.05 / 3, **planned)
    both = _certified(5, 80, guarantees=several)
    third = _certified(5, 80, looks=3, confidence=0.88, earlier_deltas=[0.05, 0.02])
    pairs = {"both": 2, "one": 3, "none": 75}
    twice = _certified(7, 80, upper=risk_of_pairs(2, 75, 80, 0.05), traces=2, **pairs)
    sample = {"differing": 31, "planned_labels": 12, "labelled": 14}
    drawn = _certified(2, 200, upper=sample_limit(2, 31, 200, 12, 0.05), **sample)
    made = [
        EXAMPLE,
        example_content(certificate=drawn | {"differs_upper": 0.3}, expected=None),
        example_content(certificate=twice, expected=None),
        anywhere_content("marker-stop", certificate=thirds, expected=None),
        anywhere_content("stride-stop", "agreement", certificate=both),
        family_content("fixed-budget") | {"certificate": drop},
        anywhere_content("stride", certificate=third),
        ladder_content(certificate=drop | {"max_think": None}, expected=None),
        ladder_content("rung-agreement", expected=None),
    ]
    return (*shipped(), *(built(content) for content in made))


EXAMPLE = example_content(certificate=_certified(5, 80), expected=_expected(5, 80))


# --- Judging --------------------------------------------------------------------------------------


def _impossible_sample(c: Mapping[str, Any], chain: float) -> Iterator[str]:
    n, losses, upper = c["n"], c["losses"], c["upper"]
    differing, labels = (c.get(name) or 0 for name in ("differing", "planned_labels"))
    if not 0 <= losses <= min(differing, labels) <= differing <= n or c.get("labelled") is None:
        yield f"{losses} lost of {labels} labelled of {differing} of {n}"
    elif upper > c["alpha"] * 1.0011 or losses * max(differing / (labels or 1), 1) / n > upper:
        yield "a limit above alpha, or below what was counted"
    elif not sample_passes(losses, differing, n, labels, min(upper * 1.002 + 1e-3, 0.9999), chain):
        yield "a sample that does not show it"


def _impossible_limit(c: Mapping[str, Any], chain: float) -> Iterator[str]:
    n, losses, gained = c["n"], c["losses"], c.get("gained", 0)
    if c.get("differing") is not None or c.get("planned_labels") is not None:
        yield from _impossible_sample(c, chain)
        return
    pairs = [c[name] for name in ("both", "one", "none") if c.get(name) is not None]
    if pairs:
        both, one, none = (*pairs, 0, 0, 0)[:3]
        if min(pairs) < 0 or [both + one + none, 2 * both + one, len(pairs)] != [n, losses, 3]:
            yield f"{pairs} of {n} with {losses} lost replies"
        elif not drop_passes(both, none, n, min(2 * c["upper"] * 1.002 - 0.998, 0.9999), chain):
            yield "two traces that do not show it"
    if not 0 <= losses + gained <= n * (2 if pairs else 1):
        yield f"{losses} + {gained} of {n}"
    if c["upper"] > c["alpha"] * 1.0011:
        yield "a limit above alpha"
    if c.get("loss") == "drop":
        if not drop_passes(losses, gained, n, min(c["upper"] * 1.002 + 1e-3, 0.9999), chain):
            yield "a drop that is not shown"
    elif not pairs and (
        losses >= n
        or abs(stats.beta.ppf(1 - chain, losses + 1, n - losses) / c["upper"] - 1) > 2e-3
    ):
        yield "another limit than that of the counts"


def _impossible_promise(content: Mapping[str, Any]) -> Iterator[str]:
    c = content["certificate"]
    delta, looks, planned = c["delta"], c["looks"], c.get("planned_looks")
    earlier = c.get("earlier_deltas") or []
    left, confidence = 1 - delta - sum(earlier), c["confidence"]
    if len(earlier) != (0 if planned else looks - 1):
        yield f"look {looks} of {planned} after those at {earlier}"
    if not confidence > 0 or abs(confidence - left) > 1e-9:
        yield f"confidence {confidence} at delta {delta} after looks at {earlier}"
    if planned is not None and looks > planned:
        yield "more looks than planned"
    chain = c.get("chain_delta", delta)
    if not 0 < chain <= delta / (planned or 1) * 1.0000001:
        yield "tests at more than delta"
    if (c.get("traces") or 1) != (1 if c.get("both") is None else 2):
        yield "pairs without two traces"
    if c["bound"] == "exact":
        yield from _impossible_limit(c, chain)
        for each in c.get("guarantees", ()):
            yield from _impossible_limit({**c, **each, "losses": each["lost"]}, chain)
    if c.get("alpha_over_full_accuracy", 1) < c["alpha"]:
        yield "more right answers than questions"
    lost = c["losses"] if c.get("both") is None else c["both"]
    if c.get("loss", "lost") == "lost" and (c.get("differs_upper") or 1) < lost / c["n"]:
        yield "more lost than differing"
    for name in ("max_think", "on_stop"):
        if c.get(name) not in (None, content[name]) and content[name] is not None:
            yield f"a certificate under another {name}"
    if content["split"] is not None and c["n"] > len(set(content["split"]["calibration"])):
        yield "more counted questions than named ones"


def _impossible_limits(content: Mapping[str, Any]) -> Iterator[str]:
    trigger, most = content["trigger"], content["max_think"]
    reach = most if most is not None else _MOST_TOKENS
    where = [*content["budgets"], *(trigger[k] or 0 for k in ("cap", "stop_at", "min_gap"))]
    if not all(0 <= at <= reach <= _MOST_TOKENS for at in where):
        yield f"positions {max(where)} within {most}"
    probe = content["probe"] or {}
    for name in ("cap", "answer_cap"):
        if not 0 < (probe.get(name) or 1) <= _MOST_TOKENS:
            yield f"a {name} of {probe[name]}"


def _impossible_figures(content: Mapping[str, Any]) -> Iterator[str]:
    c, e = content["certificate"], content["expected"] or {}
    if e.get("calibration_n") == c["n"] and "calibration_risk" in e:
        lost = c["losses"] - c.get("gained", 0)
        n = c["n"] if c.get("both") is None else 2 * c["n"]
        if abs(e["calibration_risk"] * n - lost) > 1e-3 and "labelled" not in c:
            yield "another risk than that of the counts"
    for part in ("calibration", "test"):
        n = e.get(f"{part}_n")
        names = ("risk", "accuracy", "full_accuracy")
        shares: list[Any] = [e.get(f"{part}_{name}") for name in names]
        risk, accuracy, full = shares
        graded = "labelled" not in c
        counts = [x * n for x in shares if x is not None and n is not None and graded]
        if any(abs(count - round(count)) > 1e-3 for count in counts):
            yield f"{part}: shares that no {n} questions have"
        if (
            c.get("loss", "lost") == "lost"
            and None not in shares
            and graded
            and (not full - risk - 1e-6 <= accuracy <= 1 - risk + 1e-6 or full < risk - 1e-6)
        ):
            yield f"{part}: accuracies at odds"
        if (e.get(f"{part}_total_saving_pct") or 0) > 100 + 1e-5:
            yield f"{part}: more than everything saved"
        for name in ("risk", "accuracy"):
            ends, share = e.get(f"{part}_{name}_ci95"), e.get(f"{part}_{name}")
            if name == "risk" and c.get("loss") == "drop":
                continue
            if ends is not None and share is not None and n is not None:
                exact = exact_interval(round(share * n), n)
                if max(abs(a - b) for a, b in zip(exact, ends, strict=True)) > 1e-3:
                    yield f"{part}: another interval of {name}"


def _impossible_ladder(content: Mapping[str, Any]) -> Iterator[str]:
    ladder, kind = content.get("ladder"), content["trigger"]["kind"]
    if (ladder is None) != (kind != "ladder") or (ladder is None) != (
        content["serving"] != "ladder"
    ):
        yield f"a ladder for {kind}"
    if ladder is None:
        return
    asked, path, step = ladder["asked"], ladder["path"], content["decision_threshold"]
    columns = sum(rung.get("repeat", 1) for rung in ladder["rungs"])
    if asked != sorted(set(asked)) or not asked or not 0 <= asked[0] <= asked[-1] < columns - 1:
        yield f"replies {asked} of {columns}"
    if step not in range(1, len(path) + 1):
        yield f"step {step} of {len(path)}"
    if any(len(levels) != len(asked) for levels in path):
        yield "a path of another width"
    if content["family"] == "cap" and any(level > 0 for levels in path for level in levels):
        yield "a cap below 0"
    for rung in ladder["rungs"]:
        if {"base_url", "api_key_env"} & rung.keys():
            yield "an address"
        if len(rung["price"]) != 3 or min(rung["price"]) < 0 or rung["price"][2] == 0:
            yield f"prices {rung['price']}"
    names = [rung["name"] for rung in ladder["rungs"]]
    if len(set(names)) < len(names):
        yield "two rungs of one name"


def impossible(content: Mapping[str, Any]) -> list[str]:
    """Statements of a policy that cannot be true."""
    if content["kind"] == "full-budget":
        return [f"{k} of no rule" for k in ("certificate", "expected", "trigger") if content[k]]
    found = (_impossible_promise, _impossible_limits, _impossible_figures, _impossible_ladder)
    return [wrong for judge in found for wrong in judge(content)]

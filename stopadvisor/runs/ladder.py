"""A ladder as configured in ``ladder.toml``: rungs in the order of climbing, the reference last."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar

from stopadvisor.ground.errors import StopAdvisorError, WorkloadError
from stopadvisor.ground.fields import Condition, Most, Sha256, TokenCount, one_of, parse_as

__all__ = [
    "MOST_RUNGS", "MOST_SAMPLES", "Ladder", "Rung",
    "check_order", "ladder_of", "read_ladder", "recorded_ladder",
]  # fmt: skip

MOST_RUNGS = 16
MOST_SAMPLES = 128
"""Most samples of one rung."""
_POLICY_FIELDS = ("reasoning_effort", "chat_template_kwargs", "temperature", "max_tokens")
"""Fields that a rung's own policy sets."""

_Text = Annotated[
    str, Condition("text on one line", lambda value: bool(value.strip()) and value.isprintable())
]
_Prices = Annotated[
    tuple[float, ...],
    Condition(
        "three prices >= 0: input, cached input and output, the last above 0",
        lambda prices: len(prices) == 3 and min(prices) >= 0 and prices[2] > 0,
    ),
]
# Kept as written: the name of a run distinguishes 0 from 0.0.
_Temperature = Annotated[
    Any, Condition("a number >= 0", lambda value: type(value) in (int, float) and value >= 0)
]
_Samples = Annotated[
    int,
    Condition(f"a whole number from 1 to {MOST_SAMPLES}", lambda value: 1 <= value <= MOST_SAMPLES),
]


@dataclass(frozen=True)
class Rung:
    """One rung: the model, how to ask it, and what its tokens cost."""

    SPARSE: ClassVar[bool] = True
    UNSHOWN: ClassVar[tuple[str, ...]] = ("engine", "base_url", "api_key_env", "policy")
    """Fields that say where to ask, and with which key: no policy file may set them."""

    name: _Text
    """Shown to people and in the header of a reply."""
    price: _Prices
    """Of a prompt, a cached prompt and a decoded token: money per million, or in any one unit."""
    model: _Text | None = None
    """As its server names it, or a folder."""
    engine: Annotated[str, one_of("openai", "hf")] | None = None
    """``hf``: the model in folder `model` runs here; else a server answers."""
    base_url: _Text | None = None
    """Address of its server, such as http://host:8000/v1."""
    reasoning_effort: _Text | None = None
    """Sent with each request."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Arguments of the chat template."""
    temperature: _Temperature | None = None
    """Null: the server's own."""
    max_tokens: TokenCount | None = None
    """Most tokens of a reply, thinking and answer."""
    api_key_env: _Text | None = None
    """Environment variable with the server's key."""
    policy: _Text | None = None
    """File of the policy that stops its thinking early; a server applies it itself."""
    policy_digest: Sha256 | None = None
    """Digest of that policy, set when its file is read."""
    repeat: _Samples = 1
    """Samples; the plurality of those so far is the answer."""

    @property
    def terms(self) -> Rung:
        """The rung as a policy holds it: no promise depends on its address."""
        nowhere: dict[str, Any] = dict.fromkeys(self.UNSHOWN)
        return replace(self, **nowhere)


@dataclass(frozen=True)
class _File:
    """A whole ``ladder.toml``."""

    rung: Annotated[tuple[Rung, ...], Most(MOST_RUNGS)] = ()


@dataclass(frozen=True)
class Ladder:
    """Rungs in the order of climbing; the last one is served today."""

    rungs: tuple[Rung, ...]

    @property
    def columns(self) -> tuple[Rung, ...]:
        """The rung of each reply: one entry per sample."""
        return tuple(rung for rung in self.rungs for _ in range(rung.repeat))

    @property
    def blocks(self) -> tuple[range, ...]:
        """Columns of each rung."""
        ends = accumulate(rung.repeat for rung in self.rungs)
        return tuple(range(e - rung.repeat, e) for rung, e in zip(self.rungs, ends, strict=True))

    @property
    def reference(self) -> Rung:
        """The last rung."""
        return self.rungs[-1]


def read_ladder(path: Path) -> Ladder:
    """Read ``ladder.toml``; WorkloadError names the file and the field at fault, in one line."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: expected a readable ladder.toml, got: {error}") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise WorkloadError(f"{path}: expected TOML, got: {error}") from error
    return ladder_of(content, str(path))


def recorded_ladder(manifest: Mapping[str, Any], where: object) -> Ladder | None:
    """The ladder whose replies a run holds; None if it holds probes of one model."""
    return ladder_of({"rung": manifest["ladder"]}, str(where)) if "ladder" in manifest else None


def ladder_of(content: Any, where: str) -> Ladder:
    """Make the ladder of a file's content; raises as `read_ladder`."""
    rungs = parse_as(WorkloadError, _File, content, where).rung
    check_order(WorkloadError, rungs, where)
    return Ladder(rungs)


def check_order(error: type[StopAdvisorError], rungs: Sequence[Rung], where: str) -> None:
    """Check what the rungs of a file or a policy owe each other; raises `error`."""

    def expect(ok: bool, field: str, expected: str, got: Any) -> None:
        if not ok:
            raise error(f"{where}: field '{field}': expected {expected}, got {got!r:.80}")

    names = [rung.name for rung in rungs]
    for k, rung in enumerate(rungs):
        expect(names.count(rung.name) == 1, f"rung[{k}].name", "each name once", rung.name)
        policy, refused = rung.policy or rung.policy_digest, dict[str, str]()
        if policy is not None:
            what = "none on the reference, which answers in full"
            expect(rung is not rungs[-1], f"rung[{k}].policy", what, policy)
            refused |= dict.fromkeys(_POLICY_FIELDS, "a policy, which sets it")
        if rung.engine == "hf":
            what = "a folder for engine 'hf' to load"
            expect(rung.model is not None, f"rung[{k}].model", what, None)
            refused |= dict.fromkeys(("base_url", "api_key_env", "reasoning_effort"), "engine 'hf'")
        for name, why in refused.items():
            value = getattr(rung, name)
            expect(value is None, f"rung[{k}].{name}", f"nothing with {why}", value)
    what = "two [[rung]] tables or more, or one with repeat"
    expect(sum(rung.repeat for rung in rungs) > 1, "rung", what, len(rungs))

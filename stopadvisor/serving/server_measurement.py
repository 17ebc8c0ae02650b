"""Measuring a server from start to end: which one, what it is asked, and what an earlier call left.

The use case of `stopadvisor profile-serving` at a server.  Knows no command line; loads no client
until a server is measured.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path

from stopadvisor.engines.errors import require_packages
from stopadvisor.errors import PolicyError
from stopadvisor.policy.frozen import load_policy
from stopadvisor.progress import Progress
from stopadvisor.rules.serving_profile import ServingProfile, Slo
from stopadvisor.serving.goodput import Arrivals, ReplaySettings
from stopadvisor.serving.measured import MeasuredFile
from stopadvisor.serving.profiling import ProfileSettings, find_questions

__all__ = ["ServerOptions", "measure_server"]


@dataclass(frozen=True)
class ServerOptions:
    """Which server to measure, and the limits at which a policy is compared there."""

    engine: str = "hf"
    base_url: str | None = None
    api_key_env: str | None = None
    request_timeout: float = 600.0
    slo: Slo | None = None
    policy: Path | None = None
    arrivals: Arrivals = "poisson"
    minutes: float = 10.0
    block: int = 200
    seed: int = 0

    @property
    def at_server(self) -> bool:
        """Whether a server is measured, and not a model that is loaded here."""
        return self.engine != "hf"

    def replay(self) -> ReplaySettings | None:
        """How goodput is measured; None where no limits are given.

        Raises
        ------
        PolicyError
            The policy cannot be read, or never stops.
        """
        if self.slo is None or self.policy is None:
            return None
        policy = load_policy(self.policy)
        if policy.kind != "stop":
            raise PolicyError(
                f"{self.policy}: a full-budget policy never stops: nothing to compare"
            )
        named = ("slo", "arrivals", "minutes", "block", "seed")
        return ReplaySettings(policy=policy, **{name: getattr(self, name) for name in named})


def measure_server(
    options: ServerOptions, settings: ProfileSettings, model: str, kept: Path, progress: Progress
) -> ServingProfile:
    """Measure what requests and tokens cost there, and the goodput of a policy where one is named.

    What was measured is kept in the file `kept` as it comes.  It is deleted at the end, but for a
    replay, which goes on where the last one ended.

    Raises
    ------
    ModelError
        The server or the file cannot be used, or a package is missing.
    PolicyError
        The policy cannot be read, or never stops.
    WorkloadError
        The workload cannot be used, or holds fewer questions than a batch.
    EngineError
        The server refuses a request.
    CalibrationError
        What was measured does not tell the costs apart.
    """
    require_packages("serve", "aiohttp", "httpx2", what="measuring a server")
    from stopadvisor.serving.load import LoadServer
    from stopadvisor.serving.server_profile import profile_server

    url, replay, questions = str(options.base_url), options.replay(), find_questions(settings)
    server = LoadServer(
        url.rstrip("/"),
        model,
        options.api_key_env,
        options.request_timeout,
        metrics=options.engine == "vllm",
    )
    file = MeasuredFile(
        kept,
        {
            "base_url": url,
            "model": model,
            "engine": options.engine,
            "batches": list(settings.batches),
            "questions": [question.key[:12] for question in questions],
            "slo": None if options.slo is None else asdict(options.slo),
            "policy": None if replay is None else replay.policy.digest,
            **{name: getattr(options, name) for name in ("arrivals", "block", "seed")},
        },
    )

    async def measure() -> ServingProfile:
        named = {"engine": options.engine, "device": url}
        async with server:
            return await profile_server(
                server, questions, settings.batches, replay, file, progress, **named
            )

    measured = asyncio.run(measure())
    if replay is None:
        file.delete()
    return measured

"""`assess`, `calibrate` and `verify` for programs and notebooks.

Each takes the options of the command of its name, returns its result and prints only progress.  A
notebook shows a result as the sheet that the command prints.  Errors are `StopAdvisorError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from stopadvisor.answers.grading import open_graders
from stopadvisor.assessment.assessed import AssessedRun
from stopadvisor.assessment.choice import Choice, Settings
from stopadvisor.assessment.fit_assessment import assess as assess_fit
from stopadvisor.assessment.fit_assessment import remarks_on_sample
from stopadvisor.assessment.settings import SettingsOverrides
from stopadvisor.certification.certify import CertifyRequest, Despite
from stopadvisor.certification.check_policy import CheckedPolicy, CheckRequest, check_policy
from stopadvisor.certification.issue import CalibratedRun, PolicyTarget, issue
from stopadvisor.certification.looks import open_for_paper, show_fit, standing_limits
from stopadvisor.collection.collect import check_grading
from stopadvisor.collection.grades import regrade_run, remarks_on_grader
from stopadvisor.collection.probe_settings import ProbeSettings
from stopadvisor.collection.probing import probe
from stopadvisor.engines.engine_settings import EngineSettings
from stopadvisor.ground.errors import CalibrationError, GraderError, WorkloadError
from stopadvisor.ground.progress import Progress
from stopadvisor.ground.results import show_as
from stopadvisor.paper.analysis import Assessed, assess_paper
from stopadvisor.policy.frozen import load_policy
from stopadvisor.probes.asking import Schedule
from stopadvisor.report.headline import assessed_headline, calibrated_headline
from stopadvisor.report.html.page import sheet_html
from stopadvisor.report.progress import progress_on
from stopadvisor.report.saved import save_assessment
from stopadvisor.report.sheets.assess import PAPER_FLAW, assess_sheet
from stopadvisor.report.sheets.calibrate import calibrate_sheet
from stopadvisor.report.sheets.verify import verify_sheet
from stopadvisor.rules.climb import OnGiveUp
from stopadvisor.rules.costs import MONEY, Serving, Weights
from stopadvisor.rules.losses import Guarantee, LossName
from stopadvisor.rules.serving_profile import read_serving_profile
from stopadvisor.runs.directory import RunDirectory
from stopadvisor.runs.prices import PriceRequest, computed_weights, default_settings
from stopadvisor.runs.sources import Source, open_source
from stopadvisor.runs.storage import lock_directory

__all__ = ["assess", "assess_target", "calibrate", "is_workload_file", "verify"]

GraderFunction = Callable[[str, str, str], bool | None]
"""Takes question, gold and answer; returns whether the answer is right, None if unknown."""
Alpha = float | Mapping[LossName, float]
"""A limit on `loss`, or one for each loss."""
Price = tuple[float, float, float] | str | Path
"""Money per million input, cached and output tokens, or a file of `profile-serving`."""


def assess(
    target: str | Path,
    *,
    model: str | None = None,
    engine: Literal["hf", "openai"] = "hf",
    base_url: str | Sequence[str] = (),
    alpha: Alpha | None = None,
    delta: float | None = None,
    loss: LossName | None = None,
    serving: Serving | None = None,
    price: Price | None = None,
    gpu: str | None = None,
    families: Sequence[str] | None = None,
    on_give_up: OnGiveUp | None = None,
    ladder: str | Path | None = None,
    schedule: Schedule | None = None,
    max_think: int | None = None,
    prompt_template: str | None = None,
    temperature: float | None = None,
    samples: int | None = None,
    limit: int | None = None,
    split: tuple[float, float, float] | None = None,
    seed: int | None = None,
    grader: str | GraderFunction | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> AssessedRun:
    """Advise whether a model may stop thinking early, and what that saves.

    Probes what is missing first; finished questions are not asked again.

    Parameters
    ----------
    target : str or Path
        A workload (JSONL), a run directory or a published ``raw.npz`` archive; only workloads are
        probed.
    model : str, optional
        Name or folder of the model to probe.
    ladder : str or Path, optional
        A ``ladder.toml``: its rungs are asked for whole replies, instead of probing one model.
    grader : str or callable, optional
        Function of (question, gold, answer) that says whether an answer is right, or its name,
        ``MODULE:FUNCTION``.  It must be defined in a module, because another process calls it.

    The other parameters are the options of `stopadvisor assess`; None leaves each at its default.

    Returns
    -------
    AssessedRun
        Its `run` is the folder for `calibrate`.

    Raises
    ------
    StopAdvisorError
        Any error that the command would end with.

    Examples
    --------
    >>> result = assess("my.jsonl", model="Qwen/Qwen3-8B", alpha=0.05)  # doctest: +SKIP
    >>> result.headline  # doctest: +SKIP
    """
    probing: dict[str, Any] = {
        "schedule": schedule,
        "max_think": max_think,
        "prompt_template": prompt_template,
        "temperature": temperature or None,
        "greedy": None if temperature is None else temperature == 0,
        "samples": samples,
        "limit": limit,
        "split": split,
        "seed": seed,
        "grader": _grader_name(grader),
        "out": None if out is None else Path(out),
    }
    given = {name: value for name, value in probing.items() if value is not None}
    at = (base_url,) if isinstance(base_url, str) else tuple(base_url)
    settings: dict[str, Any] = {} if model is None else {"model": model}
    if ladder is not None:
        in_file = {"schedule", "max_think", "samples"} & {*given}
        asked = {"model": model, "base_url": at or None, "gpu": gpu, "temperature": temperature}
        in_file |= {name for name, value in asked.items() if value is not None}
        if in_file:
            names = ", ".join(sorted(in_file))
            raise CalibrationError(f"ladder: its file says whom to ask and how: leave out {names}")
        settings["ladder"] = Path(ladder)
    if engine not in ("hf", "openai"):
        raise CalibrationError(f"engine must be 'hf' or 'openai', got {engine!r}")
    if (engine == "openai") != bool(at):
        raise CalibrationError("engine='openai' and base_url='http://host:8000/v1' need each other")
    wanted = _overrides(alpha, delta, loss, serving, price, families, on_give_up)
    with progress_on(sys.stderr, quiet=quiet) as progress:
        _, result = assess_target(
            ProbeSettings(workload=Path(target), **given),
            EngineSettings(engine=engine, base_url=at, **settings),
            wanted,
            progress,
            pricing=None if gpu is None else PriceRequest(gpu=gpu),
            given=given,
        )
    assert isinstance(result, AssessedRun)  # the paper's protocol has another
    return result


def calibrate(
    run: str | Path,
    *,
    alpha: Alpha,
    delta: float | None = None,
    loss: LossName | None = None,
    serving: Serving | None = None,
    price: Price | None = None,
    families: Sequence[str] | None = None,
    on_give_up: OnGiveUp | None = None,
    despite: Sequence[Despite] = (),
    looks: int | None = None,
    labels: int | None = None,
    fresh: bool = False,
    out: str | Path | None = None,
) -> CalibratedRun:
    """Certify a threshold on the calibration questions of a run and write the frozen policy.

    Parameters
    ----------
    run : str or Path
        A run directory or a ``raw.npz`` archive; settings that are None come from its assessment.
    alpha : float or mapping
        The limit, such as 0.05, or one for each loss: ``{"lost": 0.05, "drop": 0.02}``.

    The other parameters are the options of `stopadvisor calibrate`.

    Returns
    -------
    CalibratedRun
        Its `policy` is the file for `load_policy`; `certified` says whether it ever stops.
    """
    request = CertifyRequest(
        _overrides(alpha, delta, loss, serving, price, families, on_give_up),
        looks=looks,
        labels=labels,
        fresh=fresh,
        despite=despite,
    )
    source = open_source(Path(run))
    target = PolicyTarget(None if out is None else Path(out))
    return issue(source, request, target, calibrated_headline)


def verify(
    policy: str | Path,
    run: str | Path,
    *,
    serving: Serving | None = None,
    price: Price | None = None,
    transfer: bool = False,
    test_only: bool = False,
    looks: int | None = None,
) -> CheckedPolicy:
    """Check a policy on fresh labelled probes, as made by `probe --like POLICY`.

    The parameters are the options of `stopadvisor verify`.

    Returns
    -------
    CheckedPolicy
        Its `verdict` is ``confirmed``, ``contradicted`` or ``silent``.
    """
    request = CheckRequest(serving, _weights(price), transfer, test_only, looks)
    source = open_source(Path(run))
    return check_policy(load_policy(policy), str(policy), source, str(run), request)


# --- Shared with the command --------------------------------------------------------------------


def assess_target(
    probing: ProbeSettings,
    engine: EngineSettings,
    wanted: SettingsOverrides,
    progress: Progress,
    *,
    pricing: PriceRequest | None = None,
    protocol: Literal["deploy", "paper"] = "deploy",
    open_calibration: bool = False,
    given: Collection[str] = (),
) -> tuple[Source, Assessed]:
    """Probe what is missing, assess, and write the assessment into the run.

    The workload of `probing` may also be a run or an archive, which is not probed.  `pricing`
    computes prices for a machine and model, instead of `default_settings`.  `open_calibration`
    allows the paper's protocol to show outcomes of calibration questions.  `given` names the
    probing fields that the caller set; otherwise an archive keeps its split.
    """
    target, is_paper = probing.workload, protocol == "paper"
    if not target.exists():
        raise WorkloadError(
            f"{target}: no such file or directory; expected a JSONL workload, a run directory "
            "or a raw.npz archive"
        )
    from_workload = is_workload_file(target)
    engine = replace(engine, remark=progress.remark)
    if not from_workload:
        if engine.ladder is not None:
            raise WorkloadError(f"ladder: {target} is already recorded")
        if probing.regrade:
            regrade_run(target, progress, probing.grader)
        elif probing.grader is not None and target.is_dir():
            with open_graders(probing.grader) as graders:
                run, mine = RunDirectory.load(target), graders.right.identity
                check_grading(run, mine, "use --regrade to grade it again")
        seed = probing.seed if "seed" in given else None
        split = probing.split if "split" in given else None
        source = open_source(target, seed=seed, fractions=split, folder=probing.out)
    else:
        source = open_source(probe(probing, engine, progress, whole=True).run)
    if is_paper:
        source.require_one_trace("the paper's protocol")
        settings = wanted.settings()
    else:
        settings = _settings(wanted, source, pricing)
    with lock_directory(source.folder):
        show_fit(source, "assess")
    result: Assessed
    choice: Choice | None = None
    if is_paper:
        open_for_paper(source, settings, allowed=open_calibration)
        result = assess_paper(
            source, alpha=settings.alpha, delta=settings.delta, serving=settings.serving
        )
    else:
        assessment = assess_fit(source, settings, propose=wanted.alpha is None)
        is_computed = settings.weights.gpu is not None
        loads = computed_weights(pricing, source)[1:] if is_computed else ()
        result, choice = assessment.result(loads), assessment.choice
        result = replace(result, standing=standing_limits(source, choice.settings))
    on_sample, on_promise = remarks_on_sample(source, result), list(result.remarks)
    if not source.is_archive:
        on_sample += remarks_on_grader(RunDirectory.load(source.folder))
    remarks = (*[PAPER_FLAW] * is_paper, *on_sample, *on_promise)
    result = replace(result, remarks=remarks, headline=assessed_headline(result))
    save_assessment(source, result, choice)
    # Probing has shown the remarks on the sample already.
    progress.notes(on_promise if from_workload else on_sample + on_promise)
    return source, result


def is_workload_file(target: Path) -> bool:
    """Whether a target is a workload, not a run or an archive."""
    return not target.is_dir() and target.suffix != ".npz"


def _settings(wanted: SettingsOverrides, source: Source, pricing: PriceRequest | None) -> Settings:
    """Complete the settings; refuse losses that need gold if the run has none."""
    if source.ladder is not None and (wanted.weights is not None or pricing is not None):
        raise CalibrationError(f"{source.folder}: the prices of its rungs are in ladder.toml")
    defaults = default_settings(source)
    if pricing is not None:
        defaults |= {"serving": "vllm", "weights": computed_weights(pricing, source)[0]}
    settings = wanted.settings(defaults=defaults)
    needy = [limit for limit in settings.guarantees if limit.counted.needs_gold]
    if needy and source.graded_by == "agreement":
        raise CalibrationError(
            f"{source.folder}: a limit on {needy[0].loss} takes gold to assess, and the questions "
            "have none: leave --loss out; later `stopadvisor label` asks for the gold that matters"
        )
    return settings


# --- Conversions ----------------------------------------------------------------------------------


def _overrides(
    alpha: Alpha | None,
    delta: float | None,
    loss: LossName | None,
    serving: Serving | None,
    price: Price | None,
    families: Sequence[str] | None,
    on_give_up: OnGiveUp | None,
) -> SettingsOverrides:
    also: tuple[Guarantee, ...] | None = None
    if isinstance(alpha, Mapping):
        if loss is not None or not alpha:
            raise CalibrationError(f"alpha names its losses: leave loss out, got {loss!r}")
        (loss, first), *others = alpha.items()
        also = tuple(Guarantee(name, limit) for name, limit in others)
        alpha = first
    elif loss is not None:
        also = ()
    result = SettingsOverrides(
        alpha,
        delta,
        serving=serving,
        weights=_weights(price),
        families=None if families is None else tuple(families),
        loss=loss,
        also=also,
        on_give_up=on_give_up,
    )
    result.check()  # refuse values out of range before any work
    return result


def _weights(price: Price | None) -> Weights | None:
    if price is None:
        return None
    if isinstance(price, tuple):
        return Weights(*price, MONEY)
    return read_serving_profile(Path(price)).weights


def _grader_name(grader: str | GraderFunction | None) -> str | None:
    """Name a function so that another process can import it."""
    if grader is None or isinstance(grader, str):
        return grader
    module, name = grader.__module__, grader.__qualname__
    if module == "__main__" or not name.isidentifier():
        raise GraderError(
            "grader: expected a function of a module that another process can import, got "
            f"{module}.{name}"
        )
    return f"{module}:{name}"


show_as(AssessedRun, lambda result: sheet_html(assess_sheet(result)))
show_as(CalibratedRun, lambda result: sheet_html(calibrate_sheet(result)))
show_as(CheckedPolicy, lambda result: sheet_html(verify_sheet(result)))

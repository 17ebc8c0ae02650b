"""All studies of some runs, several at a time, each in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import active_children, get_context

from stopadvisor.runs.sources import Source
from stopadvisor.studies.registry import STUDIES, run_study
from stopadvisor.studies.tables import StudyOptions, StudyReport

__all__ = ["run_studies", "together"]


def _options_of(name: str, options: StudyOptions) -> StudyOptions:
    """Leave out options that only other studies have."""
    known = STUDIES[name].options
    return replace(options, extra={k: v for k, v in options.extra.items() if k in known})


def together() -> list[str]:
    """Names of the studies that `study all` runs, in their order."""
    return [name for name, entry in STUDIES.items() if not entry.alone]


def run_studies(
    sources: Sequence[Source], options: StudyOptions
) -> Iterator[tuple[str, StudyReport | Exception]]:
    """Run every study but those that run alone; yields each name with its result or its error."""
    order = sorted(together(), key=lambda name: not STUDIES[name].slow)
    jobs = min(os.cpu_count() or 1, len(order))
    asked = {name: _options_of(name, options) for name in order}
    if jobs == 1:
        for name, chosen in asked.items():
            try:
                yield name, run_study(name, sources, chosen)
            except Exception as error:  # noqa: BLE001  the others shall still run
                yield name, error
        return
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(sources,)
    )
    with pool:
        futures = {pool.submit(_work, name, chosen): name for name, chosen in asked.items()}
        try:
            for future in as_completed(futures):
                raised = future.exception()
                if isinstance(raised, Exception):
                    yield futures[future], raised
                else:
                    yield futures[future], future.result()
        except BaseException:  # interrupted, here or by the caller
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                worker.terminate()
            raise


_SOURCES: list[Source] = []
"""In a worker: the sources that it was started with, so that tables are sent once."""


def _begin(sources: Sequence[Source]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a traceback
    _SOURCES.extend(sources)


def _work(name: str, options: StudyOptions) -> StudyReport:
    return run_study(name, _SOURCES, options)

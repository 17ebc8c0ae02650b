"""Probe with a slow scripted engine, to be killed: `python -m tests.slow_probe WORKLOAD RUN S`."""

from __future__ import annotations

import sys
from unittest.mock import patch

from stopadvisor.cli.main import main
from tests.scripted import ScriptedEngine

OPTIONS = ("--budgets=0,16,32,64", "--concurrency=4", "--max-think=256", "--split=40/60/0")

if __name__ == "__main__":
    workload, run, seconds = sys.argv[1:]
    engine = ScriptedEngine(delay_s=float(seconds))
    with patch("stopadvisor.engines.engine_settings.start_engine", lambda options: engine):
        sys.exit(main(["probe", workload, "--out", run, *OPTIONS]))

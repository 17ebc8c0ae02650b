"""Mutants of the critical modules: each is one small mistake, and a test must fail on it.

``python -m tests.mutants [--count N] [--seed S] [--module NAME]`` draws mistakes at random, runs
on each the tests of its module, and exits with 1 where fewer than 95 % are caught.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

from tests.mutants.mistakes import ROOT, mutants_of, sample
from tests.mutants.modules import TESTS
from tests.mutants.running import Outcome, TestsFail, outcomes, warm

LEAST_CAUGHT = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", action="append", choices=TESTS, help="of these alone")
    parser.add_argument("--only", action="append", metavar="MODULE:NUMBER", help="these alone")
    parser.add_argument("--piece", metavar="I/N", help="in every N-th module from the I-th")
    options = parser.parse_args()
    os.chdir(ROOT)
    warm()
    if options.only:
        wanted = sorted(place.rpartition(":")[::2] for place in options.only)
        drawn = [mutants_of(module)[int(number)] for module, number in wanted]
    else:
        drawn = sample(options.count, options.seed, options.module or tuple(TESTS))
    if options.piece:
        first, step = map(int, options.piece.split("/"))
        of_piece = tuple(TESTS)[first - 1 :: step]
        drawn = [mutant for mutant in drawn if mutant.module in of_piece]
    if not drawn:
        print("no mutant was drawn here")
        return 0
    ends: Counter[Outcome] = Counter()
    for module, of_it in groupby(drawn, key=lambda mutant: mutant.module):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                for mutant, ended in outcomes(list(of_it), module, Path(folder)):
                    if ended is Outcome.BROKEN:
                        print(f"{mutant.description}: no test was run")
                        return 2
                    ends[ended] += 1
                    print(
                        f"{ended.value:5} {module}:{mutant.number} line {mutant.line}, "
                        f"{time.monotonic() - began:.1f} s, {_caught(ends)} of {ends.total()}: "
                        f"{mutant.description}",
                        flush=True,
                    )
                    began = time.monotonic()
            except TestsFail as error:
                print(error)
                return 2
    print(f"{_caught(ends)} of {ends.total()} caught, {_caught(ends) / ends.total():.1%}")
    return 0 if _caught(ends) >= LEAST_CAUGHT * ends.total() else 1


def _caught(ends: Counter[Outcome]) -> int:
    return ends.total() - ends[Outcome.ALIVE]


if __name__ == "__main__":
    sys.exit(main())

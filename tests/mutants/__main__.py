"""Mutants of the package: each has one small mistake, on which a test must fail.

``python -m tests.mutants [--count N] [--seed S] [--wing NAME] [--module NAME]`` draws mistakes at
random and runs on each the tests that enter its function, as noted by `--record`.  It exits with 1
if a wing's tests catch too few: 95 % in statistics, policy, runs and serving, 85 % in the others.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants.mistakes import ROOT, mutants_of, sample
from tests.mutants.modules import LEAST_CAUGHT, MODULES, wing_of
from tests.mutants.recording import Survey, record
from tests.mutants.running import Outcome, outcomes, warm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", action="append", metavar="NAME", help="only in this module")
    parser.add_argument("--wing", action="append", choices=LEAST_CAUGHT, help="only in this wing")
    parser.add_argument("--only", action="append", metavar="MODULE:NUMBER", help="only this mutant")
    parser.add_argument("--piece", metavar="I/N", help="only in every N-th module from the I-th")
    parser.add_argument("--record", nargs="*", metavar="FILE", help="note which tests enter what")
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.record is not None:
        return record(options.record)
    warm()
    if options.only:
        wanted = sorted(place.rpartition(":")[::2] for place in options.only)
        drawn = [mutants_of(module)[int(number)] for module, number in wanted]
    else:
        modules = options.module or [
            m for m in MODULES if wing_of(m) in (options.wing or LEAST_CAUGHT)
        ]
        drawn = sample(options.count, options.seed, modules)
    if options.piece:
        first, step = map(int, options.piece.split("/"))
        of_piece = MODULES[first - 1 :: step]
        drawn = [mutant for mutant in drawn if mutant.module in of_piece]
    if not drawn:
        print("no mutant was drawn here")
        return 0
    ends: Counter[Outcome] = Counter()
    of_wings: dict[str, Counter[Outcome]] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for mutant, ended in outcomes(drawn, Survey.last(), Path(folder)):
            if ended is Outcome.BROKEN:
                print(f"{mutant.description}: no test ran")
                return 2
            ends[ended] += 1
            of_wings.setdefault(wing_of(mutant.module), Counter())[ended] += 1
            print(
                f"{ended.value:5} {mutant.module}:{mutant.number} line {mutant.line}, "
                f"{time.monotonic() - began:.1f} s, {_caught(ends)} of {ends.total()}: "
                f"{mutant.description}",
                flush=True,
            )
            began = time.monotonic()
    met = True
    for wing, of_wing in sorted(of_wings.items()):
        share = _caught(of_wing) / of_wing.total()
        met = met and share >= LEAST_CAUGHT[wing]
        print(f"{wing}: {_caught(of_wing)} of {of_wing.total()}, least {LEAST_CAUGHT[wing]:.0%}")
    print(f"{_caught(ends)} of {ends.total()} caught, {_caught(ends) / ends.total():.1%}")
    return 0 if met else 1


def _caught(ends: Counter[Outcome]) -> int:
    return ends.total() - ends[Outcome.ALIVE]


if __name__ == "__main__":
    sys.exit(main())

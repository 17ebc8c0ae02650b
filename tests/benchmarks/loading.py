"""Seconds and memory to load a policy file, for the most costly files that the limits let pass.

Run from the repository root: ``python -m tests.benchmarks.loading [--only FILE]``.  Exits with 1
where a file takes more than a second of processor time or 64 MB.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc

from tests.policy.heavy import HEAVY, MEGABYTE
from tests.policy.test_load_limits import MOST_MEMORY, load

MOST_SECONDS = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=HEAVY, action="append", help="these files")
    only = parser.parse_args().only or HEAVY
    worst_s = worst_bytes = 0.0
    for name in only:
        data = HEAVY[name]()
        began = time.process_time()
        load(data)
        seconds = time.process_time() - began
        tracemalloc.start()
        load(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        peak += len(data)
        worst_s, worst_bytes = max(worst_s, seconds), max(worst_bytes, peak)
        size = len(data) / MEGABYTE
        print(f"{name:22} {size:5.1f} MB  {seconds:5.2f} s  {peak / MEGABYTE:5.1f} MB of memory")
    print(f"\nworst: {worst_s:.2f} s, {worst_bytes / MEGABYTE:.1f} MB")
    return int(worst_s > MOST_SECONDS or worst_bytes > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())

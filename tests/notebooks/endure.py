"""Strict nbval of the notebooks again and again, alone, with no network but the loopback: does it hold every time?

python tests/notebooks/endure.py [--runs 10] [--busy] [NAME.ipynb ...]

--busy keeps one processor busy all the while. Prints a line per run and how many held; the exit code is 1 if one
did not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

from rubric import lessons
from runs import busy, strict_runs, without_network


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="of each notebook (default: 10)")
    parser.add_argument("--busy", action="store_true", help="keep one processor busy all the while")
    parser.add_argument("names", nargs="*", metavar="NAME.ipynb")
    chosen = parser.parse_args(arguments)
    if not without_network():
        print("the network can't be cut off here, so it stays on")
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    all_held = True
    with busy(core, 1) if chosen.busy else contextlib.nullcontext():
        for lesson in lessons(chosen.names):
            held, started = 0, time.monotonic()
            for number, why in enumerate(strict_runs(lesson.notebook, lesson.path.name, chosen.runs), start=1):
                took, started = time.monotonic() - started, time.monotonic()
                print(f"{lesson.path.name} run {number}: {took:.1f} s {why or 'held'}", flush=True)
                held += not why
            print(f"{lesson.path.name}: {held} of {chosen.runs}", flush=True)
            all_held = all_held and held == chosen.runs
    return 0 if all_held else 1


if __name__ == "__main__":
    sys.exit(main())

"""Inject faults into each scenario, one at each system call, and see what is there afterwards.

Started with the library of `torture.faults` preloaded, this process imports all that is needed, and forks for each
fault: a child has the fault, another looks at what it left.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from torture.children import preloaded
from torture.faults import ACTIONS, Fault


def main() -> int:
    """The command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--number", type=int, help="so many faults, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="draws them again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault is begun later")
    parser.add_argument("--action", choices=ACTIONS, help="faults of one kind")
    parser.add_argument("--fault", type=int, nargs=4, help="one fault: what is printed")
    parser.add_argument("--only", default="", help="part of the scenarios' names")
    parser.add_argument("--scenarios", type=int, help="so many of them, drawn at random (default: all)")
    options = parser.parse_args()
    return preloaded("torture", lambda: _tortured(options))


def _tortured(options: argparse.Namespace) -> int:
    from torture.bench import benches

    tally = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="torture") as home:
        tried = benches(Path(home), options)
        one = None if options.fault is None else [Fault(*options.fault)]
        cases = [(bench, fault) for bench in tried for fault in one or bench.faults()]
        if options.action:
            cases = [(bench, fault) for bench, fault in cases if fault.action == ACTIONS[options.action]]
        total = len(cases)
        if options.number is not None:
            cases = random.Random(options.seed).sample(cases, min(options.number, total))
        end = time.monotonic() + options.seconds
        for bench, fault in cases:
            if time.monotonic() > end:
                break
            tally["faults"] += 1
            for problem in bench.tried(fault):
                tally["wrong"] += 1
                print(f"{bench.scenario.name}, {fault}: {problem}", flush=True)
    print(f"{tally['faults']} of {total} faults in {len(tried)} scenarios: {tally['wrong']} wrong", flush=True)
    return int(bool(tally["wrong"]) or not tally["faults"])


if __name__ == "__main__":
    sys.exit(main())

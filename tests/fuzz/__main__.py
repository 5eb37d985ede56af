"""``python -m tests.fuzz``: random programs for so long; what fails is shrunk and printed as a script."""

from __future__ import annotations

import argparse
import faulthandler
import random
import sys
import time

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.run import Tally, WrongError, run
from tests.fuzz.strategy import programs

ROUND = 300
"""Programs that are drawn from one seed."""


def fuzz(seconds: float, first: int, device: str) -> tuple[Tally, list[WrongError]]:
    """Run programs from one seed after the other; what was tried, and distinct failures."""
    tally, failures, known = Tally(), [], set()
    ends, number = time.monotonic() + seconds, first
    while time.monotonic() < ends:
        found: list[WrongError] = []

        @seed(number)
        @settings(
            max_examples=ROUND, deadline=None, database=None, derandomize=False, print_blob=False,
            report_multiple_bugs=False, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
        )  # fmt: skip
        @given(programs(device))
        def attempt(program: object) -> None:
            if time.monotonic() > ends and not found:
                return
            faulthandler.dump_traceback_later(120, exit=True)
            try:
                run(program, tally)
            except WrongError as error:
                if signature(program, error) in known:
                    return
                found.append(error)
                found.append(program)
                raise
            finally:
                faulthandler.cancel_dump_traceback_later()

        try:
            attempt()
        except WrongError as error:
            program = found[-1]
            known.add(signature(program, error))
            failures.append(error)
            print(f"\n-- seed {number} " + "-" * 60 + f"\n{error}", flush=True)
        number += 1
    return tally, failures


def signature(program, error):
    """What makes failures one: the operation, and the error."""
    return error.kind


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if asked.seed is None else asked.seed
    print(f"seeds from {first}: python -m tests.fuzz --seed {first}", flush=True)
    tally, failures = fuzz(asked.seconds, first, asked.device)
    print(tally)
    print(f"{len(failures)} distinct failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.fuzz``: random programs for so long; what fails is shrunk and printed as a script."""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.drawing import Drawing
from tests.fuzz.drawn import program_of
from tests.fuzz.program import Program
from tests.fuzz.run import Tally, WrongError, run
from tests.fuzz.shrink import shrunk

HANGS = 120
"""Seconds after which a program is said to hang."""

APART = 10**6
"""How far the seeds of two processes lie apart."""


@dataclass
class Fuzzer:
    """Programs one after the other, and the distinct failures that they have shown."""

    device: str = "cpu"
    among: frozenset[str] = frozenset()
    say: Callable[[str], object] = print
    patience: float = 30
    """Seconds for which a failing program is made smaller."""
    tally: Tally = field(default_factory=Tally)
    failures: dict[tuple[str, ...], str] = field(default_factory=dict)

    def program(self, seed: int) -> None:
        """Run the program of a seed. If it fails in a new way, it is shrunk and told."""
        drawing = Drawing(randomly=random.Random(seed), device=self.device, among=self.among)
        program = program_of(drawing)
        error = self._error(program, self.tally)
        if error is None or error.kind in self.failures:
            return

        def fails(other: Program) -> bool:
            found = self._error(other)
            return found is not None and found.kind == error.kind

        small = shrunk(drawing, fails, self.patience)
        self.failures[error.kind] = text = f"seed {seed}: {self._error(small) or error}"
        self.say(f"\n{'-' * 80}\n{text}")

    def _error(self, program: Program, tally: Tally | None = None) -> WrongError | None:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            run(program, tally)
        except WrongError as error:
            return error
        finally:
            faulthandler.cancel_dump_traceback_later()
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long programs are tried")
    parser.add_argument("--seed", type=int, help="of the first program; those that follow have the next ones")
    parser.add_argument("--jobs", type=int, default=1, help="processes that try programs at the same time")
    parser.add_argument("--device", default="cpu", help="where chunkflow computes")
    parser.add_argument("--only", nargs="*", default=[], help="such as operation=sum form=dask source=npy out=memmap")
    asked = parser.parse_args()
    os.environ.setdefault("CHUNKFLOW_RATES", "0")  # plans are those of the usual machine
    first = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    if asked.jobs > 1:
        return _together(asked, first)
    print(f"programs from seed {first} on", flush=True)
    fuzzer = Fuzzer(asked.device, frozenset(asked.only), lambda text: print(text, flush=True))
    ends, seed = time.monotonic() + asked.seconds, first
    while time.monotonic() < ends:
        fuzzer.program(seed)
        seed += 1
    print(fuzzer.tally)
    print(f"{len(fuzzer.failures)} distinct failures")
    return 1 if fuzzer.failures else 0


def _together(asked: argparse.Namespace, first: int) -> int:
    """Several processes, each with seeds of its own."""
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(asked.seconds), "--device", asked.device]
    only = ["--only", *asked.only]
    jobs = [subprocess.Popen([*command, "--seed", str(first + job * APART), *only]) for job in range(asked.jobs)]
    return max([job.wait() != 0 for job in jobs])


if __name__ == "__main__":
    sys.exit(main())

"""Two checkouts of chunkflow in turns, each in a process of its own: what a change makes faster or slower.

The parent tells two children what to do, a line at a time, and never lets both work at once. Both run the cases of this
folder, with chunkflow from their own checkout. Only chunkflow's own runs are timed. A child answers with a line of
JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, Listing, MissingError
from benchmarks.cases import made
from benchmarks.timing import seconds_of

ROOT = Path(__file__).resolve().parents[1]


def serve(arguments: Mapping[str, Any], answers: TextIO) -> None:
    """The child: make a case for each line of ``next``, and time a contender for each line with its name."""
    bench = Bench(Path(arguments["directory"]), *(arguments[key] for key in ("device", "gib", "budget")),
                  settings=arguments["settings"])  # fmt: skip

    def answer(**values: Any) -> None:
        print(json.dumps(values), file=answers, flush=True)

    with closing(made(arguments["file"], bench)) as found, cf.Budget(bench.budget):  # type: ignore[type-var]
        one: Case | Listing | None = None
        for line in map(str.strip, sys.stdin):
            try:
                if line == "next":
                    one = next((case for case in found if isinstance(case, Case)), None)
                    answer(**(announced(one) if one is not None else {"case": None}))
                else:
                    assert isinstance(one, Case)
                    took, result = seconds_of(one.runs[line])
                    one.check(line, result)
                    answer(seconds=took)
            except MissingError as missing:
                answer(error=f"needs {missing}")
            except Exception as error:
                answer(error=f"{type(error).__name__}: {str(error)[:300]}")


def announced(case: Case) -> dict[str, Any]:
    """What the parent is told of a case."""
    ours = [name for name in case.runs if name.startswith(OURS) or name == case.ours]
    return {"case": case.name, "ours": ours, "amount": case.amount, "unit": case.unit}


def main() -> None:
    """The child's process: what cases print must not come between its answers."""
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        serve(json.loads(sys.argv[1]), answers)


@dataclass
class Child:
    """A process that runs one file's cases with one checkout."""

    process: subprocess.Popen[str]

    def ask(self, line: str) -> dict[str, Any]:
        """Have it do something; raise what it failed with."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        found = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(found) if found else {"error": f"ended: {self.process.wait()}"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def started(stack: ExitStack, checkout: Path, place: Path, arguments: Mapping[str, Any]) -> Child:
    """Start a child in a folder with this checkout's benchmarks beside the other's chunkflow."""
    code, data = place / "code", place / "data"
    for folder in (code, data):
        folder.mkdir(parents=True)
    (code / "chunkflow").symlink_to(checkout.resolve() / "chunkflow", target_is_directory=True)
    (code / "benchmarks").symlink_to(ROOT / "benchmarks", target_is_directory=True)
    command = [sys.executable, "-m", "benchmarks.checkouts", json.dumps({**arguments, "directory": str(data)})]
    path = [str(code), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    process = stack.enter_context(
        subprocess.Popen(command, cwd=code, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    stack.callback(process.terminate)
    return Child(process)


def compare(checkout: Path, place: Path, repeats: int, arguments: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Rows of one file's cases: case, contender, seconds of the other checkout and of this one, and their ratio."""
    with ExitStack() as stack:
        before = started(stack, checkout, place / "before", arguments)
        now = started(stack, ROOT, place / "now", arguments)
        while (told := now.ask("next"))["case"] is not None:
            if (there := before.ask("next"))["case"] != told["case"]:
                raise RuntimeError(f"the other checkout gave {there['case']}, this one {told['case']}")
            for name in told["ours"]:
                yield compared(told, name, before, now, repeats)


def helpers(checkout: Path) -> str:
    """A note if only one of the checkouts has its compiled loops: then more than the code differs."""
    there, here = (any((root / "chunkflow").rglob("*.so")) for root in (checkout, ROOT))
    if there == here:
        return ""
    return f"Only {checkout if there else 'this checkout'} has its compiled loops: build them in the other one too.\n"


def compared(told: Mapping[str, Any], name: str, before: Child, now: Child, repeats: int) -> tuple[object, ...]:
    """A row: the children take turns, after an uncounted run each."""
    seconds: dict[str, list[float]] = {"before": [], "now": []}
    for i in range(repeats + 1):
        for which, child in (("before", before), ("now", now)):
            took = child.ask(name)["seconds"]
            if i:
                seconds[which].append(took)
    medians = {which: statistics.median(times) for which, times in seconds.items()}
    cells = (f"{medians[which]:.3g} ({min(times):.3g}-{max(times):.3g})" for which, times in seconds.items())
    rate = f"{told['amount'] / medians['now']:.3g} {told['unit']}"
    return told["case"], name, *cells, rate, f"{medians['before'] / medians['now']:.2f}"


if __name__ == "__main__":
    main()

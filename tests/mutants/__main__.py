"""Draw mutants, run the tests that run their lines, and say which of them none has noticed.

Each worker has a copy of the project, so the project itself stays as it is. ``--reach`` keeps what was learnt of the
tests, which a later run takes again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mutants.draw import Mutant, drawn
from mutants.equal import EQUAL
from mutants.reach import Reach, learnt, load, save

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    *("chunkflow", "tests", "benchmarks", "docs", "examples"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml"),
)
NOTICED, SURVIVED, EQUAL_IN_EFFECT, LEFT = "noticed", "survived", "equal in effect", "no time"


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    tests: int
    seconds: float
    by: str = ""


def main() -> int:
    """The command; 1 if more than a twentieth of the mutants is noticed by no test."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=300, help="of mutants (300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="", help="part of the modules' paths")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no mutant is begun later")
    parser.add_argument("--reach", type=Path, help="file that keeps which tests run which lines")
    parser.add_argument("--report", type=Path, help="file for the verdicts, as lines of JSON")
    options = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        if options.reach and options.reach.exists():
            reach = load(options.reach)
        else:
            reach = learnt(ROOT, Path(work))
            if options.reach:
                save(reach, options.reach)
        print(f"{len(reach.seconds)} test functions pass; {time.monotonic() - start:.0f} s", flush=True)
        copies: queue.Queue[Path] = queue.Queue()
        for i in range(options.workers):
            copies.put(_copy(Path(work) / f"copy{i}"))
        with ThreadPoolExecutor(options.workers) as threads, (options.report or Path(os.devnull)).open("w") as report:

            def one(mutant: Mutant) -> Verdict:
                late = time.monotonic() - start > options.seconds
                verdict = Verdict(mutant, LEFT, 0, 0) if late else _tried(mutant, reach, copies)
                report.write(json.dumps([*mutant[:4], *verdict[1:]]) + "\n")
                report.flush()
                return verdict

            verdicts = list(threads.map(one, drawn(ROOT, options.number, options.seed, options.under)))
    return _told(verdicts)


def _copy(to: Path) -> Path:
    """A copy of what the tests need."""
    to.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def _tried(mutant: Mutant, reach: Reach, copies: queue.Queue[Path]) -> Verdict:
    """Run the tests that run the line, until one fails."""
    if mutant.key in EQUAL:
        return Verdict(mutant, EQUAL_IN_EFFECT, 0, 0, EQUAL[mutant.key])
    tests, begun = reach.nearest(mutant.path, mutant.line), time.monotonic()
    if not tests:
        return Verdict(mutant, SURVIVED, 0, 0, "no test runs it")
    copy = copies.get()
    module = copy / mutant.path
    whole = module.read_text()
    try:
        module.write_text(mutant.code)
        (copy / "chosen").write_text("\n".join(tests))
        allowed = 60 + 4 * sum(reach.seconds[name] for name in tests)
        outcome, by = _run(copy, allowed)
    finally:
        module.write_text(whole)
        copies.put(copy)
    return Verdict(mutant, outcome, len(tests), time.monotonic() - begun, by)


def _run(copy: Path, allowed: float) -> tuple[str, str]:
    """Whether a test fails, or waits for ever."""
    command = [sys.executable, "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "@chosen"]
    command += ["-o", "faulthandler_exit_on_timeout=true"]  # a test that waits for ever ends sooner than all could
    path = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(copy / "tmp")}
    (copy / "tmp").mkdir(exist_ok=True)
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=allowed)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()
        return NOTICED, "a test waits for ever"
    finally:
        shutil.rmtree(copy / "tmp", ignore_errors=True)
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        (SURVIVED, "") if process.returncode == 0 else (NOTICED, (failed or said.splitlines()[-1:] or ["?"])[0][:200])
    )


def _told(verdicts: list[Verdict]) -> int:
    """Print those that nobody noticed, and the counts."""
    for verdict in verdicts:
        if verdict.outcome == SURVIVED:
            mutant = verdict.mutant
            print(f"\n{mutant.path}:{mutant.line} {verdict.by or f'{verdict.tests} test functions pass'}")
            print(f"- {mutant.was.strip()}\n+ {mutant.now.strip()}")
    counts = {what: sum(v.outcome == what for v in verdicts) for what in (NOTICED, EQUAL_IN_EFFECT, SURVIVED, LEFT)}
    print("\n" + ", ".join(f"{number} {what}" for what, number in counts.items()))
    return int(20 * counts[SURVIVED] > len(verdicts))


if __name__ == "__main__":
    sys.exit(main())

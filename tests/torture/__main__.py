"""Inject faults into each scenario, one at each system call, and see what is there afterwards.

Started with the library of `torture.faults` preloaded (`torture.main` does that), this process imports all that is
needed, and forks for each fault: a child has the fault, another looks at what it left.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torture.faults import FOREVER, KILL, PLANS, SIGNAL, Fault, arm, compiled, count, is_loaded

DONE, REFUSED, RAW, HUNG, LEAKED = 0, 3, 4, 5, 6
WRONG = {RAW: "a foreign exception", HUNG: "it hangs", LEAKED: "descriptors or threads are left"}
LIMIT = 30
"""Seconds after which a run hangs: without a fault it takes a small part of one."""


def main() -> int:
    """The command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--number", type=int, help="so many faults, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="draws them again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault is begun later")
    parser.add_argument("--only", default="", help="part of the scenarios' names")
    options = parser.parse_args()
    if is_loaded():
        return _tortured(options)
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        if library is None:
            print("there is no C compiler")
            return 2
        command = [sys.executable, "-m", "torture", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {"LD_PRELOAD": str(library)}, check=False).returncode


def _tortured(options: argparse.Namespace) -> int:
    from torture.scenarios import SCENARIOS

    begun, tally = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="torture") as home:
        benches = [Bench(scenario, Path(home)) for scenario in SCENARIOS if options.only in scenario.name]
        cases = [(bench, fault) for bench in benches for fault in bench.faults()]
        total = len(cases)
        if options.number is not None:
            cases = random.Random(options.seed).sample(cases, min(options.number, total))
        for bench, fault in cases:
            if time.monotonic() - begun > options.seconds:
                break
            tally["faults"] += 1
            for problem in bench.tried(fault):
                tally["wrong"] += 1
                print(f"{bench.scenario.name}, {fault}: {problem}", flush=True)
    print(f"{tally['faults']} of {total} faults in {len(benches)} scenarios: {tally['wrong']} wrong", flush=True)
    return int(bool(tally["wrong"]) or not tally["faults"])


class Bench:
    """A scenario in a directory of its own."""

    def __init__(self, scenario: Any, home: Path) -> None:
        self.scenario = scenario
        self.home = home

    def faults(self) -> Iterator[Fault]:
        """Each fault that it may have."""
        calls = {kinds: self._calls(kinds) for kinds in {kinds for kinds, _, _ in PLANS}}
        for kinds, action, numbers in PLANS:
            for number in numbers:
                for n in range(1, calls[kinds] + 1):
                    yield Fault(n, action, kinds, number)

    def _calls(self, kinds: int) -> int:
        """Calls of a run without a fault."""
        folder = self._prepared()
        reader, writer = os.pipe()

        def work() -> int:
            arm(folder, Fault(-1, KILL, kinds))
            self.scenario.run(folder)
            os.write(writer, str(count()).encode())
            return DONE

        code = _forked(work)
        os.close(writer)
        number = int(os.read(reader, 20) or b"0")
        os.close(reader)
        assert code == DONE, f"{self.scenario.name} fails without a fault"
        return number

    def _prepared(self) -> Path:
        from torture.scenarios import prepare

        folder = self.home / "place"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        assert _forked(lambda: prepare(folder, self.scenario)) == DONE
        return folder

    def tried(self, fault: Fault) -> list[str]:
        """What is wrong after a run with a fault."""
        folder = self._prepared()

        def work() -> int:
            arm(folder, fault)
            result = self.scenario.run(folder)
            count()
            del result
            return DONE if _is_clean(folder) else LEAKED

        code = _forked(work, folder)
        problems = [WRONG[code]] if code in WRONG else []
        reader, writer = os.pipe()

        def look() -> int:
            for line in _seen(self.scenario, folder, code, fault):
                os.write(writer, f"{line}\n".encode())
            return DONE

        looked = _forked(look)
        os.close(writer)
        with os.fdopen(reader) as lines:
            problems += lines.read().splitlines()
        if looked != DONE:
            problems.append(f"who looks at it fails: {looked}")
        return problems


def _seen(scenario: Any, folder: Path, code: int, fault: Fault) -> list[str]:
    """What is wrong in the directory after a run that ended with a code."""
    from chunkflow.stores.publication.settle import left_in, settle
    from torture.scenarios import found

    wrong = []
    names = scenario.outputs
    before = {name: "old" if name in scenario.replaced else "nothing" for name in names}
    new = dict.fromkeys(names, "new")
    now = {name: found(folder, name) for name in names}
    wrong += [f"{name}: {now[name]}" for name in names if now[name] not in (before[name], "new")]
    beside = {name: found(folder, name) for name in scenario.neighbours}
    wrong += [f"the neighbour {name}: {what}" for name, what in beside.items() if what != "old"]
    left = left_in(str(folder))
    wrong += [f"{each} is not settled" for each in left if not settle(each.claim)]
    settled = {name: found(folder, name) for name in names}
    if settled not in (before, new):
        wrong.append(f"mixed: {settled}")
    if code == DONE and (settled != new or now != new):
        wrong.append(f"a run that succeeded left {now}, then {settled}")
    may_be_new = fault.action == SIGNAL  # it may come when all have their names
    if code in (REFUSED, RAW) and settled != before and not (may_be_new and settled == new):
        wrong.append(f"an error after publication: {settled}")
    if code >= 0 and fault.action != FOREVER and not may_be_new and now != settled:
        wrong.append(f"{now} became {settled}")
    hidden = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(ENDINGS)]
    if hidden:
        wrong.append(f"leftovers that nobody finds: {hidden}")
    return wrong


ENDINGS = (".partial", ".old", ".claim")


def _is_clean(folder: Path) -> bool:
    """Whether no descriptor of a file in a directory is left open."""
    gc.collect()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(folder)):
                return False
    return True


def _forked(work: Callable[[], int], folder: Path | None = None, seconds: float = LIMIT) -> int:
    """The exit code of a child that does some work; minus the signal that killed it."""
    pid = os.fork()
    if not pid:
        code = RAW
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                if not os.environ.get("TORTURE_LOUD"):
                    os.dup2(nothing.fileno(), 2)
            code = _ended(work, folder)
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


def _ended(work: Callable[[], int], folder: Path | None) -> int:
    """The exit code of some work."""
    from chunkflow.errors import ChunkflowError

    try:
        return work()
    except BaseException as error:
        count()
        code = REFUSED if isinstance(error, ChunkflowError | KeyboardInterrupt) else RAW
        if code == RAW or os.environ.get("TORTURE_LOUD"):
            with suppress(Exception):
                traceback.print_exc()
        traceback.clear_frames(error.__traceback__)
    return code if folder is None or _is_clean(folder) else LEAKED


if __name__ == "__main__":
    sys.exit(main())

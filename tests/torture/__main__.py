"""Inject faults into each scenario, one at each system call, and see what is there afterwards.

Started with the library of `torture.faults` preloaded (`torture.main` does that), this process imports all that is
needed, and forks for each fault: a child has the fault, another looks at what it left.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torture.faults import (
    ALL,
    CHANGES,
    FAIL,
    FOREVER,
    KILL,
    READ,
    ROOM,
    SHORT,
    SIGNAL,
    WRITE,
    Fault,
    arm,
    compiled,
    count,
)

DONE, REFUSED, RAW, HUNG, LEAKED = 0, 3, 4, 5, 6
PLANS = (
    (CHANGES, KILL, (0,)),
    (ALL, FAIL, (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EINTR)),
    (READ | WRITE, SHORT, (0,)),
    (ROOM, FOREVER, (errno.ENOSPC,)),
    (ALL, FOREVER, (errno.EIO,)),
    (CHANGES, SIGNAL, (signal.SIGINT, signal.SIGTERM)),
)
"""Kinds of calls, what happens at each, or from each on, and the errors or signals."""


def main() -> int:
    """The command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault is begun later")
    parser.add_argument("--every", type=int, default=1, help="take every n-th call only")
    parser.add_argument("--only", default="", help="part of the scenarios' names")
    options = parser.parse_args()
    if "faults" not in os.environ.get("LD_PRELOAD", ""):
        with tempfile.TemporaryDirectory() as folder:
            library = compiled(Path(folder))
            if library is None:
                print("there is no C compiler")
                return 0
            command = [sys.executable, "-m", "torture", *sys.argv[1:]]
            return subprocess.run(command, env=os.environ | {"LD_PRELOAD": str(library)}, check=False).returncode
    return _tortured(options.seconds, options.every, options.only)


def _tortured(seconds: float, every: int, only: str) -> int:
    from torture.scenarios import SCENARIOS

    start, wrong, tally = time.monotonic(), [], Counter[str]()
    for scenario in SCENARIOS:
        if only not in scenario.name:
            continue
        with _Bench(scenario) as bench:
            calls = {kinds: bench.calls(kinds) for kinds, _, _ in PLANS}
            faults = [
                Fault(n, action, kinds, number)
                for kinds, action, numbers in PLANS
                for number in numbers
                for n in range(1 + offset(scenario, number) % every, calls[kinds] + 1, every)
            ]
            for fault in faults:
                if time.monotonic() - start > seconds:
                    break
                tally["faults"] += 1
                for problem in bench.tried(fault):
                    tally["wrong"] += 1
                    wrong.append(f"{scenario.name}, {fault}: {problem}")
                    print(wrong[-1], flush=True)
        print(f"{scenario.name}: {calls[CHANGES]} calls that change, {calls[ALL]} in all; {dict(tally)}", flush=True)
    return int(bool(wrong))


class _Bench:
    """A scenario in a directory of its own."""

    def __init__(self, scenario: object) -> None:
        self.scenario = scenario
        self.home = Path(tempfile.mkdtemp(prefix="torture"))

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.home, ignore_errors=True)

    def calls(self, kinds: int) -> int:
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
        from torture.scenarios import put

        folder = self.home / "place"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

        def work() -> int:
            for output in (*self.scenario.replaced, *self.scenario.neighbours):
                put(folder, output)
            return DONE

        assert _forked(work) == DONE
        return folder

    def tried(self, fault: Fault) -> list[str]:
        """What is wrong after a run with a fault."""
        folder = self._prepared()

        def work() -> int:
            arm(folder, fault)
            self.scenario.run(folder)
            return DONE

        code = _forked(work)
        problems: list[str] = []
        if code == HUNG:
            problems.append("it hangs")
        if code == RAW:
            problems.append("a foreign exception")
        reader, writer = os.pipe()

        def look() -> int:
            for line in _seen(self.scenario, folder, code):
                os.write(writer, f"{line}\n".encode())
            return DONE

        looked = _forked(look)
        os.close(writer)
        with os.fdopen(reader) as lines:
            problems += lines.read().splitlines()
        if looked != DONE:
            problems.append(f"who looks at it fails: {looked}")
        return problems


def _seen(scenario: object, folder: Path, code: int) -> list[str]:
    """What is wrong in the directory after a run that ended with a code."""
    from chunkflow.stores.publication.settle import left_in, settle
    from torture.scenarios import found

    wrong = []
    names = scenario.outputs
    before = {name: "old" if name in scenario.replaced else "nothing" for name in names}
    killed = code == -signal.SIGKILL
    now = {name: found(folder, name) for name in names}
    wrong += [f"{name}: {now[name]}" for name in names if now[name] not in (before[name], "new")]
    beside = {name: found(folder, name) for name in scenario.neighbours}
    wrong += [f"the neighbour {name}: {what}" for name, what in beside.items() if what != "old"]
    unsettled = [left for left in left_in(str(folder)) if not settle(left.claim)]
    wrong += [f"{left} is not settled" for left in unsettled]
    if killed:
        now = {name: found(folder, name) for name in names}
    elif now != (settled := {name: found(folder, name) for name in names}):
        wrong.append(f"{now} became {settled}")
    if now not in (before, dict.fromkeys(names, "new")):
        wrong.append(f"mixed: {now}")
    if code == DONE and now != dict.fromkeys(names, "new"):
        wrong.append(f"a run that succeeded left {now}")
    if code in (REFUSED, RAW) and now != before:
        wrong.append(f"an error after publication: {now}")
    hidden = [str(path.relative_to(folder)) for path in folder.rglob(".*")]
    if hidden:
        wrong.append(f"leftovers that nobody finds: {hidden}")
    return wrong


def _forked(work: Callable[[], int], seconds: float = 60) -> int:
    """The exit code of a child that does some work; minus the signal that killed it."""
    pid = os.fork()
    if not pid:
        code = RAW
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                if not os.environ.get("TORTURE_LOUD"):
                    os.dup2(nothing.fileno(), 2)
            code = work()
        except BaseException as error:
            from chunkflow.errors import ChunkflowError

            code = REFUSED if isinstance(error, ChunkflowError) else RAW
            if code == RAW or os.environ.get("TORTURE_LOUD"):
                with suppress(Exception):
                    traceback.print_exc()
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


if __name__ == "__main__":
    sys.exit(main())

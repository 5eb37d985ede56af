"""Inject faults into each scenario, one at each system call, and see what is there afterwards.

Started with the library of `torture.faults` preloaded (`torture.main` does that), this process imports all that is
needed, and forks for each fault: a child has the fault, another looks at what it left.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from torture.faults import FOREVER, KILL, PLANS, SIGNAL, Fault, arm, compiled, count, disarm, is_loaded

T = TypeVar("T")
DONE, REFUSED, RAW, HUNG = 0, 3, 4, 5
LEAKED = 16
"""Is added where descriptors are left."""
WRONG = {RAW: "a foreign exception", HUNG: "it hangs"}
LIMIT = 30
"""Seconds after which a run hangs: without a fault it takes a small part of one."""


def main() -> int:
    """The command; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--number", type=int, help="so many faults, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="draws them again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault is begun later")
    parser.add_argument("--fault", type=int, nargs=4, help="one fault: what is printed")
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
        _import(SCENARIOS, Path(home))
        benches = [Bench(scenario, Path(home)) for scenario in SCENARIOS if options.only in scenario.name]
        one = None if options.fault is None else [Fault(*options.fault)]
        cases = [(bench, fault) for bench in benches for fault in one or bench.faults()]
        total = len(cases)
        if options.number is not None:
            cases = random.Random(options.seed).sample(cases, min(options.number, total))
        for bench, fault in cases:
            if tally["faults"] and time.monotonic() - begun > options.seconds:
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
        """Each fault that it may have, by a run without one."""
        folder = self.prepared()

        def work() -> dict[int, int]:
            arm(folder, Fault(-1, KILL))
            self.scenario.run(folder)
            disarm()
            return {kinds: count(kinds) for kinds, _, _ in PLANS}

        calls = _told(work)
        assert calls is not None, f"{self.scenario.name} fails without a fault"
        for kinds, action, numbers in PLANS:
            for number in numbers:
                for n in range(1, calls[kinds] + 1):
                    yield Fault(n, action, kinds, number)

    def prepared(self) -> Path:
        """The directory as the scenario finds it."""
        from torture.scenarios import prepare

        folder = self.home / "place"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        assert _forked(lambda: prepare(folder, self.scenario)) == DONE
        return folder

    def tried(self, fault: Fault) -> list[str]:
        """What is wrong after a run with a fault."""
        folder = self.prepared()

        def work() -> int:
            arm(folder, fault)
            result = self.scenario.run(folder)
            disarm()
            del result
            return DONE if _is_clean(folder) else DONE + LEAKED

        code = _forked(work, folder)
        leaked = code >= LEAKED
        code -= LEAKED * leaked
        problems = [WRONG[code]] if code in WRONG else []
        if leaked and not self.scenario.uses_hdf5:  # which keeps what it could not close
            problems.append("descriptors are left")
        seen = _told(lambda: _seen(self.scenario, folder, code, fault))
        problems += ["who looks at it fails"] if seen is None else seen
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
    beside = {name: found(folder, name) for name in scenario.neighbours}
    if scenario.resumes:
        return wrong + _resumed(scenario, folder, before, now)
    wrong += [f"{each} is not settled" for each in left_in(str(folder)) if not settle(each.claim)]
    settled = {name: found(folder, name) for name in names}
    beside_settled = {name: found(folder, name) for name in scenario.neighbours}
    wrong += [f"the neighbour {name}: {what}" for name, what in beside_settled.items() if what != "old"]
    if settled not in (before, new):
        wrong.append(f"mixed: {settled}")
    # What was changed in an HDF5 file, and could neither be finished nor undone, is so when the file is next opened.
    cut_short = code < 0 or fault.action == FOREVER
    if not (cut_short and any(".h5:" in name for name in scenario.neighbours)):
        wrong += [f"{name}: {now[name]}" for name in names if now[name] not in (before[name], "new")]
        wrong += [f"the neighbour {name}, at first: {what}" for name, what in beside.items() if what != "old"]
    if code == DONE and (settled != new or now != new):
        wrong.append(f"a run that succeeded left {now}, then {settled}")
    # A signal may come when all have their names. A disk that refuses all from then on lets nothing be undone.
    may_be_new = fault.action in (SIGNAL, FOREVER)
    if code in (REFUSED, RAW) and settled != before and not (may_be_new and settled == new):
        wrong.append(f"an error after publication: {settled}")
    if not cut_short and fault.action != SIGNAL and now != settled:
        wrong.append(f"{now} became {settled}")
    hidden = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(ENDINGS)]
    if hidden:
        wrong.append(f"leftovers that nobody finds: {hidden}")
    return wrong


def _resumed(scenario: Any, folder: Path, before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What is wrong after the same run has gone on."""
    import chunkflow as cf
    from chunkflow.errors import OutputExistsError
    from torture.scenarios import found

    wrong = []
    if not any(".h5:" in name for name in scenario.neighbours):  # such a file may have to be opened by us first
        wrong += [f"{name}: {what}" for name, what in now.items() if what not in (before[name], "new")]
    cf.recover(folder)
    with suppress(OutputExistsError):  # the first one had published, and removed what the call was
        scenario.run(folder)
    wrong += [f"{name}, gone on with: {what}" for name in scenario.outputs if (what := found(folder, name)) != "new"]
    beside = {name: found(folder, name) for name in scenario.neighbours}
    wrong += [f"the neighbour {name}: {what}" for name, what in beside.items() if what != "old"]
    hidden = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(ENDINGS)]
    return wrong + [f"leftovers that nobody finds: {hidden}"] * bool(hidden)


ENDINGS = (".partial", ".old", ".state", ".claim", ".rechunk", ".fft", ".steps")


def _is_clean(folder: Path) -> bool:
    """Whether no descriptor of a file in a directory is left open."""
    gc.collect()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(str(folder)):
                print(f"descriptor {fd} of {path} is open", file=sys.stderr)
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


def _told(work: Callable[[], T]) -> T | None:
    """What some work of a child gives, if it can be pickled; None if the work fails."""
    with tempfile.TemporaryFile() as file:

        def tell() -> int:
            pickle.dump(work(), file)
            file.flush()
            return DONE

        if _forked(tell) != DONE:
            return None
        file.seek(0)
        return pickle.load(file)


def _import(scenarios: Sequence[Any], home: Path) -> None:
    """Import what the scenarios import, so that children need not. Their threads must not be here."""
    benches = [Bench(scenario, home) for scenario in scenarios]

    def work() -> list[str]:
        for bench in benches:
            bench.scenario.run(bench.prepared())
        return sorted(sys.modules)

    for name in _told(work) or ():
        with suppress(ImportError):
            importlib.import_module(name)


def _ended(work: Callable[[], int], folder: Path | None) -> int:
    """The exit code of some work."""
    from chunkflow.errors import ChunkflowError

    try:
        return work()
    except BaseException as error:
        disarm()
        code = REFUSED if isinstance(error, ChunkflowError | KeyboardInterrupt) else RAW
        if code == RAW or os.environ.get("TORTURE_LOUD"):
            with suppress(Exception):
                traceback.print_exc()
        chain: BaseException | None = error
        while chain is not None:  # what frames refer to is open
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__cause__ or chain.__context__
    return code if folder is None or _is_clean(folder) else code + LEAKED


if __name__ == "__main__":
    sys.exit(main())

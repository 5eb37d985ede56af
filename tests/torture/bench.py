"""A scenario in a directory of its own, and what is there after it has run."""

from __future__ import annotations

import random
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import chunkflow as cf
from chunkflow.errors import OutputExistsError
from chunkflow.stores.publication.settle import left_in, settle
from torture.children import DONE, HUNG, LEAKED, RAW, REFUSED, forked, import_all, is_clean, told
from torture.faults import BYTES, FOREVER, FULL, KILL, PLANS, ROOM, SIGNAL, Fault, arm, count, disarm, written
from torture.scenarios import SCENARIOS, Scenario, found, prepare

WRONG = {RAW: "a foreign exception", HUNG: "it hangs"}
ENDINGS = (".partial", ".old", ".state", ".claim", ".rechunk", ".fft", ".steps")
"""How hidden files are called."""


class Bench:
    """A scenario, whose directory lies below `home`, on its `disk`, where another file system may be mounted."""

    def __init__(self, scenario: Scenario, home: Path) -> None:
        self.scenario = scenario
        self.folder = home / "disk" / "place"
        self._kept = home / "kept" / scenario.name

    def calls(self) -> dict[int, int]:
        """System calls of each kind of a run, by the kinds of `PLANS`; of no kind: the bytes that are written."""
        folder = self.prepared()

        def work() -> dict[int, int]:
            arm(folder, Fault(-1, KILL))
            self.scenario.run(folder)
            disarm()
            return {kinds: count(kinds) for kinds, _, _ in PLANS} | {0: written()}

        calls = told(work)
        assert isinstance(calls, dict), f"{self.scenario.name} fails without a fault: {calls}"
        return calls

    def faults(self) -> Iterator[Fault]:
        """Each fault that it may have, by a run without one."""
        calls = self.calls()
        for kinds, action, numbers in PLANS:
            for number in numbers:
                for n in range(1, calls[kinds] + 1):
                    yield Fault(n, action, kinds, number)
        for n in range(0, calls[0], BYTES):
            yield Fault(n, FULL, ROOM)

    def prepared(self) -> Path:
        """The directory as the scenario finds it."""
        if not self._kept.exists():
            self._kept.mkdir(parents=True)
            code = forked(lambda: prepare(self._kept, self.scenario))
            assert code == DONE, f"what {self.scenario.name} finds cannot be made: {code}"
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._kept, self.folder)
        return self.folder

    def tried(self, fault: Fault) -> list[str]:
        """What is wrong after a run with a fault."""
        folder = self.prepared()

        def work() -> int:
            arm(folder, fault)
            result = self.scenario.run(folder)
            disarm()
            del result
            return DONE if is_clean(folder) else DONE + LEAKED

        code = forked(work, folder)
        problems = []
        if code >= LEAKED:
            code -= LEAKED
            if not self.scenario.uses_hdf5:  # which keeps what it could not close
                problems.append("descriptors are left")
        return problems + self.judged(code, lambda: seen(self.scenario, folder, code, fault))

    @staticmethod
    def judged(code: int, look: Callable[[], list[str]]) -> list[str]:
        """What is wrong with a code, and what another child sees."""
        problems = [WRONG[code]] if code in WRONG else []
        wrong = told(look)
        return problems + ([f"who looks at it fails: {wrong}"] if isinstance(wrong, int) else wrong)


def benches(home: Path, options: Namespace) -> list[Bench]:
    """A bench for each scenario that is asked for. What they import is imported."""
    found = [Bench(scenario, home) for scenario in SCENARIOS if options.only in scenario.name]
    if options.scenarios is not None:
        found = random.Random(options.seed).sample(found, min(options.scenarios, len(found)))

    def work() -> None:
        for bench in found:
            bench.scenario.run(bench.prepared())

    import_all(work)
    return found


def hidden_in(folder: Path) -> list[str]:
    """What nobody finds, as the end of what is wrong."""
    hidden = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(ENDINGS)]
    return [f"leftovers that nobody finds: {hidden}"] * bool(hidden)


def beside(scenario: Scenario, folder: Path) -> list[str]:
    """What is wrong with the neighbours."""
    return [f"the neighbour {name}: {what}" for name in scenario.neighbours if (what := found(folder, name)) != "old"]


def seen(scenario: Scenario, folder: Path, code: int, fault: Fault) -> list[str]:
    """What is wrong in the directory after a run that ended with a code."""
    wrong = []
    names, before, new = scenario.outputs, scenario.before, scenario.after
    now = {name: found(folder, name) for name in names}
    at_first = beside(scenario, folder)
    if scenario.resumes:
        return wrong + resumed(scenario, folder, before, now)
    wrong += [f"{each} is not settled" for each in left_in(str(folder)) if not settle(each.claim)]
    settled = {name: found(folder, name) for name in names}
    wrong += beside(scenario, folder)
    if settled not in (before, new):
        wrong.append(f"mixed: {settled}")
    # What was changed in an HDF5 file, and could neither be finished nor undone, is so when the file is next opened.
    cut_short = code < 0 or fault.action in (FOREVER, FULL)
    if not (cut_short and scenario.is_in_place):
        wrong += [f"{name}: {now[name]}" for name in names if now[name] not in (before[name], "new")]
        wrong += [f"{what}, at first" for what in at_first]
    if code == DONE and (settled != new or now != new):
        wrong.append(f"a run that succeeded left {now}, then {settled}")
    # A signal may come when all have their names. A disk that refuses all from then on lets nothing be undone.
    may_be_new = fault.action in (SIGNAL, FOREVER, FULL)
    if code in (REFUSED, RAW) and settled != before and not (may_be_new and settled == new):
        wrong.append(f"an error after publication: {settled}")
    if not cut_short and fault.action != SIGNAL and now != settled:
        wrong.append(f"{now} became {settled}")
    return wrong + hidden_in(folder)


def resumed(scenario: Scenario, folder: Path, before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What is wrong after the same run has gone on."""
    wrong = []
    if not scenario.is_in_place:  # such a file may have to be opened by us first
        wrong += [f"{name}: {what}" for name, what in now.items() if what not in (before[name], "new")]
    cf.recover(folder)
    with suppress(OutputExistsError):  # the first one had published, and removed what the call was
        scenario.run(folder)
    wrong += [f"{name}, gone on with: {what}" for name in scenario.outputs if (what := found(folder, name)) != "new"]
    return wrong + beside(scenario, folder) + hidden_in(folder)

"""``python -m torture.power``: the power is cut before each system call of a run, and after it.

A run writes to an ext4 in a file, and is stopped before each call. The file is copied as it is then, with what the
system has put there until now. The copy is mounted, which replays its journal, and looked at. At random another program
puts a file of its own on the disk meanwhile, and with it a part of what the run has written.

What was there before must be there: old or new, whole. What a run called done must be there where it is to be on the
disk: with ``sync=True``, and where it replaced something. It skips itself where nothing may be mounted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import chunkflow as cf
from chunkflow.engine import resume
from chunkflow.errors import ArgumentError, OutputExistsError, ReadError
from chunkflow.stores.publication import settle
from torture.bench import Bench, benches, beside, hidden_in
from torture.children import DONE, begun, preloaded, told
from torture.faults import STOP, Fault, arm, disarm
from torture.mounts import alone, image, mount, unmount, unshare, why_not
from torture.scenarios import Scenario, found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.power", description=__doc__)
    parser.add_argument("--number", type=int, help="so many cuts, about (default: at each call)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run is begun later")
    parser.add_argument("--only", default="", help="part of the scenarios' names")
    parser.add_argument("--scenarios", type=int, help="so many of them, drawn at random (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reason = why_not(Path(folder), "ext4")
    if reason:
        print(f"skipped: {reason}")
        return 0
    return preloaded("torture.power", lambda: _tortured(options), alone())


def _tortured(options: argparse.Namespace) -> int:
    tally, draw = Counter[str](), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="torture") as place:
        home = Path(place)
        disk, empty, tried = home / "disk", home / "empty.img", benches(home, options)
        image(empty)
        draw.shuffle(tried)
        end = time.monotonic() + options.seconds
        share = 1.0 if options.number is None else options.number / (PER_SCENARIO * len(tried))
        for bench in tried:
            if time.monotonic() > end:
                break
            tally["runs"] += 1
            shutil.copyfile(empty, home / "now.img")
            mount(home / "now.img", disk, "loop", kind="ext4")
            for call, problems in _cuts(bench, home, draw, share):
                tally["cuts"] += 1
                tally["wrong"] += bool(problems)
                for problem in problems:
                    print(f"{bench.scenario.name}, {call}: {problem}", flush=True)
            unmount(disk)
    print(f"the power was cut {tally['cuts']} times in {tally['runs']} runs: {tally['wrong']} wrong", flush=True)
    return int(bool(tally["wrong"]) or not tally["cuts"])


def _cuts(bench: Bench, home: Path, draw: random.Random, share: float) -> Iterator[tuple[str, list[str]]]:
    """When the power is cut in a run, and what is wrong then."""
    folder, scenario = bench.prepared(), bench.scenario
    disk = folder.parent
    other = os.open(disk / "other", os.O_WRONLY | os.O_CREAT)
    subprocess.run(["sync", "-f", str(disk)], check=True)

    def work() -> int:
        arm(folder, Fault(1, STOP))
        scenario.run(folder)
        disarm()
        return DONE

    pid, n = begun(work), 0
    while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
        n += 1
        if draw.random() < OTHERS:
            os.write(other, b"x")
            os.fsync(other)
        if draw.random() < share:
            yield f"before call {n}", _after(scenario, home, is_done=False)
        os.kill(pid, signal.SIGCONT)
    os.close(other)
    code = os.waitstatus_to_exitcode(status)
    yield "afterwards", _after(scenario, home, is_done=True) if code == DONE else [f"it ended with {code}"]


PER_SCENARIO = 90
"""Calls of a scenario, about: `--number` draws a share of them."""
OTHERS = 0.1
"""Share of the calls before which another program puts something on the disk."""


def _after(scenario: Scenario, home: Path, *, is_done: bool) -> list[str]:
    """What is wrong on the disk if the power is cut now."""
    copy = home / "cut.img"
    shutil.copyfile(home / "now.img", copy)

    def look() -> list[str]:
        unshare()
        mount(copy, home / "disk", "loop", kind="ext4")
        return _seen(scenario, home / "disk" / "place", is_done)

    wrong = told(look)
    return [f"who looks at it fails: {wrong}"] if isinstance(wrong, int) else wrong


def _seen(scenario: Scenario, folder: Path, is_done: bool) -> list[str]:
    """What is wrong in a directory after the power was cut."""
    wrong = [] if scenario.is_in_place else beside(scenario, folder)
    cf.recover(folder)
    now = {name: found(folder, name) for name in scenario.outputs}
    if scenario.is_durable:
        right = [scenario.after] if is_done else [scenario.before, scenario.after]
        wrong += [f"{now}, done: {is_done}"] * (now not in right)
    if scenario.resumes:
        with patch.object(resume, "boot", lambda: "another one"), suppress(*_refusals(scenario)):
            scenario.run(folder)
            now = {name: found(folder, name) for name in scenario.outputs}
            wrong += [f"{now}, gone on with"] * (now != scenario.after)
    with patch.object(settle, "STALE", 0):  # whoever wrote a group's document when the power was cut is dead
        cf.clean(folder)
    return wrong + beside(scenario, folder) + hidden_in(folder)


def _refusals(scenario: Scenario) -> tuple[type[Exception], ...]:
    """What the same run may say that comes after a power cut: a new output need not be whole if nobody has asked."""
    return (OutputExistsError,) if scenario.is_durable else (OutputExistsError, ReadError, ArgumentError)


if __name__ == "__main__":
    sys.exit(main())

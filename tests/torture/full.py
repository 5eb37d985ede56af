"""``python -m torture.full``: runs on a full disk, a tmpfs that takes a page or a file more each time.

What was there must be there, and nothing else; the error must be a `WriteError`; the next run, with room, must succeed.
It skips itself where nothing may be mounted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from chunkflow.errors import ChunkflowError, WriteError
from torture.bench import Bench, benches, beside, hidden_in, resumed
from torture.children import DONE, LEAKED, RAW, REFUSED, forked, is_clean, preloaded
from torture.mounts import alone, mount, unmount, why_not
from torture.scenarios import Scenario, found

PLENTY = 1 << 14
"""Pages, or files, that are enough."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.full", description=__doc__)
    parser.add_argument("--number", type=int, help="so many disks, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run is begun later")
    parser.add_argument("--only", default="", help="part of the scenarios' names")
    parser.add_argument("--scenarios", type=int, help="so many of them, drawn at random (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reason = why_not(Path(folder), "tmpfs")
    if reason:
        print(f"skipped: {reason}")
        return 0
    return preloaded("torture.full", lambda: _tortured(options), alone())


def _tortured(options: argparse.Namespace) -> int:
    tally, draw = Counter[str](), random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="torture") as home:
        disk, tried = Path(home) / "disk", benches(Path(home), options)
        draw.shuffle(tried)
        end = time.monotonic() + options.seconds
        share = 1.0 if options.number is None else options.number / (PER_SCENARIO * len(tried))
        for bench in tried:
            for of_files in (False, True):
                for n in range(PLENTY):
                    if draw.random() >= share:
                        continue
                    if time.monotonic() > end:
                        break
                    room = (PLENTY, n) if of_files else (n, PLENTY)
                    mount("tmpfs", disk, f"size={4 * PLENTY}k")
                    code, problems = _tried(bench, *room)
                    unmount(disk)
                    tally["disks"] += 1
                    tally["wrong"] += len(problems)
                    for problem in problems:
                        print(
                            f"{bench.scenario.name}, room for {room[of_files]} {WHAT[of_files]}: {problem}", flush=True
                        )
                    if code == DONE:
                        break
    print(f"{tally['disks']} full disks in {len(tried)} scenarios: {tally['wrong']} wrong", flush=True)
    return int(bool(tally["wrong"]) or not tally["disks"])


PER_SCENARIO = 16
"""Disks of a scenario, about: `--number` draws a share of them."""
WHAT = ("pages", "files")


def _tried(bench: Bench, pages: int, files: int) -> tuple[int, list[str]]:
    """The code of a run on a disk with so much room, and what is wrong afterwards."""
    folder, scenario = bench.prepared(), bench.scenario
    (folder.parent / "other").write_bytes(b"x")  # a size of 0 would be none
    _leave_room(folder.parent, pages, files)

    def work() -> int:
        code = DONE
        try:
            scenario.run(folder)
        except ChunkflowError as error:
            print(repr(error), file=sys.stderr)
            code = REFUSED if isinstance(error, WriteError) else RAW
        return code if is_clean(folder) else code + LEAKED

    code = forked(work, folder)
    wrong = ["descriptors are left"] * (code >= LEAKED and not scenario.uses_hdf5)
    code = code % LEAKED if code > 0 else code
    return code, wrong + Bench.judged(code, lambda: _seen(scenario, folder, code))


def _leave_room(disk: Path, pages: int, files: int) -> None:
    facts = os.statvfs(disk)
    size = (facts.f_blocks - facts.f_bfree + pages) * facts.f_frsize
    mount("tmpfs", disk, f"remount,size={size},nr_inodes={facts.f_files - facts.f_ffree + files}")


def _seen(scenario: Scenario, folder: Path, code: int) -> list[str]:
    """What is wrong on the disk after a run with a code, and after another one that has room."""
    now = {name: found(folder, name) for name in scenario.outputs}
    wrong = beside(scenario, folder)
    if scenario.resumes:
        _leave_room(folder.parent, PLENTY, PLENTY)
        return wrong + resumed(scenario, folder, scenario.before, now)
    if now != (scenario.after if code == DONE else scenario.before):
        wrong.append(f"{now} after the code {code}")
    wrong += hidden_in(folder)
    _leave_room(folder.parent, PLENTY, PLENTY)
    if code != DONE:
        scenario.run(folder)
        now = {name: found(folder, name) for name in scenario.outputs}
        wrong += [f"{now} with room"] * (now != scenario.after)
    return wrong + beside(scenario, folder) + hidden_in(folder)


if __name__ == "__main__":
    sys.exit(main())

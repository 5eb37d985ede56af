"""``python -m torture.kills``: runs with resume=True that are killed at random times, each until it is complete.

Run it with ``PYTHONPATH=tests:.``, as ``make torture`` does. The result must be that of a run that nobody kills, to the
bit, with nothing left beside it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engine.resume_calls import KINDS, Objects, array, prepared, stored

import chunkflow
from chunkflow.errors import OutputExistsError
from torture.children import DONE, HUNG, LIMIT, REFUSED, begun, forked, import_all, told

IN_FLIGHT = 3 + 3 * len(os.sched_getaffinity(0))
"""Blocks that a kill may cost, with a trial or two in each process."""


def made(kind: str, folder: Path) -> Callable[[], int]:
    """A child's work: the call. It is refused once one has published that was killed after it."""

    def work() -> int:
        warnings.simplefilter("ignore")
        prepared()
        try:
            KINDS[kind](folder)
        except OutputExistsError:
            return REFUSED
        except BaseException:
            error(folder).write_text(traceback.format_exc())
            raise
        return DONE

    return work


def error(folder: Path) -> Path:
    """Where a call that fails says why."""
    return folder.with_name(f"{folder.name} error")


def calls(folder: Path) -> int:
    """Blocks that the function has been called with, trials too."""
    path = folder / "calls"
    return path.stat().st_size if path.exists() else 0


def outputs(folder: Path) -> dict[str, Any] | int:
    """All that lies in a folder, but for what is known; read by a child, so that this process has no threads."""
    known = ("x.npy", "calls", "rows.zarr", ".rows.zarr.claim")  # a copy, that is none of what is resumed
    return told(lambda: {path.name: stored(path) for path in sorted(folder.iterdir()) if path.name not in known})


def _alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(_alike(found[key], expected[key]) for key in expected)
        )
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    return bool(found == expected)


def killed(kind: str, folder: Path, times: random.Random, most: int) -> int:
    """Make a call, kill it after `most` blocks or fewer and make it again, until it is complete. How often it was
    killed.
    """

    def cleaned() -> int:
        chunkflow.clean(folder)
        return DONE

    kills = 0
    while True:
        pid = begun(made(kind, folder))
        after, begin = calls(folder) + times.randint(0, most), time.monotonic()
        ended = (0, 0)
        while not ended[0] and calls(folder) <= after and time.monotonic() - begin < 2 * LIMIT:
            time.sleep(0.001)
            ended = os.waitpid(pid, os.WNOHANG)
        if not ended[0]:
            time.sleep(0.02 * times.random())
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(ended[1])
        if code == DONE:
            return kills
        if kills and code == REFUSED:  # the one before had published: what it had no time to remove is found
            assert forked(cleaned) == DONE
            return kills
        if code != -signal.SIGKILL:
            said = error(folder)
            raise AssertionError(f"it ended with {code}: {said.read_text() if said.exists() else 'it says nothing'}")
        kills += 1


def dying(kind: str, folder: Path, point: int) -> Callable[[], int]:
    """A child's work: the call, which ends before it puts or removes the object of this number."""
    numbers = itertools.count(1)

    def work() -> int:
        for name in ("pipe_file", "rm_file"):
            setattr(Objects, name, before(getattr(Objects, name)))
        return made(kind, folder)()

    def before(request: Callable[..., Any]) -> Callable[..., Any]:
        def requested(*args: Any, **kwargs: Any) -> Any:
            if next(numbers) == point:
                os._exit(HUNG)
            return request(*args, **kwargs)

        return requested

    return work


def listed(folder: Path) -> list[str]:
    """Paths of all objects, but for chunks."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob("u/*/*") if path.name != "c")


def ended(kind: str, place: Path, expected: Any) -> tuple[int, list[str]]:
    """End a call before each object, and make it again. How often, and what was wrong."""
    wrong = []
    for point in itertools.count(1):
        folder = place / f"point {point}"
        folder.mkdir()
        np.save(folder / "x.npy", array())
        if forked(dying(kind, folder, point)) == DONE:
            return point - 1, wrong
        code = forked(made(kind, folder))
        if code not in (DONE, REFUSED) or not _alike(outputs(folder), expected):
            wrong.append(
                f"{kind}, point {point}: {code}, {error(folder).read_text() if code > REFUSED else listed(folder)}"
            )
    raise AssertionError


def made_once(kinds: list[str]) -> None:
    """Make each call once, in a directory of its own."""
    for kind in kinds:
        with tempfile.TemporaryDirectory() as place:
            np.save(Path(place) / "x.npy", array())
            made(kind, Path(place))()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.kills", description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="kills of each kind of run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", default="", help="kinds of runs whose names have this in them")
    parser.add_argument("--apart", type=float, default=1 / 3, help="most blocks between kills, as a share of a run's")
    parser.add_argument("--kinds", type=int, help="so many of them, drawn at random (default: all)")
    parser.add_argument("--points", action="store_true", help="end runs to URLs before each object instead")
    parser.add_argument("--keep", default="", help="a directory for what is wrong")
    asked = parser.parse_args()
    times, wrong = random.Random(asked.seed), 0
    kinds = [kind for kind in KINDS if asked.only in kind and (not asked.points or "URL" in kind)]
    if asked.kinds is not None:
        kinds = times.sample(kinds, min(asked.kinds, len(kinds)))
    import_all(lambda: made_once(kinds))
    print(f"seed {asked.seed}", flush=True)
    for kind in kinds:
        with tempfile.TemporaryDirectory() as place:
            right = Path(place) / "right"
            right.mkdir()
            np.save(right / "x.npy", array())
            if forked(made(kind, right)) != DONE:
                raise AssertionError(f"{kind} fails where nobody kills it: {error(right).read_text()}")
            expected, whole = outputs(right), calls(right)
            if asked.points:
                points, each = ended(kind, Path(place), expected)
                wrong += len(each)
                print(f"{kind:<24}{points:5} points", *each, sep="\n", flush=True)
                continue
            kills = runs = again = 0
            while kills < asked.number:
                folder = Path(place) / f"run {runs}"
                folder.mkdir()
                np.save(folder / "x.npy", array())
                runs += 1
                try:
                    now = killed(kind, folder, times, int(whole * asked.apart))
                    kills += now
                    found = outputs(folder)
                    failed = "" if _alike(found, expected) else str(found if isinstance(found, int) else sorted(found))
                    if calls(folder) > whole + now * IN_FLIGHT:
                        failed += f"{calls(folder)} blocks were computed, of {whole}, after {now} kills"
                except AssertionError as raised:
                    failed = str(raised)
                if failed:
                    wrong += 1
                    print(f"wrong: {kind}, run {runs}: {failed}", flush=True)
                    if asked.keep:
                        shutil.copytree(folder, Path(asked.keep) / f"{kind} {runs}")
                again += calls(folder) - whole
        per = again / max(kills, 1)
        print(f"{kind:<24}{kills:5} kills of {runs} runs of {whole} calls, {per:.1f} calls more for each", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

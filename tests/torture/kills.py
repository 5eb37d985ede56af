"""``python -m torture.kills``: runs with resume=True that are killed at random times, each until it is complete.

Run it with ``PYTHONPATH=tests:.``, as ``make torture`` does. The result must be that of a run that nobody kills, to the
bit, with nothing left beside it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from engine.resume_calls import KINDS, array, stored

PUBLISHED = "OutputExistsError"
"""What a run says that comes after one which was killed when it had published."""


def command(kind: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "engine.resume_calls", kind, str(folder)]


def calls(folder: Path) -> int:
    """Blocks that the function has been called with, trials too."""
    path = folder / "calls"
    return path.stat().st_size if path.exists() else 0


def outputs(folder: Path) -> dict[str, Any]:
    """All that lies in a folder, but for what is known."""
    return {path.name: stored(path) for path in sorted(folder.iterdir()) if path.name not in ("x.npy", "calls")}


def _alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_alike(found[key], expected[key]) for key in expected)
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    return bool(found == expected)


def killed(kind: str, folder: Path, times: random.Random, whole: int) -> int:
    """Make a call, kill it and make it again, until it is complete. How often it was killed."""
    kills = 0
    while True:
        process = subprocess.Popen(command(kind, folder), stderr=subprocess.PIPE, text=True)
        after, begun = calls(folder) + times.randint(0, whole // 3), time.monotonic()
        while process.poll() is None and calls(folder) <= after and time.monotonic() - begun < 60:
            time.sleep(0.001)
        time.sleep(0.02 * times.random())
        process.kill()
        _, said = process.communicate()
        if process.returncode == 0 or (kills and PUBLISHED in said):
            return kills
        if process.returncode > 0:
            raise AssertionError(f"{kind}: {said}")
        kills += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.kills", description=__doc__)
    parser.add_argument("--number", type=int, default=200, help="kills of each kind of run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", default="", help="kinds of runs whose names have this in them")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    times, wrong = random.Random(asked.seed), 0
    print(f"seed {asked.seed}", flush=True)
    for kind in [kind for kind in KINDS if asked.only in kind]:
        with tempfile.TemporaryDirectory() as place:
            right = Path(place) / "right"
            right.mkdir()
            np.save(right / "x.npy", array())
            KINDS[kind](right)
            expected, whole = outputs(right), calls(right)
            kills = runs = again = 0
            while kills < asked.number:
                folder = Path(place) / f"run {runs}"
                folder.mkdir()
                np.save(folder / "x.npy", array())
                each = killed(kind, folder, times, whole)
                found = outputs(folder)
                same = found.keys() == expected.keys() and all(_alike(found[name], expected[name]) for name in expected)
                wrong += not same
                if not same:
                    print(f"wrong: {kind}, run {runs}: {sorted(found)}", flush=True)
                kills, runs, again = kills + each, runs + 1, again + calls(folder) - whole
        per = again / max(kills, 1)
        print(f"{kind:<24}{kills:5} kills of {runs} runs of {whole} calls, {per:.1f} calls more for each", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

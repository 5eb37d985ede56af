"""What it costs to publish outputs safely: beside the code of another checkout, with `sync=True`, with `resume=True`.

``python -m benchmarks.outputs --code PATH [--mib 256] [--rounds 15] [--directory DIR]``. Both codes run in processes of
their own, in turns; the figures are medians over the rounds, and the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = 200
"""Small outputs of a measurement."""


SMALL_ONES = ("small in memory", "small .npy", "small .npy, replaced")
FROM_FILES = ("map from a file", "map from a file in small blocks", "sum from a file")
"""Cases with and without `resume=True`."""


def measured(folder: Path, mib: int, only: str) -> float:
    """Seconds of a case with the code on the path."""
    import numpy as np

    import chunkflow as cf

    x = np.arange(mib << 18, dtype="f4").reshape(-1, 1 << 16)
    tiny, result = np.ones(10), np.empty(10)
    options: dict[str, Any] = {"device": "cpu", "budget": "100MB"}
    synced = {"sync": True} if only.endswith("sync") else {}
    resumed = {"resume": True} if only.endswith("resume") else {}
    source = folder.with_name(f"{folder.name}-x.npy")
    if "from a file" in only:
        np.save(source, x)

    def file() -> None:
        cf.copy(x, folder / "y.npy", **options, **synced)

    def arrays() -> None:
        cf.copy(x, folder / "y.zarr", chunks=(16, 1 << 16), **options, **synced)

    def dataset() -> None:
        cf.copy(x, f"{folder}/y.h5:/y", **options, **synced)

    def mapped() -> None:
        cf.map(np.sqrt, x, out=folder / "y.npy", **options)

    def from_file() -> None:
        cf.map(np.sqrt, source, out=folder / "y.npy", **options, **resumed)

    def in_crumbs() -> None:
        cf.map(np.sqrt, source, out=folder / "y.npy", chunks=(1, 1 << 14), **options, **resumed)

    def summed() -> None:
        cf.sum(source, axis=0, out=folder / "y.npy", **options, **resumed)

    def small() -> None:
        for number in range(SMALL):
            cf.copy(tiny, folder / f"{number}.npy", device="cpu", **synced)

    def in_memory() -> None:
        for _ in range(SMALL):
            cf.map(np.negative, tiny, out=result, device="cpu")

    def replaced() -> None:
        for _ in range(SMALL):
            cf.copy(tiny, folder / "0.npy", device="cpu", overwrite=True)

    files = (from_file, in_crumbs, summed)
    cases: dict[str, Callable[[], None]] = {
        "copy to .npy": file,
        "copy to zarr": arrays,
        "copy to HDF5": dataset,
        "map to .npy": mapped,
        "small in memory": in_memory,
        "small .npy": small,
        "small .npy, replaced": replaced,
        "copy to .npy, sync": file,
        "copy to zarr, sync": arrays,
        "copy to HDF5, sync": dataset,
        "small .npy, sync": small,
        **{f"{name}{end}": fn for name, fn in zip(FROM_FILES, files, strict=True) for end in ("", ", resume")},
    }
    found = []
    for _ in range(3):
        for old in folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        begun = time.perf_counter()
        cases[only]()
        found.append(time.perf_counter() - begun)
    source.unlink(missing_ok=True)
    return min(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, help="another checkout")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", default="", help="cases whose names have this text in them")
    parser.add_argument("--case", help="print the seconds of this one alone")
    chosen = parser.parse_args()
    if chosen.case:
        print(json.dumps(measured(chosen.directory, chosen.mib, chosen.case)))
        return
    plain = ["copy to .npy", "copy to zarr", "copy to HDF5", "map to .npy", *SMALL_ONES]
    for case in [name for name in plain if chosen.only in name] if chosen.code else ():
        _show(case, [_round(case, chosen, (chosen.code, ROOT), turn) for turn in range(chosen.rounds)])
    for case in [name for name in plain if name not in ("map to .npy", *SMALL_ONES[::2]) and chosen.only in name]:
        pairs = [(_seconds(case, chosen, ROOT), _seconds(f"{case}, sync", chosen, ROOT)) for _ in range(chosen.rounds)]
        _show(f"{case}, sync", pairs)
    for case in [name for name in FROM_FILES if chosen.only in name]:
        pairs = [
            (_seconds(case, chosen, ROOT), _seconds(f"{case}, resume", chosen, ROOT)) for _ in range(chosen.rounds)
        ]
        _show(f"{case}, resume", pairs)


def _round(case: str, chosen: argparse.Namespace, codes: tuple[Path, Path], turn: int) -> tuple[float, float]:
    """Seconds of the other code and of this one, which takes the first turn every other time."""
    order = (0, 1) if turn % 2 else (1, 0)
    found = {number: _seconds(case, chosen, codes[number]) for number in order}
    return found[0], found[1]


def _seconds(case: str, chosen: argparse.Namespace, code: Path) -> float:
    with tempfile.TemporaryDirectory(dir=chosen.directory) as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--case", case, "--directory", folder]
        shown = subprocess.run(
            [*command, "--mib", str(chosen.mib)],
            env=os.environ | {"PYTHONPATH": str(code)},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(json.loads(shown.stdout))


def _show(case: str, pairs: list[tuple[float, float]]) -> None:
    before, after = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    ratio = statistics.median(b / a for a, b in pairs)
    each = f", {1e6 * (after - before) / SMALL:+.0f} us each" if case.startswith("small") else ""
    print(f"{case:<40}{1e3 * before:10.1f} ms{1e3 * after:10.1f} ms   {ratio:.3f}{each}", flush=True)


if __name__ == "__main__":
    main()

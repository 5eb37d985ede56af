"""What `chunkflow.explain` predicts beside what a run takes, for operations by formats and codecs, on the CPU.

``python -m benchmarks.predictions [--mb 200] [--only WORD ...] [--directory DIR]`` prints for each pair the seconds
that `explain` predicts beforehand, those of the run, and their ratio: medians of five, taken in turn after one that
does not count, from files that are in memory and on the disk. A star marks ratios beyond 2. These pairs are measured
again at the end: what a machine's host does meanwhile does not last. Calibrate the machine before (``python -m
chunkflow calibrate --device cpu``). Predictions count what others take of the cores; but that changes from moment to
moment, and ratios with it. A virtual machine may wait for memory that its host takes back.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf

WITHIN = 2.0
"""Factor within which a prediction is good."""

REPEATS = 5

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operation with its arguments."""


def slow(block: np.ndarray) -> np.ndarray:
    """A smoothing of neighbours that takes long for the bytes that it touches."""
    found: np.ndarray = np.tanh(np.sin(block)) + np.roll(block, 1, 0) + np.roll(block, -1, 0)
    return found.astype(block.dtype)


OPERATIONS: dict[str, Callable[[Any], Made]] = {
    "sum": lambda x: (cf.sum, (x,), {}),
    "max along 0": lambda x: (cf.max, (x,), {"axis": 0}),
    "map": lambda x: (cf.map, (np.sqrt, x), {}),
    "slow stencil": lambda x: (cf.map_overlap, (slow, x), {"depth": 1, "boundary": "nearest"}),
    "transpose": lambda x: (cf.transpose, (x,), {}),
    "transpose to zarr": lambda x: (cf.transpose, (x,), {"out": "new.zarr"}),
    "copy to .npy": lambda x: (cf.copy, (x,), {"out": "new.npy"}),
    "cumsum": lambda x: (cf.cumsum, (x,), {"axis": 0}),
    "matmul": lambda x: (cf.matmul, (x, np.ones((SIDE, 512), "f4")), {}),
    "fft": lambda x: (cf.fft.fft, (x,), {}),
    "median along 1": lambda x: (cf.median, (x,), {"axis": 1}),
}

SIDE = 4096


def written(folder: Path, x: np.ndarray) -> dict[str, Any]:
    """The array in memory, and the paths of files that hold it, by format and codec."""
    import h5py
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    sides = (max(len(x) // 16, 1), max(x.shape[1] // 4, 1))
    found: dict[str, Any] = {"memory": x}
    np.save(folder / "x.npy", x)
    found[".npy"] = str(folder / "x.npy")
    codecs: dict[str, Any] = {
        "raw": None,
        "gzip": GzipCodec(level=5),
        "zstd": ZstdCodec(level=3),
        "blosc-lz4": BloscCodec(cname="lz4", shuffle="shuffle"),
    }
    for name, codec in codecs.items():
        path = folder / f"x-{name}.zarr"
        zarr.create_array(path, shape=x.shape, dtype=x.dtype, chunks=sides, compressors=codec)[...] = x
        found[f"zarr {name}"] = str(path)
    filters: dict[str, dict[str, Any]] = {
        "raw": {},
        "gzip": {"compression": "gzip"},
        "gzip shuffle": {"compression": "gzip", "shuffle": True},
    }
    for name, given in filters.items():
        path = folder / f"x-{name.replace(' ', '-')}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=x, chunks=sides, **given)
        found[f"hdf5 {name}"] = str(path)
    os.sync()  # the system writes nothing more while runs are measured
    return found


def predicted(op: Any, args: tuple[Any, ...], options: dict[str, Any]) -> float | None:
    """Seconds that `explain` predicts; None if it shows none."""
    try:
        plan = cf.explain(op, *args, **options, device="cpu")
    except TypeError:  # one pass decides on the next
        return None
    found: float | None = getattr(plan, "seconds", None)
    return found


def remove_results(options: dict[str, Any]) -> None:
    """Make room for a new result."""
    if "out" in options:
        shutil.rmtree(options["out"], ignore_errors=True)
        with suppress(OSError):
            os.remove(options["out"])


def measured(op: Any, args: tuple[Any, ...], options: dict[str, Any]) -> float:
    """Seconds of a run."""
    begun = time.perf_counter()
    op(*args, **options, device="cpu")
    taken = time.perf_counter() - begun
    remove_results(options)
    return taken


def compared(op: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[float | None, float]:
    """Predicted seconds, if there are any, and those of a run: medians of some, taken in turn."""
    measured(op, args, options)  # what is written the first time has memory that the system had to free
    pairs = [(predicted(op, args, options), measured(op, args, options)) for _ in range(REPEATS)]
    expected = [seconds for seconds, _ in pairs if seconds is not None]
    return statistics.median(expected) if expected else None, statistics.median([taken for _, taken in pairs])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="of the array")
    parser.add_argument("--only", nargs="*", default=[], help="words of pairs to measure")
    parser.add_argument("--directory", default=None, help="where the files lie for a while")
    given = parser.parse_args()
    rows = given.mb * 1_000_000 // (4 * SIDE) // 16 * 16
    x = (np.random.default_rng(0).integers(0, 1000, (rows, SIDE)) / 8).astype("f4")
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        pairs = {
            f"{source}: {name}": partial(make, array)
            for source, array in written(Path(folder), x).items()
            for name, make in OPERATIONS.items()
            if all(word in f"{source}: {name}" for word in given.only)
        }
        ratios = {pair: shown(pair, make, folder) for pair, make in pairs.items()}
        beyond = [pair for pair, ratio in ratios.items() if ratio is not None and not 1 / WITHIN <= ratio <= WITHIN]
        again = [shown(f"{pair}, again", pairs[pair], folder) for pair in beyond]
    number = sum(ratio is not None for ratio in ratios.values())
    print(f"{number - len(beyond)} of {number} within a factor of {WITHIN:g}")
    if again:
        lasting = sorted(ratio for ratio in again if ratio is not None and not 1 / WITHIN <= ratio <= WITHIN)
        print(f"of the others, measured again at the end, {len(again) - len(lasting)} are; not {lasting}")


def shown(pair: str, make: Callable[[], Made], folder: str) -> float | None:
    """Print the line of a pair; its ratio, if there is a prediction."""
    op, args, options = make()
    options = {k: os.path.join(folder, v) if k == "out" else v for k, v in options.items()}
    expected, found = compared(op, args, options)
    if expected is None:
        print(f"{pair:42} none predicted, took {found:8.4f} s", flush=True)
        return None
    ratio = found / expected
    star = "" if 1 / WITHIN <= ratio <= WITHIN else "*"
    print(f"{pair:42} predicted {expected:8.4f} s, took {found:8.4f} s: {ratio:6.2f} {star}", flush=True)
    return ratio


if __name__ == "__main__":
    main()

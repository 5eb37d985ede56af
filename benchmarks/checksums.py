"""What checksums cost: arrays are written and read with and without them, in turns: ``python -m benchmarks.checksums``.

Processor time is compared, which other processes disturb less than they do the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import chunkflow as cf


def arrays(size: int) -> dict[str, np.ndarray]:
    """Arrays of about so many bytes: incompressible, as measured values are, and mostly zeros."""
    rng, shape = np.random.default_rng(0), (max(1, size >> 13), 2048)
    return {
        "random": rng.random(shape, "f4"),
        "rounded": np.round(rng.standard_normal(shape).cumsum(axis=0), 2).astype("f4"),
        "sparse": (rng.random(shape) < 0.01).astype("f4"),
    }


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of a call, in all threads."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print the medians for each kind of array."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256 << 20, help="bytes of an array")
    parser.add_argument("--turns", type=int, default=9)
    args = parser.parse_args()
    print(f"{'array':<10}{'':<7}{'without s':>10}{'with s':>10}{'more':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, x in arrays(args.size).items():
            took: dict[tuple[str, bool], list[float]] = {}
            for turn in range(args.turns + 1):
                for checksum in (False, True) if turn % 2 else (True, False):
                    path = Path(folder) / f"{checksum}.zarr"
                    how: dict[str, Any] = {"out": path, "overwrite": True, "checksum": checksum, "device": "cpu"}
                    write = seconds(lambda how=how, x=x: cf.map(np.positive, x, **how))  # type: ignore[misc]
                    read = seconds(lambda path=path: cf.max(path, device="cpu"))  # type: ignore[misc]
                    if turn:  # the first one warms up
                        took.setdefault(("write", checksum), []).append(write)
                        took.setdefault(("read", checksum), []).append(read)
            for what in ("write", "read"):
                without, with_ = (median(took[what, checksum]) for checksum in (False, True))
                print(f"{name:<10}{what:<7}{without:>10.3f}{with_:>10.3f}{with_ / without - 1:>8.1%}")


if __name__ == "__main__":
    main()

"""Runs that are killed and gone on with: ``python -m engine.resume_calls KIND FOLDER`` makes one call, slowly."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.engine import resume

CPU: dict[str, Any] = {"device": "cpu", "resume": True}
PAUSE = 0.004


def array() -> np.ndarray:
    return np.random.default_rng(0).random((960, 10, 8)).astype("f4")


def counted(block: np.ndarray, folder: str) -> np.ndarray:
    """The block itself, after a pause; each call of a run adds a letter to a file."""
    with open(Path(folder) / "calls", "a") as file:
        file.write("x")
    time.sleep(PAUSE)
    return block


def slow(folder: Path) -> Any:
    """The array, as an expression whose blocks take a while."""
    return cf.map(counted, cf.open(folder / "x.npy"), folder=str(folder), dtype="f4", workspace=0)


KINDS: dict[str, Callable[[Path], Any]] = {
    "map to npy": lambda folder: cf.map(
        counted, folder / "x.npy", folder=str(folder), out=folder / "o.npy", chunks=(16, -1, -1), **CPU
    ),
    "map to zarr": lambda folder: cf.map(
        counted, folder / "x.npy", folder=str(folder), out=folder / "o.zarr", chunks=(20, -1, -1), **CPU
    ),
    "overlapping blocks": lambda folder: cf.map_overlap(
        lambda b: counted(b, str(folder)) + np.roll(b, 1, 0),
        folder / "x.npy",
        depth=1,
        boundary="nearest",
        out=folder / "o.npy",
        chunks=(24, -1, -1),
        **CPU,
    ),
    "sum along an axis": lambda folder: cf.store(slow(folder).sum(axis=0), folder / "o.npy", budget="24kB", **CPU),
    "sum of all": lambda folder: cf.store(slow(folder).mean(), folder / "o.npy", budget="24kB", **CPU),
    "cumulative sum": lambda folder: cf.store(cf.cumsum(slow(folder), axis=0), folder / "o.npy", budget="24kB", **CPU),
    "several outputs": lambda folder: cf.store(
        [(x := slow(folder)) * 2, x.sum(axis=0)], [folder / "o.npy", folder / "s.npy"], budget="48kB", **CPU
    ),
}


def main() -> None:
    resume.EVERY, resume.SHARE = 0.0, 0
    KINDS[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()

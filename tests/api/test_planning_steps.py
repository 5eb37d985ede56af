"""Planning takes as many steps for an array of any size, whatever holds it: they are counted, not timed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf

SIZES = 20_001, 800_003, 6_710_893
"""Elements of a chunk, or a quarter of those of an array without chunks."""

BUDGET = "1GB"


def steps(work: Callable[[], object]) -> int:
    """Lines of Python that some work takes."""
    numbers = itertools.count()

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        next(numbers)
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return next(numbers)


def dask_array(n: int, folder: Path) -> Any:
    import dask.array

    return dask.array.zeros(4 * n, chunks=n, dtype="u1")


def dask_irregular(n: int, folder: Path) -> Any:
    import dask.array

    return dask.array.zeros((3, 2 * n), chunks=((1, 2), (n // 3, n + 7, 2 * n - n // 3 - n - 7)), dtype="u1")


def sharded(n: int, folder: Path) -> Any:
    return zarr.create_array({}, shape=(16 * n,), chunks=(n // 4,), shards=(n // 4 * 4,), dtype="u1")


def chunked(n: int, folder: Path) -> Any:
    zarr.create_array(folder / f"{n}.zarr", shape=(3, 4 * n), chunks=(2, n), dtype="u1")
    return str(folder / f"{n}.zarr")


def hdf5(n: int, folder: Path) -> Any:
    with h5py.File(folder / f"{n}.h5", "w") as file:
        file.create_dataset("x", shape=(4 * n,), chunks=(n,), dtype="u1")
    return str(folder / f"{n}.h5")


def mapped(n: int, folder: Path) -> Any:
    return np.lib.format.open_memmap(folder / f"{n}.npy", "w+", "u1", (4 * n,))


def in_memory(n: int, folder: Path) -> Any:
    return np.broadcast_to(np.uint8(1), (2, 2 * n))


SOURCES = (dask_array, dask_irregular, sharded, chunked, hdf5, mapped, in_memory)

EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "all of it": lambda x: x + np.uint8(0),
    "a slice": lambda x: x[..., 7:-13] * np.uint8(2),
    "every third": lambda x: x[..., ::3] * np.uint8(2),
    "a sum of a slice": lambda x: x[..., 5:].sum(axis=-1),
    "a stencil": lambda x: cf.map_overlap(np.copy, x[..., 5:], depth=3, boundary="nearest", dtype="u1"),
    "a scan": lambda x: cf.cumsum(x[..., 3:], axis=-1),
    "two passes": lambda x: (x - x.max()).sum(),
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda made: made.__name__)
def test_they_do_not_grow_with_the_elements(source: Any, expression: str, tmp_path: Path) -> None:
    if source.__name__.startswith("dask"):
        pytest.importorskip("dask.array")
    make = EXPRESSIONS[expression]
    cf.explain(make(cf.open(source(1000, tmp_path))), device="cpu", budget=BUDGET)  # what is imported does not count
    found = [
        steps(lambda: cf.explain(make(cf.open(source(n, tmp_path))), device="cpu", budget=BUDGET))  # noqa: B023
        for n in SIZES
    ]
    assert max(found) < 5 * min(found), f"lines for {SIZES} elements: {found}"

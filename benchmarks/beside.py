"""Cases of an operation beside NumPy, in memory, and dask."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from benchmarks.case import OURS, Bench, Case
from benchmarks.probe import installed

NUMPY, DASK, CUPY = "NumPy, in memory, one core", "dask", "CuPy, all in device memory"

SLICE = 1 << 20
"""Elements that are compared at a time."""


@dataclass(frozen=True)
class Beside:
    """An operation that reads and writes so many `nbytes`, as each library does it; `dask` gives an array of dask's.

    Results are the same but for `tolerance`, or for as much as `close` allows. `more` are further contenders. `cupy`
    does it to copies of `arrays` that are in device memory already; it is called with CuPy and with them.
    """

    nbytes: int
    ours: Callable[[], Any]
    numpy: Callable[[], Any]
    dask: Callable[[], Any] | None = None
    more: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    close: Callable[[Any, Any], None] | None = None
    tolerance: float = 1e-4
    arrays: tuple[np.ndarray, ...] = ()
    cupy: Callable[..., Any] | None = None
    needs: tuple[str, ...] = ()


def cases(bench: Bench, what: str, found: Mapping[str, Beside], *, link: bool = True) -> Iterator[Case]:
    """A case for each operation.

    The limit is NumPy, in memory, on one core. On a GPU it is the `link`, if that is what may bound it, or CuPy, where
    it takes longer than the link with all in device memory: there NumPy would take longer than all the rest, and
    results are held to CuPy's or dask's.
    """
    link = link and bench.is_gpu
    for name, one in found.items():
        there, missing = installed(DASK, *one.needs)
        if not {*one.needs} <= {*there}:
            continue
        runs: dict[str, Callable[[], Any]] = {OURS: one.ours, **one.more}
        if one.dask is not None and DASK in there:
            runs[DASK] = lambda one=one: computed(one.dask())  # type: ignore[misc]
        if link and one.cupy is not None:
            runs[CUPY] = on_card(bench, one)
        if not link:
            runs[NUMPY] = one.numpy
        expected = cache(runs.get(CUPY, runs.get(DASK, one.numpy)) if link else one.numpy)

        def check(who: str, got: Any, one: Beside = one, expected: Callable[[], Any] = expected) -> None:
            mine, other = (tuple(map(on_host, each(result))) for result in (got, expected()))
            if one.close is not None:
                one.close(mine[0], other[0])
                return
            for pair in zip(mine, other, strict=True):
                alike(*pair, one.tolerance)

        limit = ("link", bench.link) if link else (NUMPY, None)
        bound = CUPY if CUPY in runs else None
        what_of = f"{name}, {what}"
        yield Case(name, what_of, one.nbytes / 1e9, runs, check, limit, missing=missing, bound=bound, apart=True)
        bench.accelerator.free()


def alike(mine: np.ndarray, other: np.ndarray, tolerance: float) -> None:
    """Raise AssertionError where two arrays differ; by slices on all cores, since this takes longer than many runs."""
    assert mine.shape == other.shape, (mine.shape, other.shape)
    a, b = mine.reshape(-1), other.reshape(-1)

    def compare(start: int) -> None:
        side = slice(start, start + SLICE)
        np.testing.assert_allclose(a[side], b[side], rtol=tolerance, atol=tolerance / 10)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compare, range(0, a.size, SLICE)))


def on_card(bench: Bench, one: Beside) -> Callable[[], Any]:
    """What CuPy does, timed to its end; its arrays are copied by the first run, which is not counted."""
    held = cache(lambda: tuple(map(bench.xp.asarray, one.arrays)))

    def run() -> Any:
        assert one.cupy is not None
        found = one.cupy(bench.xp, *held())
        bench.accelerator.wait()
        return found

    return run


def on_host(array: Any) -> np.ndarray:
    """It as NumPy's."""
    return array.get() if hasattr(array, "get") else np.asarray(array)  # type: ignore[no-any-return]


def each(result: Any) -> tuple[Any, ...]:
    """The arrays of a result."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def computed(lazy: Any) -> Any:
    """What dask computes with threads: of an array, or of several."""
    found = importlib.import_module("dask").compute(*each(lazy), scheduler="threads")
    return found if isinstance(lazy, tuple | list) else found[0]


def dask_array() -> Any:
    """``dask.array``."""
    return importlib.import_module("dask.array")

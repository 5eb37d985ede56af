"""Elements by lists, points, masks and tables: zarr to memory, beside NumPy after zarr-python, and dask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks import beside
from benchmarks.beside import Beside, dask_array
from benchmarks.case import Bench, Case
from benchmarks.data import cube_side

CHUNK, POINTS = 64, 20_000


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each operation."""
    side = max(2 * CHUNK, cube_side(bench.gib, CHUNK))
    path, labelled, rng = (
        str(bench.directory / "x.zarr"),
        str(bench.directory / "labels.zarr"),
        np.random.default_rng(0),
    )
    x = rng.standard_normal((side,) * 3, dtype="f4")
    numbers = (x * 8).astype("i2").clip(-32, 31) + np.int16(32)
    stored = bench.once("x.zarr", lambda: _stored(path, x))
    labels = bench.once("labels.zarr", lambda: _stored(labelled, numbers))
    table, edges = rng.standard_normal(64), np.linspace(-3, 3, 65, dtype="f4")
    along = x.argmax(axis=0, keepdims=True)
    options = bench.options

    def elementwise(of: Callable[[Any, Any], Any], lazy: Callable[[Any, Any], Any] | None, nbytes: int) -> Beside:
        """A function of the volume and of its labels, by NumPy's names."""
        return Beside(
            nbytes,
            lambda: of(cf.open(path), cf.open(labelled)).compute(**options),
            lambda: of(stored[...], labels[...]),
            None if lazy is None else lambda: lazy(dask_array().from_zarr(path), dask_array().from_zarr(labelled)),
        )

    def taken(places: np.ndarray) -> Beside:
        return Beside(
            len(places) * x[0].nbytes,
            lambda: cf.take(path, places, 0, **options),
            lambda: stored.oindex[places],
            lambda: dask_array().from_zarr(path)[places],
        )

    rows = np.sort(rng.choice(side, side // 4, replace=False))
    chunks = np.concatenate([np.arange(n, min(side, n + CHUNK)) for n in range(0, side, 10 * CHUNK)])
    points = tuple(rng.integers(0, side, (3, POINTS)))
    keep = rng.random(side) < 0.5
    some, three = np.arange(0, 64, 3, dtype="i2"), (np.float32(1), np.float32(2), np.float32(3))
    small, large, size = x.nbytes, 8 * x.size, x.size

    def selected(a: Any, _: Any, xp: Any = np) -> Any:
        return xp.select([a < 0, a < 1], [-a, a * a], 2)

    found = {
        "sorted rows": taken(rows),
        "random rows": taken(rng.permutation(rows)),
        "every tenth chunk": taken(chunks),
        "points": Beside(
            4 * POINTS,
            lambda: cf.open(path)[points].compute(**options),
            lambda: stored.vindex[points],
            lambda: dask_array().from_zarr(path).vindex[points],
        ),
        "mask of the whole": elementwise(lambda a, _: a[a > 1], lambda a, _: a[a > 1], 2 * small),
        "mask of an axis": elementwise(
            lambda a, _: np.compress(keep, a, axis=0), lambda a, _: dask_array().compress(keep, a, axis=0), small
        ),
        "flatnonzero": elementwise(
            lambda a, _: np.flatnonzero(a > 1), lambda a, _: dask_array().flatnonzero(a > 1), 2 * small
        ),
        "argwhere": elementwise(lambda a, _: np.argwhere(a > 2), lambda a, _: dask_array().argwhere(a > 2), 2 * small),
        "table": Beside(
            numbers.nbytes + large,
            lambda: cf.take(table, cf.open(labelled)).compute(**options),
            lambda: table[labels[...]],
            lambda: dask_array().from_zarr(labelled).map_blocks(lambda block: table[block], dtype="f8"),
        ),
        "take_along_axis": Beside(
            small,
            lambda: cf.take_along_axis(path, along, 0, **options),
            lambda: np.take_along_axis(stored[...], along, 0),
        ),
        "searchsorted": elementwise(
            lambda a, _: np.searchsorted(edges, a),
            lambda a, _: dask_array().searchsorted(dask_array().from_array(edges), a),
            small + large,
        ),
        "digitize": elementwise(
            lambda a, _: np.digitize(a, edges), lambda a, _: dask_array().digitize(a, edges), small + large
        ),
        "isin": elementwise(
            lambda _, n: np.isin(n, some), lambda _, n: dask_array().isin(n, some), numbers.nbytes + size
        ),
        "interp": elementwise(
            lambda a, _: np.interp(a, edges, table.repeat(2)[: len(edges)]),
            lambda a, _: a.map_blocks(lambda b: np.interp(b, edges, table.repeat(2)[: len(edges)]), dtype="f8"),
            small + large,
        ),
        "select": elementwise(selected, lambda a, n: selected(a, n, dask_array()), 2 * small),
        "choose": elementwise(
            lambda a, n: np.choose(n % 3, three), lambda a, n: dask_array().choose(n % 3, three), 2 * small
        ),
    }
    yield from beside.cases(bench, f"zarr, float32 {side}^3 in chunks of {CHUNK}^3, to memory", found, link=False)


def _stored(path: str, x: np.ndarray) -> Any:
    return zarr.create_array(path, data=x, chunks=(CHUNK,) * 3, overwrite=True)

"""Two and three results of one expression in one pass on the CPU, beside dask, cubed and python-blosc2.

The energy is ``(u**2 + v**2 + w**2) / 2`` of three float32 volumes, zarr in blosc's zstd with bytes shuffled.
python-blosc2 reads copies of them in its own format, in files, with the same chunks, codec, level and filter; its
reductions are made one after the other, each from the files ("lazy reductions"), or by NumPy from slabs of the lazy
expression ("by slabs"), which needs one pass. Neither it nor cubed has a histogram, so there is a case of two results
too. Peak memory is measured in a process of its own for each contender.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import cube_side
from benchmarks.peers.streams import cubed_spec
from benchmarks.probe import installed

CHUNKS = (128, 128, 128)
BINS, RANGE = 256, (0, 50)

Runs = dict[str, Callable[[], Any]]


def energy(u: Any, v: Any, w: Any) -> Any:
    """What is reduced; all libraries have these operators."""
    return (u**2 + v**2 + w**2) / 2


def normal(seed: int, side: int) -> np.ndarray:
    """A volume of noise."""
    return np.random.default_rng(seed).standard_normal((side,) * 3, dtype="f4") * 3


def compressed(path: str, x: np.ndarray) -> None:
    """Make a volume's zarr array: chunks in blosc's zstd, with bytes shuffled."""
    codec = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")
    zarr.create_array(path, shape=x.shape, dtype="f4", chunks=CHUNKS, compressors=codec)[...] = x


class Volumes:
    """The arrays, and what each contender does with them."""

    def __init__(self, directory: Path, side: int, there: Sequence[str]) -> None:
        self.directory, self.side, self.there = directory, side, there
        if not Path(self.path("w")).exists():
            self.create()

    def create(self) -> None:
        """Make the data: noise, of which few energies lie beyond the histogram's range."""
        for seed, name in enumerate("uvw"):
            x = normal(seed, self.side)
            if "blosc2" in self.there:
                blosc2 = importlib.import_module("blosc2")
                params = {"codec": blosc2.Codec.ZSTD, "clevel": 1, "filters": [blosc2.Filter.SHUFFLE]}
                blosc2.asarray(x, urlpath=self.path(name, "b2nd"), mode="w", chunks=CHUNKS, cparams=params)
            compressed(self.path(name), x)

    def path(self, name: str, kind: str = "zarr") -> str:
        return str(self.directory / f"{name}.{kind}")

    def energy(self, library: str) -> Any:
        """The energy, as a library's expression."""

        def opened(name: str) -> Any:
            if library == "dask":
                return importlib.import_module("dask.array").from_zarr(self.path(name))
            if library == "cubed":
                return importlib.import_module("cubed").from_zarr(self.path(name), spec=cubed_spec(self.directory))
            if library == "blosc2":
                return importlib.import_module("blosc2").open(self.path(name, "b2nd"), mode="r")
            return cf.open(self.path(name))

        return energy(*map(opened, "uvw"))

    def by_slabs(self, histogram: bool) -> tuple[Any, ...]:
        """NumPy's results of slabs that python-blosc2 works out."""
        e, total, most = self.energy("blosc2"), 0.0, []
        counts = np.zeros(BINS, np.intp)
        for start in range(0, self.side, CHUNKS[0]):
            slab = e[start : start + CHUNKS[0]]
            total += slab.sum(dtype="f8")
            most.append(slab.max(axis=(1, 2)))
            if histogram:
                counts += np.histogram(slab, BINS, RANGE)[0]
        return (total / self.side**3, np.concatenate(most), *((counts,) if histogram else ()))

    def chunkflow(self, histogram: bool) -> Any:
        e = self.energy("chunkflow")
        results = [np.mean(e), np.max(e, axis=(1, 2)), *([np.histogram(e, BINS, RANGE)[0]] if histogram else [])]
        return cf.compute(*results, device="cpu")

    def dask(self, histogram: bool) -> Any:
        dask, da, e = importlib.import_module("dask"), importlib.import_module("dask.array"), self.energy("dask")
        results = [da.mean(e), da.max(e, axis=(1, 2))]
        if histogram:
            results.append(da.histogram(e, bins=BINS, range=RANGE)[0])
        with dask.config.set(scheduler="threads"):
            return da.compute(*results)

    def cubed(self) -> Any:
        xp, e = importlib.import_module("cubed.array_api"), self.energy("cubed")
        return importlib.import_module("cubed").compute(xp.mean(e), xp.max(e, axis=(1, 2)))

    def reductions(self) -> tuple[Any, ...]:
        """python-blosc2's own, one after the other."""
        e = self.energy("blosc2")
        return e.mean(), e.max(axis=(1, 2))

    def runs(self, histogram: bool) -> Runs:
        """Who makes the mean, the maximum of each plane, and the histogram."""
        found: Runs = {OURS: lambda: self.chunkflow(histogram)}
        if "dask" in self.there:
            found["dask"] = lambda: self.dask(histogram)
        if "cubed" in self.there and not histogram:
            found["cubed"] = self.cubed
        if "blosc2" in self.there:
            if not histogram:
                found["blosc2, lazy reductions"] = self.reductions
            found["blosc2, by slabs"] = lambda: self.by_slabs(histogram)
        return found

    def expected(self) -> tuple[Any, ...]:
        """NumPy's results."""
        e = energy(*(zarr.open_array(self.path(name), mode="r")[...] for name in "uvw"))
        return e.mean(dtype="f8"), e.max(axis=(1, 2)), np.histogram(e, BINS, RANGE)[0]


def cases(bench: Bench) -> Iterator[Case]:
    """Two results, then three."""
    there, missing = installed("dask", "cubed", "blosc2")
    volumes = Volumes(bench.directory, cube_side(bench.gib, 32), there)
    expected = cache(volumes.expected)

    def check(_: str, returned: Any) -> None:
        """Compare with NumPy's. Rounding may move an element to the next bin."""
        for got, want in zip(returned[:2], expected(), strict=False):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)
        if len(returned) > 2:
            assert np.abs(np.asarray(returned[2]) - expected()[2]).sum() <= 1e-5 * volumes.side**3

    what, amount = f"an energy of three volumes of {volumes.side}^3, zarr", 3 * 4 * volumes.side**3 / 1e9
    for name, histogram in (("two results", False), ("three results", True)):
        yield Case(name, what, amount, volumes.runs(histogram), check, None, missing=missing, apart=True)

"""Products of matrices in files and in RAM, with their device memory; the bound is the in-core rate.

The in-core rate is the device's, of matrices that stay there, of that size or of the largest that fits. cuBLASXt, where
it is found, gets matrices in RAM, and as much device memory as it likes: first pinned ones, with the tile that is best
for them, then the same with the time in which they are pinned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import in_threads, mapped, matrix, matrix_side, poison
from benchmarks.peers.cublasxt import TILES, CublasXt
from benchmarks.probe import Accelerator
from benchmarks.timing import median_seconds

TOLERANCE = {"f": 2e-5, "d": 1e-12}
"""Errors of a product, as parts of its largest element: single precision, with factors that were not rounded."""

STRIP = 512  # rows that are converted to float64 at a time, to be compared


class Product:
    """Two matrices in files and in RAM, and places for their product."""

    def __init__(self, directory: Path, accelerator: Accelerator, dtype: str, side: int) -> None:
        self.accelerator, self.dtype, self.side = accelerator, np.dtype(dtype), side
        self.a, self.b = (matrix(directory / f"{name}-{dtype}.bin", dtype, side, i) for i, name in enumerate("ab"))
        self.c = mapped(directory / f"c-{dtype}.bin", dtype, (side, side))
        self.ram_a, self.ram_b, self.ram_c = np.array(self.a), np.array(self.b), np.empty(self.c.shape, dtype)
        self.samples = [0, side // 3, side - 1]
        self.rows = sum(in_threads(self.of_rows, -(-side // STRIP)))
        self.columns = np.concatenate(in_threads(self.of_columns, -(-side // STRIP)))
        poison(self.c)
        poison(self.ram_c)

    def of_rows(self, strip: int) -> np.ndarray:
        """What a strip of `b` adds to a few rows of the product."""
        part = slice(strip * STRIP, (strip + 1) * STRIP)
        return self.ram_a[self.samples, part].astype("f8") @ self.ram_b[part].astype("f8")

    def of_columns(self, strip: int) -> np.ndarray:
        """A strip of a few columns of the product."""
        return self.ram_a[strip * STRIP : (strip + 1) * STRIP].astype("f8") @ self.ram_b[:, self.samples].astype("f8")

    def check(self, name: str, out: np.ndarray) -> None:
        """Compare rows and columns with NumPy's in float64."""
        bound = TOLERANCE[self.dtype.char] * np.abs(self.rows).max()
        np.testing.assert_allclose(out[self.samples], self.rows, rtol=0, atol=bound)
        np.testing.assert_allclose(out[:, self.samples], self.columns, rtol=0, atol=bound)
        assert np.isfinite(out[::97, ::89]).all()
        poison(out)

    def in_core(self, repeats: int) -> tuple[int, float]:
        """Side and TFLOP/s of a product whose matrices stay on the device."""
        xp, accelerator = self.accelerator.xp, self.accelerator
        accelerator.free()
        fits = math.isqrt(accelerator.free_memory() * 4 // 5 // (3 * self.dtype.itemsize)) // 256 * 256
        side = min(self.side, fits)
        a, b = (xp.asarray(array[:side, :side]) for array in (self.ram_a, self.ram_b))
        out = xp.empty_like(a)

        def product() -> None:
            xp.matmul(a, b, out=out)
            accelerator.wait()

        accelerator.wait()
        product()
        return side, 2 * side**3 / median_seconds(product, repeats) / 1e12

    def peers(self, kept: ExitStack) -> dict[str, Callable[[], np.ndarray]]:
        """cuBLASXt with its best tile, if it is there. Arrays pinned before stay so until the next contender."""
        peer = CublasXt.find(self.accelerator.xp) if self.accelerator.is_gpu else None
        if peer is None:
            return {}
        arrays, took = (self.ram_a, self.ram_b, self.ram_c), {}
        with peer.pinned(*arrays):
            for tile in [tile for tile in TILES if tile <= self.side]:
                took[tile] = median_seconds(lambda tile=tile: peer.matmul(*arrays, tile), 1)  # type: ignore[misc]
        best = min(took, key=lambda tile: took[tile])
        poison(self.ram_c)
        pinned: list[ExitStack] = []
        kept.callback(peer.close)

        def pinned_before() -> np.ndarray:
            if not pinned:  # in the first run, which is not counted
                pinned.append(kept.enter_context(ExitStack()))
                pinned[0].enter_context(peer.pinned(*arrays))
            peer.matmul(*arrays, best)
            return self.ram_c

        def pins() -> np.ndarray:
            if pinned:
                pinned.pop().close()
            with peer.pinned(*arrays):
                peer.matmul(*arrays, best)
            return self.ram_c

        name = f"cuBLASXt, tiles of {best}"
        return {f"{name}, pinned before": pinned_before, f"{name}, pins its arrays": pins}


def cases(bench: Bench) -> Iterator[Case]:
    """Products of float32, then of float64."""
    for dtype, full in (("f4", 32768), ("f8", 16384)):
        p = Product(bench.directory, bench.accelerator, dtype, matrix_side(bench.gib, full))
        side, rate = p.in_core(bench.repeats)
        bench.accelerator.free()
        runs: dict[str, Callable[[], Any]] = {
            OURS: lambda p=p: cf.matmul(p.a, p.b, out=p.c, **bench.options),
            "chunkflow, RAM": lambda p=p: cf.matmul(p.ram_a, p.ram_b, out=p.ram_c, **bench.options),
        }
        with ExitStack() as kept:
            peers = p.peers(kept)
            runs |= peers
            missing = ("cuBLASXt",) if bench.is_gpu and not peers else ()
            what, limit = f"memmaps of {p.side}^2, budget {bench.budget}", (f"in core, {side}^2", rate)
            yield Case(
                *(f"matrices, {p.dtype}", what, 2 * p.side**3 / 1e12, runs, p.check, limit, None, "TFLOP/s", missing),
                groups=bench.alone(runs),
            )
        del p, runs, peers

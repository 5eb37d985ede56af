"""Products, reductions and stencils on a GPU, each beside what bounds it: the in-core rate, the link, a plain map.

Run ``python -m benchmarks.gpu_operations [--gib 16] [--repeats 3] [--budget 4GB] [--directory DIR]``: it needs a CUDA
device, CuPy, dask (for `benchmarks.gpu`, which measures the link), room for three matrices or a volume on disk, and for
six matrices or three volumes in host memory. ``--device cpu --gib 0.02 --sides 512 256`` tries it without a GPU.

- *products*: of float32 memmaps of side 32768 and float64 ones of 16384 (``--sides``), and of the same matrices in RAM.
  The in-core rate is CuPy's, of matrices that stay on the device, of that size or of the largest that fits. cuBLASXt,
  where it is found, gets matrices in RAM, and as much device memory as it likes: first pinned ones, with the tile that
  is best for them, then the same with the time in which they are pinned.
- *reductions*: along each axis of a page-cached float32 memmap. What is read once can be no faster than the link.
- *stencils*: from RAM to RAM, of 7 and of 27 points, as a share of what a plain `cf.map` reaches.

Outputs are poisoned before each run and compared with NumPy's on samples after it; a section with a wrong result has no
figures. Runs of chunkflow share a `cf.Budget`: in *products* each contender has one of its own, and takes its turns by
itself, since device memory is the driver's figure, sampled in its uncounted first run.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.cublasxt import TILES, CublasXt
from benchmarks.harness import (
    Accelerator,
    blur,
    gpu_parser,
    in_threads,
    machine,
    poison,
    sections,
    table,
    timed,
    volume,
    volume_shape,
)

TOLERANCE = {"f": 2e-5, "d": 1e-12}
"""Errors of a product, as parts of its largest element: single precision, with factors that were not rounded."""

STRIP = 512  # rows that are converted to float64 at a time, to be compared


def work(a):
    """What the plain map computes."""
    return np.sqrt(np.abs(a)) * 2 + 1


def smooth(block):
    """A 27-point stencil: weights 1, 2, 1 along each axis."""
    for axis in range(3):
        lines = (slice(None),) * axis
        block = block[(*lines, slice(1, -1))] * 2 + block[(*lines, slice(-2))] + block[(*lines, slice(2, None))]
    block *= np.float32(1 / 64)
    return block


class Product:
    """Two matrices in files and in RAM, and places for their product."""

    def __init__(self, directory: Path, accelerator: Accelerator, dtype: str, side: int) -> None:
        self.accelerator, self.dtype, self.side = accelerator, np.dtype(dtype), side
        self.a, self.b, self.c = (
            np.memmap(directory / f"{name}-{dtype}.bin", dtype, "w+", shape=(side, side)) for name in "abc"
        )
        for seed, array in enumerate((self.a, self.b)):
            in_threads(lambda i, seed=seed, array=array: self.fill(array, seed, i), -(-side // STRIP))
        self.ram_a, self.ram_b, self.ram_c = np.array(self.a), np.array(self.b), np.empty(self.c.shape, dtype)
        self.samples = [0, side // 3, side - 1]
        self.rows = sum(in_threads(self.of_rows, -(-side // STRIP)))
        self.columns = np.concatenate(in_threads(self.of_columns, -(-side // STRIP)))
        poison(self.c)
        poison(self.ram_c)

    def fill(self, array: np.ndarray, seed: int, strip: int) -> None:
        part = array[strip * STRIP : (strip + 1) * STRIP]
        part[...] = np.random.default_rng([seed, strip]).random(part.shape, self.dtype) - 0.5

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
        times = []
        for _ in range(repeats + 2):
            accelerator.wait()
            begin = time.perf_counter()
            xp.matmul(a, b, out=out)
            accelerator.wait()
            times.append(time.perf_counter() - begin)
        del a, b, out
        accelerator.free()
        return side, 2 * side**3 / statistics.median(times[2:]) / 1e12

    def peers(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """cuBLASXt with its best tile, if it is there."""
        peer = CublasXt.find(self.accelerator.xp) if self.accelerator.is_gpu else None
        if peer is None:
            return
        arrays, took = (self.ram_a, self.ram_b, self.ram_c), {}
        with peer.pinned(*arrays):
            for tile in [tile for tile in TILES if tile <= self.side]:
                peer.matmul(*arrays, tile)
                begin = time.perf_counter()
                peer.matmul(*arrays, tile)
                took[tile] = time.perf_counter() - begin
        best = min(took, key=lambda tile: took[tile])
        poison(self.ram_c)

        def run(*, pins: bool) -> np.ndarray:
            with peer.pinned(*arrays) if pins else nullcontext():
                peer.matmul(*arrays, best)
            return self.ram_c

        with peer.pinned(*arrays):
            yield f"cuBLASXt, tiles of {best}, pinned before", lambda: run(pins=False)
        yield f"cuBLASXt, tiles of {best}, pins its arrays", lambda: run(pins=True)
        peer.close()

    def report(self, budget: str, repeats: int) -> str:
        """Table of the contenders."""
        device, (side, rate) = self.accelerator.device, self.in_core(repeats)
        rows = [(f"in core, {side}^2", "-", "-", f"{rate:.3g}", "1.00", "-")]

        def measured(name: str, run: Callable[[], Any]) -> None:
            seconds, peaks = self.accelerator.within(budget, {name: run}, repeats, self.check)
            middle = statistics.median(seconds[name])
            reached = 2 * self.side**3 / middle / 1e12
            spread = f"{min(seconds[name]):.3g}-{max(seconds[name]):.3g}"
            rows.append((name, f"{middle:.3g}", spread, f"{reached:.3g}", f"{reached / rate:.2f}", peaks[name]))

        measured("chunkflow, memmaps", lambda: cf.matmul(self.a, self.b, out=self.c, device=device))
        measured("chunkflow, RAM", lambda: cf.matmul(self.ram_a, self.ram_b, out=self.ram_c, device=device))
        for name, run in self.peers():
            measured(name, run)
        if len(rows) == 3:
            rows.append(("cuBLASXt", "not available", "", "", "", ""))
        head = ["contender", "seconds", "range", "TFLOP/s", "of the in-core rate", "device GB"]
        return table(f"product of {self.dtype} matrices of {self.side}^2, budget {budget}", rows, head)


def reductions(x: np.ndarray, accelerator: Accelerator, link: float, budget: str, repeats: int) -> str:
    """Table of reductions along each axis."""
    cases: dict[str, tuple[str, int]] = {
        f"{op}, axis {a}": (op, a) for op in ("sum", "mean", "var", "max") for a in range(3)
    }
    outs = {name: np.full(x.shape[:a] + x.shape[a + 1 :], np.nan, "f4") for name, (_, a) in cases.items()}
    expected = {}
    for name, (op, axis) in cases.items():
        kept = 1 if axis == 0 else 0  # some lines of the result, which are its first axis
        lines = [0, x.shape[kept] // 3, x.shape[kept] - 1]
        part = np.take(x, lines, axis=kept)
        expected[name] = lines, getattr(np, op)(part if op == "max" else part.astype("f8"), axis=axis)

    def run(name: str) -> np.ndarray:
        op, axis = cases[name]
        return getattr(cf, op)(x, axis=axis, out=outs[name], device=accelerator.device)

    def check(name: str, out: np.ndarray) -> None:
        lines, values = expected[name]
        np.testing.assert_allclose(out[lines], values, rtol=1e-4, atol=1e-3)
        assert np.isfinite(out).all()
        out.fill(np.nan)

    with cf.Budget(budget) as shared:
        seconds = timed({name: lambda name=name: run(name) for name in cases}, repeats, check)
    rows = []
    for name, times in seconds.items():
        rate = x.nbytes / statistics.median(times) / 1e9
        spread = f"{x.nbytes / max(times) / 1e9:.1f}-{x.nbytes / min(times) / 1e9:.1f}"
        rows.append((name, f"{rate:.1f}", spread, f"{rate / link:.2f}"))
    title = f"reductions of a page-cached memmap, float32 {x.shape}, at most {shared.peak / 1e9:.2f} GB of {budget}"
    return table(title, rows, ["reduction", "GB/s", "range", "of the link"])


def stencils(x: np.ndarray, accelerator: Accelerator, budget: str, repeats: int) -> str:
    """Table of stencils beside a plain map."""
    ram, out, device = np.array(x), np.empty(x.shape, x.dtype), accelerator.device
    halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "trim": False, "out": out, "device": device}
    runs: dict[str, Callable[[], Any]] = {
        "7-point stencil": lambda: cf.map_overlap(blur, ram, **halo),
        "27-point stencil": lambda: cf.map_overlap(smooth, ram, **halo),
        "map": lambda: cf.map(work, ram, out=out, device=device),
    }
    planes = [0, len(x) // 3, len(x) - 1]
    edged = {
        i: np.pad(ram[np.clip([i - 1, i, i + 1], 0, len(x) - 1)], ((0, 0), (1, 1), (1, 1)), "edge") for i in planes
    }
    expected = {
        "7-point stencil": {i: blur(edged[i])[0] for i in planes},
        "27-point stencil": {i: smooth(edged[i])[0] for i in planes},
        "map": {i: work(ram[i]) for i in planes},
    }

    def check(name: str, out: np.ndarray) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], expected[name][i], rtol=1e-5, atol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all()
        poison(out)

    poison(out)
    with cf.Budget(budget) as shared:
        seconds = timed(runs, repeats, check)
    plain, rows = statistics.median(seconds["map"]), []
    for name, times in seconds.items():
        middle = statistics.median(times)
        spread = f"{x.nbytes / max(times) / 1e9:.1f}-{x.nbytes / min(times) / 1e9:.1f}"
        rows.append((name, f"{x.nbytes / middle / 1e9:.1f}", spread, f"{plain / middle:.2f}"))
    title = f"from RAM to RAM, float32 {x.shape}, at most {shared.peak / 1e9:.2f} GB of {budget}"
    return table(title, rows, ["", "GB/s each way", "range", "of the map"])


def main() -> None:
    """Run the sections and print their tables."""
    parser = gpu_parser(__doc__, 16)
    parser.add_argument("--sides", type=int, nargs=2, default=(32768, 16384), help="of float32 and float64 matrices")
    options = parser.parse_args()
    accelerator = Accelerator(options.device)
    print(machine(), flush=True)
    link = accelerator.link()
    print(f"pinned link, host to device: {link:.1f} GB/s\n", flush=True)

    def product(dtype: str, side: int) -> str:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            return Product(Path(directory), accelerator, dtype, side).report(options.budget, options.repeats)

    def of_volume(section: Callable[..., str], *arguments: Any) -> str:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            x = volume(Path(directory) / "x.bin", volume_shape(options.gib))
            return section(x, accelerator, *arguments, options.budget, options.repeats)

    named = {
        "float32 product": lambda: product("f4", options.sides[0]),
        "float64 product": lambda: product("f8", options.sides[1]),
        "reductions": lambda: of_volume(reductions, link),
        "stencils": lambda: of_volume(stencils),
    }
    sections(named, options.only)


if __name__ == "__main__":
    main()

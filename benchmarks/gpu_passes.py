"""Many results, many steps, new chunks and transforms on a GPU: what one pass more or less is worth.

Run ``python -m benchmarks.gpu_passes [--gib 16] [--repeats 3] [--budget 4GB] [--directory DIR]``: it needs a CUDA
device, CuPy, dask, room for three volumes on disk and for four in host memory. ``--device cpu --gib 0.02`` tries it
without a GPU.

- *statistics*: mean, variance, extremes and a histogram of a page-cached float32 memmap in one `cf.compute`, beside its
  sum alone.
- *expression*: ten steps of ``sqrt(x * x + 1)`` from the memmap to RAM, beside one.
- *rechunk*: of half a volume, a cube of bytes in zarr as it is by default, from chunks of (64, n, n) to (n, n, 64),
  beside dask, which holds it whole, and dask's copy with the chunks as they are. chunkflow does it on the CPU unless
  told otherwise.
- *fft*: `cf.fft.fftn` of a complex64 cube of half as many GiB, from memmap to memmap, within a quarter of that, beside
  a loop by hand: two axes of slabs that are an eighth of the budget, then the third one in place.
- *heat*: 20 iterations from RAM to RAM of the mean of an element and its six neighbours, with one step in each pass,
  with four, and with as many as the model chooses.

Outputs are poisoned or removed before each run and compared with NumPy's after it, on samples where they are large; a
section with a wrong result has no figures. Runs of chunkflow in a section share a `cf.Budget`, but for *fft*, where
each contender takes its turns by itself, since device memory is the driver's figure, sampled in its first run.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr

import chunkflow as cf
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

BINS, RANGE = 512, (-6, 14)
THIN = 64  # planes of a slab, and lines of a column
ITERATIONS = 20


class Case:
    """What all sections are told, and how they report."""

    def __init__(self, directory: Path, accelerator: Accelerator, gib: float, budget: str, repeats: int) -> None:
        self.directory, self.accelerator, self.device = directory, accelerator, accelerator.device
        self.gib, self.budget, self.repeats = gib, budget, repeats

    def volume(self) -> np.memmap:
        return volume(self.directory / "x.bin", volume_shape(self.gib))

    def together(
        self, runs: Mapping[str, Callable[[], Any]], check: Callable[[str, Any], object]
    ) -> dict[str, list[float]]:
        """Seconds of contenders that take turns within one budget."""
        with cf.Budget(self.budget):
            return timed(runs, self.repeats, check)

    def table(
        self,
        title: str,
        seconds: Mapping[str, Sequence[float]],
        nbytes: int,
        more: Mapping[str, Mapping[str, str]] | None = None,
    ) -> str:
        """Seconds, ratios to the first contender, and GB/s of `nbytes`; `more` has further columns, by their heads."""
        more = more or {}
        first, rows = statistics.median(next(iter(seconds.values()))), []
        for name, times in seconds.items():
            middle = statistics.median(times)
            spread, rate = f"{min(times):.3g}-{max(times):.3g}", nbytes / middle / 1e9
            further = (column[name] for column in more.values())
            rows.append((name, f"{middle:.3g}", spread, f"{middle / first:.2f}", f"{rate:.1f}", *further))
        return table(title, rows, ["", "seconds", "range", "this / first", "GB/s", *more])


def statistics_of(case: Case) -> str:
    """Five statistics beside one."""
    x = case.volume()

    def of_plane(i: int) -> tuple[Any, ...]:
        plane = x[i].astype("f8")
        return plane.sum(), plane.mean(), plane.var(), x[i].min(), x[i].max(), np.histogram(x[i], BINS, RANGE)[0]

    sums, means, variances, least, most, counts = (
        np.array(each) for each in zip(*in_threads(of_plane, len(x)), strict=True)
    )
    five = means.mean(), variances.mean() + means.var(), least.min(), most.max(), counts.sum(axis=0)

    def all_five() -> Any:
        a = cf.open(x)
        results = (a.mean(), a.var(), a.min(), a.max(), np.histogram(a, BINS, RANGE)[0])
        return cf.compute(*results, device=case.device)

    def check(name: str, got: Any) -> None:
        if name == "sum":
            np.testing.assert_allclose(got, sums.sum(), rtol=1e-6)
            return
        np.testing.assert_allclose(got[:2], five[:2], rtol=1e-6)
        assert got[2:4] == five[2:4], (got[2:4], five[2:4])
        np.testing.assert_array_equal(got[4], five[4])

    runs = {
        "sum": lambda: cf.compute(cf.open(x).sum(), device=case.device),
        "mean, var, min, max, histogram": all_five,
    }
    title = f"statistics of a page-cached memmap, float32 {x.shape}, budget {case.budget}"
    return case.table(title, case.together(runs, check), x.nbytes)


def steps_of(x: Any, number: int) -> Any:
    """An expression of so many steps."""
    for _ in range(number):
        x = np.sqrt(x * x + 1)
    return x


def expression(case: Case) -> str:
    """Ten steps beside one."""
    x = case.volume()
    out = np.empty(x.shape, x.dtype)
    planes = [0, len(x) // 3, len(x) - 1]
    numbers = {"one step": 1, "ten steps": 10}

    def check(name: str, _: Any) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], steps_of(x[i], numbers[name]), rtol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all()
        poison(out)

    def run(number: int) -> None:
        cf.store(steps_of(cf.open(x), number), out, device=case.device)

    poison(out)
    seconds = case.together({name: lambda n=n: run(n) for name, n in numbers.items()}, check)
    return case.table(f"an expression, memmap to RAM, float32 {x.shape}, budget {case.budget}", seconds, x.nbytes)


def rechunk(case: Case) -> str:
    """New chunks beside dask's way."""
    side = max(2 * THIN, round((case.gib * 2**30 / 2) ** (1 / 3) / THIN) * THIN)
    slabs, columns = (THIN, side, side), (side, side, THIN)
    path, out = str(case.directory / "x.zarr"), str(case.directory / "out.zarr")
    x = zarr.create_array(path, shape=(side,) * 3, dtype="u1", chunks=slabs)

    def noise(i: int) -> np.ndarray:
        return np.random.default_rng(i).integers(0, 256, slabs, "u1")

    def fill(i: int) -> None:
        x[i * THIN : (i + 1) * THIN] = noise(i)

    in_threads(fill, side // THIN)

    def check(name: str, _: Any) -> None:
        found = zarr.open_array(out, mode="r")
        assert found.chunks == (slabs if "as they are" in name else columns), found.chunks
        ends = found[..., :THIN], found[..., -THIN:]  # whole columns, and so a part of each slab
        assert all(in_threads(lambda i: same(i, ends), side // THIN))
        shutil.rmtree(out)

    def same(i: int, ends: tuple[np.ndarray, np.ndarray]) -> bool:
        part, want = slice(i * THIN, (i + 1) * THIN), noise(i)
        return all(np.array_equal(a[part], b) for a, b in zip(ends, (want[..., :THIN], want[..., -THIN:]), strict=True))

    def dasked(chunks: tuple[int, ...] | None) -> None:
        with dask.config.set(scheduler="threads"):
            lazy = da.from_zarr(path)
            (lazy if chunks is None else lazy.rechunk(chunks)).to_zarr(out)

    devices = dict.fromkeys(("cpu", case.device))
    runs = {f"chunkflow, on {device}": lambda d=device: cf.rechunk(path, columns, out, device=d) for device in devices}
    runs |= {"dask": lambda: dasked(columns), "dask, chunks as they are": lambda: dasked(None)}
    seconds = case.together(runs, check)
    passes = cf.rechunk_plan(path, columns, case.budget).passes
    title = f"zarr, uint8 {side}^3, {slabs} to {columns}, budget {case.budget}, {passes} passes on the CPU"
    return case.table(title, seconds, x.nbytes)


class Transform:
    """A complex cube in a file, a place for its transform, and some of that by direct sums."""

    def __init__(self, case: Case) -> None:
        self.xp = case.accelerator.xp
        self.side = max(64, round((case.gib * 2**30 / 2 / 8) ** (1 / 3) / 64) * 64)
        shape = (self.side,) * 3
        self.x = np.memmap(case.directory / "x.bin", "c8", "w+", shape=shape)
        self.out = np.memmap(case.directory / "out.bin", "c8", "w+", shape=shape)
        self.budget = self.x.nbytes // 4
        self.samples = np.array([[0, 0, 0], [1, 2, 3], [self.side // 3, self.side - 1, self.side // 2]]).T
        in_threads(self.fill, self.side)
        turns = np.arange(self.side)[:, None, None] * self.samples / self.side  # for each axis and sample
        self.waves = np.exp(-2j * np.pi * turns)
        sums = np.array(in_threads(self.of_plane, self.side))
        self.expected = (sums * self.waves[:, 0]).sum(axis=0)
        self.energy = sum(in_threads(lambda i: self.square(self.x[i]), self.side))
        poison(self.out)

    def fill(self, i: int) -> None:
        self.x[i] = np.random.default_rng(i).standard_normal((self.side, 2 * self.side), dtype="f4").view("c8")

    def of_plane(self, i: int) -> np.ndarray:
        """What a plane is to the samples: sums along its two axes."""
        lines = self.x[i].astype("c16") @ self.waves[:, 2]
        return (lines * self.waves[:, 1]).sum(axis=0)

    def square(self, plane: np.ndarray) -> float:
        flat = plane.view("f4").ravel()
        return float(np.dot(flat, flat))

    def by_hand(self) -> None:
        """Slabs of planes, then slabs across them."""
        x, out, xp, n = self.x, self.out, self.xp, self.side
        step = max(1, self.budget // 8 // (8 * n * n))
        for i in range(0, n, step):
            out[i : i + step] = self.host(xp.fft.fftn(xp.asarray(x[i : i + step]), axes=(1, 2)))
        for i in range(0, n, step):
            out[:, i : i + step] = self.host(xp.fft.fft(xp.asarray(out[:, i : i + step]), axis=0))

    def host(self, block: Any) -> np.ndarray:
        found: np.ndarray = block if isinstance(block, np.ndarray) else block.get()
        return found

    def check(self, name: str, _: Any) -> None:
        """Compare samples with the sums, and the energy of all with the array's (Parseval)."""
        scale = math.sqrt(self.energy)
        np.testing.assert_allclose(self.out[tuple(self.samples)], self.expected, rtol=0, atol=1e-4 * scale)
        found = sum(in_threads(lambda i: self.square(self.out[i]), self.side))
        np.testing.assert_allclose(found, self.energy * self.side**3, rtol=1e-4)
        poison(self.out)


def fft(case: Case) -> str:
    """A transform of all axes beside a loop by hand."""
    cube = Transform(case)
    runs: dict[str, Callable[[], Any]] = {
        "by hand": cube.by_hand,
        "chunkflow": lambda: cf.fft.fftn(cube.x, out=cube.out, device=case.device),
    }
    seconds, peaks = case.accelerator.within(cube.budget, runs, case.repeats, cube.check)
    passes = cf.fft.plan("fftn", cube.x, out=cube.out, budget=cube.budget, device=case.device).passes
    title = f"fftn, memmap to memmap, complex64 {cube.side}^3, budget {cube.budget / 1e9:.2f} GB, {len(passes)} passes"
    return case.table(title, seconds, cube.x.nbytes, {"device GB": peaks})


def heat(u):
    """One step of the heat equation: a 7-point stencil inside, the rim is cut."""
    new = u.copy()
    new[1:-1, 1:-1, 1:-1] = blur(u)
    return new


def stepped(x: np.ndarray, corner: Sequence[int], size: int) -> np.ndarray:
    """NumPy's result in a cube, from all that it depends on."""
    inside = [slice(c, c + size) for c in corner]
    needed = [slice(max(0, s.start - ITERATIONS), s.stop + ITERATIONS) for s in inside]
    u = x[tuple(needed)]
    for _ in range(ITERATIONS):
        u = blur(np.pad(u, 1, "edge"))
    return u[tuple(slice(s.start - n.start, s.stop - n.start) for s, n in zip(inside, needed, strict=True))]


def stencil(case: Case) -> str:
    """Iterations with one or more steps in a pass."""
    x = np.array(case.volume())
    out = np.empty_like(x)
    halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "iterations": ITERATIONS, "device": case.device}
    ways: dict[str, int | None] = {"one step a pass": 1, "four steps a pass": 4, "as the model chooses": None}
    size = min(8, *x.shape)
    corners = [(0, 0, 0), tuple(n // 2 for n in x.shape), tuple(n - size for n in x.shape)]
    expected = [stepped(x, corner, size) for corner in corners]

    def check(_: str, out: np.ndarray) -> None:
        for corner, values in zip(corners, expected, strict=True):
            found = out[tuple(slice(c, c + size) for c in corner)]
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all()
        poison(out)

    def run(steps: int | None) -> np.ndarray:
        return cf.map_overlap(heat, x, out=out, steps_per_pass=steps, **halo)

    poison(out)
    seconds = case.together({name: lambda s=steps: run(s) for name, steps in ways.items()}, check)
    passes, moved = {}, {}
    for name, steps in ways.items():
        plan = cf.iteration_plan(heat, x, out=out, steps_per_pass=steps, budget=case.budget, **halo)
        passes[name], moved[name] = str(plan.passes), f"{(plan.bytes_read + plan.bytes_written) / 1e9:.3g}"
    title = f"heat, {ITERATIONS} iterations, RAM to RAM, float32 {x.shape}, budget {case.budget}"
    return case.table(title, seconds, 2 * ITERATIONS * x.nbytes, {"passes": passes, "GB moved": moved})


def main() -> None:
    """Run the sections and print their tables."""
    options = gpu_parser(__doc__, 16).parse_args()
    accelerator = Accelerator(options.device)
    print(machine(), flush=True)
    print(f"pinned link, host to device: {accelerator.link():.1f} GB/s\n", flush=True)

    def of(section: Callable[[Case], str]) -> str:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            return section(Case(Path(directory), accelerator, options.gib, options.budget, options.repeats))

    named = {"statistics": statistics_of, "expression": expression, "rechunk": rechunk, "fft": fft, "heat": stencil}
    sections({name: lambda section=section: of(section) for name, section in named.items()}, options.only)


if __name__ == "__main__":
    main()

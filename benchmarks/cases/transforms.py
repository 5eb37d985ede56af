"""`cf.fft.fftn` of a complex64 cube of half as many GiB, from memmap to memmap, within a quarter of its bytes.

Beside a loop by hand: two axes of slabs that are an eighth of the budget, then the third axis in place. Each contender
takes its turns by itself, since device memory is the driver's figure, sampled in its first run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import cube_side, in_threads, mapped, poison


class Transform:
    """A complex cube in a file, a place for its transform, and some of that by direct sums."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.side = bench, cube_side(bench.gib / 2, 64, 8)
        shape = (self.side,) * 3
        self.x = mapped(bench.directory / "cube.bin", "c8", shape, self.fill)
        self.out = mapped(bench.directory / "out.bin", "c8", shape)
        self.budget = self.x.nbytes // 4
        self.samples = np.array([[0, 0, 0], [1, 2, 3], [self.side // 3, self.side - 1, self.side // 2]]).T
        turns = np.arange(self.side)[:, None, None] * self.samples / self.side  # for each axis and sample
        self.waves = np.exp(-2j * np.pi * turns)
        sums = np.array(in_threads(self.of_plane, self.side))
        self.expected = (sums * self.waves[:, 0]).sum(axis=0)
        self.energy = sum(in_threads(lambda i: self.square(self.x[i]), self.side))
        poison(self.out)

    def fill(self, x: np.ndarray, i: int) -> None:
        x[i] = np.random.default_rng(i).standard_normal((self.side, 2 * self.side), dtype="f4").view("c8")

    def of_plane(self, i: int) -> np.ndarray:
        """What a plane is to the samples: sums along its two axes."""
        lines = self.x[i].astype("c16") @ self.waves[:, 2]
        return (lines * self.waves[:, 1]).sum(axis=0)

    def square(self, plane: np.ndarray) -> float:
        flat = plane.view("f4").ravel()
        return float(np.dot(flat, flat))

    def by_hand(self) -> None:
        """Slabs of planes, then slabs across them."""
        x, out, xp, host, n = self.x, self.out, self.bench.xp, self.bench.host, self.side
        step = max(1, self.budget // 8 // (8 * n * n))
        for i in range(0, n, step):
            out[i : i + step] = host(xp.fft.fftn(xp.asarray(x[i : i + step]), axes=(1, 2)))
        for i in range(0, n, step):
            out[:, i : i + step] = host(xp.fft.fft(xp.asarray(out[:, i : i + step]), axis=0))

    def check(self, name: str, _: Any) -> None:
        """Compare samples with the sums, and the energy of all with the array's (Parseval)."""
        scale = math.sqrt(self.energy)
        np.testing.assert_allclose(self.out[tuple(self.samples)], self.expected, rtol=0, atol=1e-4 * scale)
        found = sum(in_threads(lambda i: self.square(self.out[i]), self.side))
        np.testing.assert_allclose(found, self.energy * self.side**3, rtol=1e-4)
        poison(self.out)


def cases(bench: Bench) -> Iterator[Case]:
    """A transform of all axes beside a loop by hand."""
    cube = Transform(bench)
    runs = {OURS: lambda: cf.fft.fftn(cube.x, out=cube.out, **bench.options), "a loop by hand": cube.by_hand}
    passes = cf.fft.plan("fftn", cube.x, out=cube.out, budget=cube.budget, **bench.options).passes
    what = f"memmap to memmap, complex64 {cube.side}^3, budget {cube.budget / 1e9:.2f} GB, {len(passes)} passes"
    groups = bench.alone(runs, cube.budget)
    yield Case("fftn", what, cube.x.nbytes / 1e9, runs, cube.check, None, groups=groups)

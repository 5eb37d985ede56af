"""Products of memmaps; the bound is the in-core rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, Goal
from benchmarks.data import STRIP, in_threads, mapped, matrix, matrix_side
from benchmarks.peers.cublasxt import TILES, CublasXt
from benchmarks.timing import median_seconds


def cases(bench: Bench) -> Iterator[Case]:
    """Products of memmaps; the bound is the in-core rate."""
    for dtype, full, share in (("f4", 32768, 0.97), ("f8", 16384, 0.95)):
        side = matrix_side(bench.gib, full)
        names = [bench.directory / f"{name}-{dtype}.bin" for name in "abc"]
        a, b = (matrix(name, dtype, side, seed) for seed, name in enumerate(names[:2]))
        c = mapped(names[2], dtype, (side, side))
        lines = [0, side // 3, side - 1]
        expected = np.asarray(a[lines], "f8") @ np.asarray(b[:, :512], "f8")
        amount = 2 * side**3 / 1e12
        here = min(side, 8192)
        p, q = (bench.xp.asarray(m[:here, :here]) for m in (a, b))

        def in_core(p: Any = p, q: Any = q) -> None:
            p @ q
            bench.accelerator.wait()

        best = 2 * here**3 / 1e12 / median_seconds(in_core)
        del p, q, in_core
        bench.accelerator.free()

        def check(name: str, c: Any, lines: list[int] = lines, expected: Any = expected) -> None:
            np.testing.assert_allclose(c[lines][:, :512], expected, rtol=1e-2, atol=1e-1)
            in_threads(lambda i: c[i * STRIP : (i + 1) * STRIP].fill(np.nan), len(c) // STRIP)

        def run(a: Any = a, b: Any = b, c: Any = c) -> Any:
            cf.matmul(a, b, out=c, **bench.options)
            return c

        runs: dict[str, Callable[[], Any]] = {OURS: run}
        peer = CublasXt.find(bench.xp) if bench.is_gpu else None
        if peer is not None:
            runs["cuBLASXt, pins its arrays"] = pinned_product(peer, np.array(a), np.array(b))

        name, what, limit = f"product, {np.dtype(dtype)}", f"memmaps of {side}^2", ("in core", best)
        missing = ("cuBLASXt",) if bench.is_gpu and peer is None else ()
        yield Case(name, what, amount, runs, check, limit, Goal(share), "TFLOP/s", missing=missing)
        if peer is not None:
            peer.close()
        del a, b, c, run, runs
        for path in names:
            path.unlink()


def pinned_product(peer: CublasXt, a: np.ndarray, b: np.ndarray) -> Callable[[], np.ndarray]:
    """A product of arrays in memory, with the tile that is best for large ones, and with the time to pin them."""
    out = np.zeros_like(a)

    def run() -> np.ndarray:
        with peer.pinned(a, b, out):
            peer.matmul(a, b, out, min(TILES[-1], len(a)))
        return out

    return run

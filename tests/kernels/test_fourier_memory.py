"""What cuFFT and CuPy really take for a transform is within what the model says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.budgets import DriverMemory

from chunkflow.kernels.fourier import LineTransform, transformed
from chunkflow.kernels.fourier_memory import CUFFT_PAGE, cufft_bytes, cupy_bytes

LINES = [
    ("fft", 1024),
    ("rfft", 1024),
    ("irfft", 1000),
    ("fft", 131),
    ("rfft", 1009),
    ("irfft", 4099),
    ("fft", 65537),
    ("fft", 999983),
]
ELEMENTS = 1 << 21
TRIES = 5
"""Others share the card: what one of several tries takes beside the pool is enough."""


def measured(shape: tuple[int, ...], dtype: str, steps: list[LineTransform]) -> tuple[int, int]:
    """Most bytes of the pool beside source and result, and most bytes beside the pool."""
    import cupy

    plans = cupy.fft.config.get_plan_cache()
    plans.clear()
    pool = cupy.cuda.MemoryPool()
    used: list[int] = []
    held: list[int] = []

    def malloc(nbytes: int) -> cupy.cuda.MemoryPointer:
        memory = pool.malloc(nbytes)
        used.append(pool.used_bytes())
        held.append(pool.total_bytes())
        return memory

    with cupy.cuda.using_allocator(malloc):
        whole = cupy.zeros((shape[0] + 1, *shape[1:]), dtype)
        before, held[:] = pool.used_bytes(), [pool.total_bytes()]
        driver = DriverMemory(cupy.cuda.runtime.memGetInfo()[0])
        with driver.sampled():
            result = transformed(whole[:-1], steps)  # a view, as blocks are
            cupy.cuda.runtime.deviceSynchronize()
        taken = max(used) - before - result.nbytes
        grown = len(set(held)) - 1  # each time by whole pages of the driver's
        beside = driver.taken - (held[-1] - held[0]) - grown * CUFFT_PAGE
    plans.clear()
    return taken, beside


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i4"])
@pytest.mark.parametrize(("name", "points"), LINES)
def test_a_line(name: str, points: int, dtype: str) -> None:
    if name == "rfft" and dtype.startswith("c"):
        pytest.skip("a real transform takes real numbers")
    shape = (math.ceil(ELEMENTS / points), points // 2 + 1 if name == "irfft" else points)
    check(shape, dtype, [LineTransform(name, 1, points)])


@pytest.mark.gpu
@pytest.mark.parametrize("points", [(128, 128, 128), (131, 127, 129), (100, 257, 131)])
def test_several_axes(points: tuple[int, ...]) -> None:
    check(points, "c8", [LineTransform("fft", axis, n) for axis, n in enumerate(points)])


def check(shape: tuple[int, ...], dtype: str, steps: list[LineTransform]) -> None:
    import cupy

    for n in (16, 1009):  # the libraries themselves are counted elsewhere
        cupy.fft.fft(cupy.ones(n, "F"))
    seen = [measured(shape, dtype, steps) for _ in range(TRIES)]
    assert seen[0][0] <= cupy_bytes(shape, np.dtype(dtype), steps)
    assert min(beside for _, beside in seen) <= cufft_bytes(steps)

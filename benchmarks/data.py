"""Arrays that cases read, and the functions that they compute."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

STRIP = 256  # rows of a matrix that are filled at once


def work(a: Any) -> Any:
    """What maps compute."""
    return np.sqrt(np.abs(a)) * 2 + 1


def blur(block: Any) -> Any:
    """A 7-point stencil: the mean of an element and its neighbours, without the block's rim."""
    inner = block[1:-1, 1:-1, 1:-1]
    total = block[:-2, 1:-1, 1:-1] + block[2:, 1:-1, 1:-1]
    total += block[1:-1, :-2, 1:-1]
    total += block[1:-1, 2:, 1:-1]
    total += block[1:-1, 1:-1, :-2]
    total += block[1:-1, 1:-1, 2:]
    total += inner
    total *= np.float32(1 / 7)
    return total


def edged(array: np.ndarray, planes: list[int]) -> dict[int, np.ndarray]:
    """Some planes of a volume with their neighbours, edges repeated: what a 3-D stencil of depth 1 reads."""
    last = len(array) - 1
    return {i: np.pad(array[np.clip([i - 1, i, i + 1], 0, last)], ((0, 0), (1, 1), (1, 1)), "edge") for i in planes}


def sample_planes(array: np.ndarray) -> list[int]:
    """The first plane, one inside, and the last."""
    return [0, len(array) // 3, len(array) - 1]


def in_threads(fn: Callable[[int], Any], number: int) -> list[Any]:
    """What a function returns for 0, 1, 2 ..., called by several threads: NumPy lets them work at once."""
    with ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as threads:
        return list(threads.map(fn, range(number)))


def poison(array: np.ndarray) -> None:
    """Fill an output with NaN, so that no value of an earlier run can pass for a result."""
    in_threads(lambda i: array[i].fill(np.nan), len(array))


def mapped(
    path: Path, dtype: str, shape: tuple[int, ...], fill: Callable[[np.ndarray, int], object] | None = None
) -> np.memmap:
    """A page-cached file as a memmap; `fill` is called once for each index of the first axis, in threads."""
    x = np.memmap(path, dtype, "w+", shape=shape)
    if fill is not None:
        in_threads(lambda i: fill(x, i), len(x))
    return x


def volume(path: Path, shape: tuple[int, ...]) -> np.memmap:
    """A page-cached memmap of float32 noise over a gradient, for reading only."""
    base = np.random.default_rng(0).standard_normal((16, *shape[1:]), dtype="f4")
    mapped(path, "f4", shape, lambda x, i: np.copyto(x[i], base[i % 16] + np.float32(8 * i / shape[0])))
    return np.memmap(path, "f4", "r", shape=shape)


def volume_shape(gib: float) -> tuple[int, int, int]:
    """Shape of a float32 volume of so many GiB, in planes of 16 MiB, or of 256 KiB where it is small."""
    plane = (2048, 2048) if gib >= 1 else (256, 256)
    return (max(16, round(gib * 2**30 / (4 * plane[0] * plane[1]))), *plane)


def cube_side(gib: float, step: int, itemsize: int = 4) -> int:
    """Side of a cube of so many GiB, a multiple of `step`."""
    return max(step, round((gib * 2**30 / itemsize) ** (1 / 3) / step) * step)


def matrix_side(gib: float, full: int) -> int:
    """Side of square matrices: the full one from 8 GiB on, less for small trials."""
    return full if gib >= 8 else max(256, int(full * (gib / 16) ** 0.5) // 256 * 256)


def matrix(path: Path, dtype: str, side: int, seed: int) -> np.memmap:
    """A page-cached square matrix of random numbers between -0.5 and 0.5."""
    m = mapped(path, dtype, (side, side))

    def fill(i: int) -> None:
        part = m[i * STRIP : (i + 1) * STRIP]
        part[...] = np.random.default_rng((seed, i)).random(part.shape, m.dtype) - 0.5

    in_threads(fill, -(-side // STRIP))
    return m

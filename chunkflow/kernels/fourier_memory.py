"""Memory that the libraries of Fourier transforms take, by the lengths of lines.

NumPy's takes tables that no hook of NumPy's counts. A plan of cuFFT's has tables, which it takes of the driver, beside
every pool, and a work area, which CuPy takes of the pool. Figures: docs/decisions/030.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.kernels.fourier import LineTransform, result_of

NUMPY, NUMPY_OF_PRIMES = 3 * 16, 10 * 16
"""Bytes for each element of a line that NumPy's library takes by itself, in double precision; the second one where the
length has a prime factor larger than its root, of which it makes a convolution of twice the length."""

CUFFT_OF_PRIMES, CUFFT_PAGE = 132, 2 << 20
"""Bytes for each element of a line that cuFFT takes beside the pool, while it makes a plan of a length with a prime
factor beyond `LARGEST_FACTOR`; and what other plans take at most."""

LARGEST_FACTOR = 127
"""The largest prime factor for which cuFFT makes no convolution of a line (Bluestein's algorithm)."""

OF_SMALL, OF_PRIMES = (1.0, 0.5, 2.0), (4.1, 2.6, 5.1)
"""Work area of a plan beside the complex numbers of its lines: of complex lines, of real ones of even length, and of
odd length. The second row is for lengths with a prime factor beyond `LARGEST_FACTOR`."""

PLANS = 2
"""Plans of a step: a block at the edge has one of its own."""


def largest_factor(points: int) -> int:
    """The largest prime factor.

    >>> largest_factor(1000), largest_factor(1009), largest_factor(1)
    (5, 1009, 1)
    """
    left, factor, largest = points, 2, 1
    while factor * factor <= left:
        while left % factor == 0:
            left, largest = left // factor, factor
        factor += 1
    return max(left, largest)


def numpy_bytes(points: int) -> int:
    """Bytes that NumPy's library takes for the transform of one line, and no hook of NumPy's counts.

    >>> numpy_bytes(1000), numpy_bytes(1009)
    (48000, 161440)
    """
    factor = largest_factor(points)
    return points * (NUMPY_OF_PRIMES if factor * factor > points else NUMPY)


def cufft_bytes(steps: Sequence[LineTransform]) -> int:
    """Bytes that cuFFT takes beside the pool for some steps.

    >>> cufft_bytes([LineTransform("fft", 0, 1 << 20)]) >> 20
    4
    >>> cufft_bytes([LineTransform("fft", 0, 1000003)]) // 1000003  # a prime
    268
    """
    each = [s.points * CUFFT_OF_PRIMES if largest_factor(s.points) > LARGEST_FACTOR else 0 for s in steps]
    return PLANS * sum(CUFFT_PAGE + nbytes for nbytes in each)


def cupy_bytes(shape: Shape, dtype: np.dtype, steps: Sequence[LineTransform]) -> int:
    """Bytes of the pool that the steps take of an array beside their result: arrays between, copies, and work areas.

    >>> cupy_bytes((8, 1024), np.dtype("c8"), [LineTransform("fft", 1, 1024)]) // (8 * 1024)
    24
    """
    peak = works = last = 0
    for step in steps:
        before = last
        sides, kind = result_of(shape, dtype, (step,))
        last = math.prod(sides) * kind.itemsize
        held, work = _step_bytes(shape, dtype, sides, kind, step)
        works += PLANS * work
        peak = max(peak, before + last + held + works)
        shape, dtype = sides, kind
    return max(peak, last + works) - last


def _step_bytes(shape: Shape, dtype: np.dtype, sides: Shape, kind: np.dtype, step: LineTransform) -> tuple[int, int]:
    """Bytes of CuPy's copies of what a step reads, and of a plan's work area."""
    axis, lines = step.axis, math.prod(n for a, n in enumerate(shape) if a != step.axis)
    single = dtype.char in "efF"
    item = (8 if single else 16) // (2 if step.name == "rfft" else 1)  # of what is transformed
    read = step.points // 2 + 1 if step.name == "irfft" else step.points
    copies = [dtype.itemsize != item, read != shape[axis], True]  # to another dtype, cut or padded, in C order
    held = min(2, sum(copies)) * max(read, shape[axis]) * item + (4 * shape[axis] if dtype.char == "e" else 0)
    kind_of_line = 0 if step.name in ("fft", "ifft") else 1 + step.points % 2  # complex, real even, real odd
    share = (OF_PRIMES if largest_factor(step.points) > LARGEST_FACTOR else OF_SMALL)[kind_of_line]
    return lines * held, lines * math.ceil(share * step.points * (8 if single else 16))

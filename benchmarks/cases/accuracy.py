"""Errors of float32 sums, means and variances against exact arithmetic, NumPy's beside chunkflow's.

Errors are in units of the result's last place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

import chunkflow as cf
from benchmarks.case import Bench, Listing


def exact(x: np.ndarray, offset: int) -> tuple[Fraction, Fraction, Fraction]:
    """Sum, mean and variance as rationals, by way of the distances from `offset`.

    Distances and their squares are exact in float64, and `math.fsum` rounds once for a million of them.
    """
    total = squares = Fraction(0)
    for start in range(0, x.size, 1 << 20):
        part = x[start : start + (1 << 20)].astype("f8") - offset
        total += Fraction(math.fsum(part.tolist()))
        squares += Fraction(math.fsum((part * part).tolist()))
    mean = total / x.size
    return offset * x.size + total, offset + mean, squares / x.size - mean * mean


def cases(bench: Bench) -> Iterator[Listing]:
    """One table."""
    values = round(bench.gib * 2**28)
    title = f"{values} float32 values, standard normal plus an offset"
    found = Listing("accuracy", title, ["", "offset", "exact", "NumPy, ulp", "chunkflow, ulp"])
    rng = np.random.default_rng(0)
    for offset in (0, 10**4, 10**8):
        x = rng.standard_normal(values, dtype="f4") + np.float32(offset)
        for name, truth in zip(("sum", "mean", "var"), exact(x, offset), strict=True):
            place = Fraction(float(np.spacing(np.float32(abs(float(truth))))))
            theirs, ours = getattr(np, name)(x), getattr(cf, name)(x, device="cpu")
            errors = [float(abs(Fraction(float(value)) - truth) / place) for value in (theirs, ours)]
            found.add(offset, name, f"{offset:.0e}", f"{float(truth):.9g}", *(f"{e:.2f}" for e in errors))
    yield found

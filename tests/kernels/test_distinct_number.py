"""How many different numbers an array has, about, from its smallest hashes."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from chunkflow.kernels.statistics.distinct_number import KEPT, hashes_of, number_of, smallest


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i8", "f2", "f4", "f8", "u8"])
@pytest.mark.parametrize("parts", [1, 7])
def test_few_are_counted_exactly(dtype: str, parts: int) -> None:
    x = np.random.default_rng(0).integers(0, KEPT - 1, (60, 70)).astype(dtype)
    (hashes,) = reduce(smallest, map(hashes_of, np.array_split(x, parts)))
    assert number_of(hashes) == len(np.unique(x))


@pytest.mark.parametrize("number", [5_000, 300_000])
@pytest.mark.parametrize("step", [1, 1 << 20, -3])
def test_many_are_counted_within_a_tenth(number: int, step: int) -> None:
    x = np.tile(np.arange(number) * step, 2)
    (hashes,) = reduce(smallest, map(hashes_of, np.array_split(x, 3)))
    assert abs(number_of(hashes) - number) < 0.1 * number


def test_nothing_has_none() -> None:
    assert number_of(hashes_of(np.empty((0, 3), "i4"))[0]) == 0

"""Parts of sorted runs are those of the whole, sorted stably."""

from __future__ import annotations

import ctypes
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.api.statistics import merged_lines
from chunkflow.api.statistics.merged_lines import MergedLines
from chunkflow.core.grid import Region, shape_of
from chunkflow.kernels.statistics.merging import Merged
from chunkflow.stores import Source, open_source

DTYPES = ["f2", "f4", "f8", "i1", "u4", "i8", "?"]


@st.composite
def wholes(draw: Any) -> np.ndarray:
    """Arrays of few or many values, with NaN, infinities and zeros of both signs."""
    dtype, n = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.integers(0, draw(st.sampled_from([1, 3, 100])), n).astype(dtype)
    if dtype.kind == "f":
        x[rng.random(n) < draw(st.sampled_from([0, 0.3]))] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
    return x


def gathered(merged: Merged, side: slice, places: Any = None) -> np.ndarray:
    """The elements of some ranks; with `places` in the runs those in the whole array."""
    found = np.empty(side.stop - side.start, merged.runs[0].dtype if places is None else np.intp)
    merged.gather(found, side, places)
    return found


def read(source: Source, region: Region) -> np.ndarray:
    found = np.empty(shape_of(region), source.spec.dtype)
    source.read(region, found)
    return found


@given(wholes(), st.integers(1, 80), st.integers(1, 90), st.integers(1, 40), st.booleans())
def test_parts_are_those_of_the_whole(x: np.ndarray, length: int, step: int, at_once: int, backwards: bool) -> None:
    orders = [np.argsort(x[i : i + length], kind="stable") for i in range(0, len(x), length)]
    runs = [x[i : i + length][order] for i, order in zip(range(0, len(x), length), orders, strict=True)]
    merged, whole = Merged(runs, at_once), np.argsort(x, kind="stable")
    for start in sorted(range(0, len(x), step), reverse=backwards):
        side = slice(start, min(start + step, len(x)))
        places, part = gathered(merged, side, orders), gathered(merged, side)
        np.testing.assert_array_equal(part, x[places])
        np.testing.assert_array_equal(part[np.argsort(part, kind="stable")], x[whole[side]])
        np.testing.assert_array_equal(places[np.argsort(x[places], kind="stable")], whole[side])


@given(wholes(), st.integers(1, 80), st.integers(1, 90), st.integers(1, 90), st.integers(0, 1), st.booleans())
def test_a_part_may_be_gathered_bit_by_bit(
    x: np.ndarray, length: int, step: int, bit: int, axis: int, of_places: bool
) -> None:
    both = np.stack((x, x[::-1]))
    pieces = [both[:, i : i + length] for i in range(0, len(x), length)]
    orders = [np.argsort(piece, axis=1, kind="stable") for piece in pieces]
    runs = np.concatenate([np.take_along_axis(*pair, 1) for pair in zip(pieces, orders, strict=True)], 1)
    places = np.concatenate(orders, 1) if of_places else None
    source = open_source(MergedLines(runs, places, axis, length, step))
    expected = np.argsort(both, 1, kind="stable") if of_places else np.sort(both, 1)
    for start in range(0, len(x), step):
        stop = min(start + step, len(x))
        sides = [slice(i, min(i + bit, stop)) for i in range(start, stop, bit)]
        boxes = [(slice(0, 2), side) if axis else (side, slice(0, 2)) for side in sides]
        found = np.concatenate([read(source, box) for box in reversed(boxes)], axis)
        found = found if axis else found.T
        np.testing.assert_array_equal(np.sort(found, 1), np.sort(expected[:, start:stop], 1))


@pytest.mark.parametrize("values", ["random", "the same in each run", "few"])
def test_many_short_runs_take_little_memory(values: str) -> None:
    rng, length, number = np.random.default_rng(0), 500, 400
    x = {
        "random": rng.random(length * number),
        "the same in each run": np.tile(rng.random(length), number),
        "few": rng.integers(0, 3, length * number).astype("f8"),
    }[values]
    merged = Merged([np.sort(x[i : i + length]) for i in range(0, len(x), length)])
    expected = np.sort(x)
    tracemalloc.start()
    try:
        for start in range(0, len(x), 20 * length):
            part = np.sort(gathered(merged, slice(start, start + length)))
            np.testing.assert_array_equal(part, expected[start : start + length])
        assert tracemalloc.get_traced_memory()[1] < x.nbytes
    finally:
        tracemalloc.stop()


@given(wholes(), st.integers(1, 80), st.integers(1, 90), st.integers(1, 90))
def test_runs_in_memory_are_what_is_read(x: np.ndarray, length: int, step: int, bit: int) -> None:
    runs = np.concatenate([np.sort(x[i : i + length]) for i in range(0, len(x), length)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_lines, "LEAST_RUN", 1)
        for lines, before in ((runs, ()), (np.stack((runs, runs)), (slice(1, 2),))):
            source = MergedLines(lines, None, len(before), length, step)
            region: Region = (*before, slice(0, min(bit, step, len(x))))
            found = source.runs(region)
            assert found is not None
            held = b"".join(ctypes.string_at(int(address), int(nbytes)) for address, nbytes in found)
            np.testing.assert_array_equal(np.frombuffer(held, x.dtype), read(source, region).reshape(-1))
    assert MergedLines(runs, None, 0, length, step).runs(region[-1:]) is None  # too short to be worth it
    assert MergedLines(lines, None, 1, length, step).runs((slice(0, 2), region[-1])) is None

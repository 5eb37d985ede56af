"""Counts and reductions of segments: a device's own are NumPy's."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from chunkflow.kernels.reductions.tiled import UFUNCS
from chunkflow.kernels.statistics.counting import counted, distinct
from chunkflow.kernels.statistics.gathered import among
from chunkflow.kernels.statistics.segments import moments, segmented

PLACES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]
RNG = np.random.default_rng(0)


def on(device: str, array: np.ndarray) -> Any:
    """The array on a device."""
    if device == "cpu":
        return array
    importlib.import_module("chunkflow.devices.cuda.device")
    return pytest.importorskip("cupy").asarray(array)


def host(array: Any) -> np.ndarray:
    """The array as NumPy's."""
    return np.asarray(array if isinstance(array, np.ndarray) else array.get())


def varied(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a dtype, with NaN among floats."""
    found = RNG.integers(-9 if np.dtype(dtype).kind in "ifc" else 0, 9, shape).astype(dtype)
    if np.dtype(dtype).kind == "f":
        found[RNG.random(shape) < 0.01] = np.nan
    return found


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("number", [1, 2, 100, 256, 5000, 1 << 13, (1 << 13) + 1, 1 << 18])
@pytest.mark.parametrize("dtype", ["u1", "i4", "i8", "u4", "u8"])
@pytest.mark.parametrize("how", ["all", "one", "runs", "none"])
def test_counts(device: str, number: int, dtype: str, how: str) -> None:
    number = min(number, 256) if dtype == "u1" else number
    size = 0 if how == "none" else 100_003
    places = RNG.integers(0, number, size).astype(dtype)
    if how == "one":
        places[:] = number - 1
    if how == "runs":
        places = np.repeat(places[:1000], 77)
    found = counted(on(device, places.reshape(1, -1)), number)
    assert found.dtype == np.intp
    np.testing.assert_array_equal(host(found), np.bincount(places.astype(np.intp), minlength=number))


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("number", [0, 1, 200, 60_000, 1 << 20])
@pytest.mark.parametrize("known", [0, 1 << 20])
def test_distinct(device: str, dtype: str, number: int, known: int) -> None:
    highest = np.iinfo(dtype).max
    keys = highest - RNG.integers(0, max(number, 1), 300_007 if number else 0).astype(dtype)
    found, counts = distinct(on(device, keys), known)
    values, expected = np.unique(keys, return_counts=True)
    assert (found.dtype, counts.dtype) == (keys.dtype, np.dtype("i8"))
    np.testing.assert_array_equal(host(found), values)
    np.testing.assert_array_equal(host(counts), expected)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("number", [0, 1, 300, 300_007])
@pytest.mark.parametrize("intervals", [1, 3, 16, 17])
def test_keys_among(device: str, dtype: str, number: int, intervals: int) -> None:
    most = np.iinfo(dtype).max
    keys = RNG.integers(0, most, number, dtype, endpoint=True)
    keys[::5] = most
    parts = min(most, 1 << 20)
    ends = np.sort(RNG.choice(parts, 2 * intervals, replace=False)).astype(dtype) * np.array(most // parts, dtype)
    lows, highs = ends.reshape(-1, 2).T
    found, below = among(on(device, keys), lows, highs)
    within = (keys[:, None] >= lows) & (keys[:, None] <= highs)
    np.testing.assert_array_equal(np.sort(host(found)), np.sort(keys[within.any(axis=1)]))
    assert (found.dtype, below.dtype) == (keys.dtype, np.dtype("i8"))
    if intervals < 17:
        expected = [*(np.count_nonzero(keys < low) for low in lows), np.count_nonzero(keys != most)]
        np.testing.assert_array_equal(host(below), expected)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("name", sorted(UFUNCS))
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i4", "i8", "u8", "?", "c8", "c16"])
@pytest.mark.parametrize("shape", [(1,), (63,), (64,), (65,), (9000,), (700, 3), (130, 2, 5), (40, 1 << 16)], ids=str)
def test_segments(device: str, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    kind, ufunc = np.dtype(dtype).kind, UFUNCS[name]
    if (name in ("any", "all")) != (kind == "b") or (kind == "c" and name not in ("sum", "prod")):
        pytest.skip("no such reduction of groups")
    x = varied(dtype, shape)
    if name == "prod":
        x = np.sign(x) if kind != "c" else np.exp(1j * x).astype(dtype)
    lengths = [1, 1, 2, 64, 65, 3, 128, 5000, 1]
    starts = np.array([at for at in np.cumsum([0, *lengths]) if at < len(x)])
    whole = x.astype("i8") if kind in "iu" and x.dtype.itemsize < 8 and name in ("sum", "prod") else x
    found = segmented(on(device, whole), ufunc, on(device, starts))
    expected = ufunc.reduceat(whole.astype("f8") if kind == "f" else whole, starts, axis=0)
    assert found.dtype == whole.dtype
    tolerance = {"f2": 1e-2, "f4": 1e-5, "c8": 1e-4}.get(dtype, 1e-12 if kind in "fc" else 0)
    np.testing.assert_allclose(host(found), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u2", "i8", "?"])
@pytest.mark.parametrize("shape", [(1,), (65,), (9000,), (700, 3), (40, 1 << 16)], ids=str)
@pytest.mark.parametrize("skip", [False, True])
def test_moments_of_segments(dtype: str, shape: tuple[int, ...], skip: bool) -> None:
    x = varied(dtype, shape)
    if dtype[0] == "f":
        x[RNG.random(shape) < 0.1] = np.nan
    starts = np.array([at for at in np.cumsum([0, 1, 1, 2, 64, 65, 3, 128, 5000, 1]) if at < len(x)])
    found = moments(on("cuda", x), on("cuda", starts), skip=skip)
    assert found is not None
    number, mean, squares = (host(each) for each in found)
    for i, part in enumerate(np.split(x.reshape(len(x), -1).astype("f8"), starts[1:])):
        there = ~np.isnan(part) if skip else np.ones(part.shape, bool)
        middle = np.where(there, part, 0).sum(0) / np.maximum(there.sum(0), 1)
        np.testing.assert_array_equal(number[i], there.sum(0))
        np.testing.assert_allclose(mean[i], middle, rtol=1e-12, atol=1e-12)
        expected = (np.where(there, part - middle, 0) ** 2).sum(0)
        np.testing.assert_allclose(squares[i], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.gpu
def test_a_sum_of_floats_is_the_same_in_each_run() -> None:
    x, starts = on("cuda", RNG.standard_normal((200_000, 2)).astype("f4")), on("cuda", np.array([0, 7, 150_000]))
    first = host(segmented(x, np.add, starts))
    assert all((host(segmented(x, np.add, starts)) == first).all() for _ in range(5))


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1 << 10, 1 << 20])
def test_counts_take_memory_for_themselves_alone(number: int) -> None:
    import cupy

    places = on("cuda", RNG.integers(0, number, 1 << 20).astype("u4"))
    counted(places, number)
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        counted(places, number)
    assert pool.total_bytes() <= number * 8 + (1 << 20)

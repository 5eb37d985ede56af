"""The kernels that count, reduce, sort and walk along lines, with a C++ compiler in the place of CUDA's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.kernels import CTYPE_OF, built, needs_compiler

from chunkflow.core.windows import Windows
from chunkflow.devices.cuda.counting import TABLE, counter, distinct_finder
from chunkflow.devices.cuda.lines import WIDEST, accumulator, weigher, window_momenter
from chunkflow.devices.cuda.ordering import SHARED, keyer, sorter
from chunkflow.devices.cuda.segments import momenter, reducer
from chunkflow.kernels.fusion.codegen import Parameters
from chunkflow.kernels.reductions.tiled import UFUNCS
from chunkflow.kernels.statistics.radix_keys import to_keys
from chunkflow.kernels.stencil.windows import weighted

pytestmark = needs_compiler

CUDA = """
#define __device__
#define __shared__ static
#define __syncthreads()
#define __syncwarp()
struct { unsigned x = 0; } threadIdx;
struct { unsigned x = 1; } blockDim;
template <typename T> T atomicAdd(T* to, T n) { T old = *to; *to += n; return old; }
template <typename T> T atomicCAS(T* to, T old, T now) { T found = *to; if (found == old) *to = now; return found; }
"""


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What a device makes of a text: a loop over all threads. A kernel that synchronizes threads is given one."""
    folder: Path = tmp_path_factory.mktemp("kernels")

    @cache
    def compiled(names: tuple[str, ...], types: tuple[str, ...], raw: tuple[bool, ...], body: str, before: str) -> Any:
        taken = ", ".join(f"{kind} *p_{name}" for kind, name in zip(types, names, strict=True))
        loads = "".join(
            f"{kind} *{name} = p_{name};\n" if whole else f"const {kind} {name} = *p_{name};\n"
            for kind, name, whole in zip(types, names, raw, strict=True)
        )
        code = f"{CUDA}\ntypedef {types[0]} T;\ntypedef {types[-1]} A;\n{before}\n"
        code += f'extern "C" void run({taken}, long size) {{\n{loads}for (long i = 0; i < size; i++) {{\n{body}\n}} }}'
        return built(folder, code, "-fsanitize=undefined", "-fno-sanitize-recover")

    def made(inputs: Parameters, outputs: Parameters, body: str, before: str = "") -> Any:
        def kernel(*args: Any, size: int, block_size: int = 0) -> None:
            held = [a if isinstance(a, np.ndarray) else np.array([a]) for a in args]
            names, raw = (
                [name for _, name in (*inputs, *outputs)],
                [d.startswith("raw") for d, _ in (*inputs, *outputs)],
            )
            if block_size:  # of one thread
                size, held[names.index("threads")] = 1, np.array([1])
            types = [CTYPE_OF[a.dtype.name] for a in held]
            run = compiled(tuple(names), tuple(types), tuple(raw), body, before)
            run(*(ctypes.c_void_p(a.ctypes.data) for a in held), ctypes.c_long(size))

        return kernel

    return made


@pytest.mark.parametrize("number", [1, 7, 300, 1 << 13, 20_000])
@pytest.mark.parametrize("dtype", ["u1", "u4", "i8"])
@given(seed=st.integers(0, 1 << 30), size=st.integers(0, 3000))
def test_counts(make: Callable[..., Any], number: int, dtype: str, seed: int, size: int) -> None:
    number = min(number, 256) if dtype == "u1" else number
    places = np.random.default_rng(seed).integers(0, number, size).astype(dtype)
    expected = np.bincount(places.astype(np.intp), minlength=number)
    np.testing.assert_array_equal(counter(make)(places, number), expected)


@pytest.mark.parametrize("number", [0, 1, 5000, TABLE // 2, 2 * TABLE])
@pytest.mark.parametrize("dtype", ["u4", "u8"])
def test_distinct(make: Callable[..., Any], number: int, dtype: str) -> None:
    keys = np.iinfo(dtype).max - np.random.default_rng(0).integers(0, max(number, 1), 4 * number).astype(dtype)
    found, counts = distinct_finder(make)(keys)
    values, expected = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("name", sorted(UFUNCS))
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "?"])
@given(data=st.data())
@settings(max_examples=examples(1 / 2))
def test_segments(make: Callable[..., Any], name: str, dtype: str, data: st.DataObject) -> None:
    if (name in ("any", "all")) != (dtype == "?"):
        pytest.skip("no such reduction of groups")
    rows, columns = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 3))
    x = np.random.default_rng(rows).integers(0, 3, (rows, columns)).astype(dtype)
    if dtype[0] == "f" and data.draw(st.booleans()):
        x[rows // 2, 0] = np.nan
    starts = np.array(sorted({0, *data.draw(st.lists(st.integers(0, rows - 1), max_size=9))}))
    ufunc = UFUNCS[name]
    expected = (
        np.add.reduceat(x, starts, axis=0, dtype=x.dtype)
        if name == "sum"
        else (
            np.multiply.reduceat(x, starts, axis=0, dtype=x.dtype)
            if name == "prod"
            else ufunc.reduceat(x, starts, axis=0)
        )
    )
    with np.errstate(over="ignore"):
        found = reducer(make)(x, ufunc, starts)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "?"])
@pytest.mark.parametrize("skip", [False, True])
@given(data=st.data())
def test_moments_of_segments(make: Callable[..., Any], dtype: str, skip: bool, data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 400)), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(rows)
    far = 0 if dtype in ("u1", "?") else data.draw(st.sampled_from([0, 1000]))
    x = (rng.integers(0, data.draw(st.sampled_from([1, 2, 50])), (rows, columns)) + far).astype(dtype)
    if dtype[0] == "f":
        x[rng.random(x.shape) < data.draw(st.sampled_from([0, 0.1, 1]))] = np.nan
    starts = np.array(sorted({0, *data.draw(st.lists(st.integers(0, rows - 1), max_size=9))}))
    found = momenter(make)(x, starts, skip=skip)
    for number, mean, squares, part in zip(*found, np.split(x.astype("f8"), starts[1:]), strict=True):
        there = ~np.isnan(part) if skip else np.ones(part.shape, bool)
        np.testing.assert_array_equal(number, there.sum(0))
        middle = np.where(there, part, 0).sum(0) / np.maximum(there.sum(0), 1)
        np.testing.assert_allclose(mean, middle, rtol=1e-12)
        expected = (np.where(there, part - middle, 0) ** 2).sum(0)
        np.testing.assert_allclose(squares, expected, rtol=1e-12, atol=1e-12)


def test_moments_lose_nothing_to_elements_far_from_the_others(make: Callable[..., Any]) -> None:
    for outlier in (0, 40, 150):
        x = np.random.default_rng(0).standard_normal((200, 1)) * 1e-3 + 1e6
        x[outlier] = 1e9
        _, mean, squares = momenter(make)(x, np.array([0]), skip=False)
        np.testing.assert_allclose(mean[0], x.mean(), rtol=1e-13)
        np.testing.assert_allclose(squares[0], ((x - x.mean()) ** 2).sum(), rtol=1e-12)
    assert momenter(make)(np.full((5, 2), np.inf), np.array([0]), skip=True)[2].tolist() != [[0.0, 0.0]], (
        "NaN, as NumPy"
    )
    assert momenter(make)(np.full((5, 2), 1j), np.array([0]), skip=True) is None


LYING = [((5, 200, 90), 0), ((5, 200, 90), 1), ((20_000, 3), 1), ((3, 20_000), 0)]


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.minimum, np.maximum])
@pytest.mark.parametrize(("shape", "axis"), LYING, ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_running_results(
    make: Callable[..., Any], ufunc: Any, shape: Any, axis: int, turned: bool, carried: bool
) -> None:
    x = np.random.default_rng(0).integers(1, 3, shape).astype("f4")
    x.reshape(-1)[::997] = np.nan
    x = np.asfortranarray(x) if turned else x
    dtype = np.dtype("f8" if ufunc in (np.add, np.multiply) else "f4")
    before = 2 * np.ones_like(x.take([0], axis), dtype) if carried else None
    found = accumulator(make)(x, ufunc, before, axis, dtype)
    if x.strides[axis] == x.itemsize or x.size // shape[axis] < 1 << 14:
        assert found is None  # left to the device's own scan
        return
    whole = x.astype(dtype) if before is None else np.concatenate((before, x.astype(dtype)), axis)
    expected = ufunc.accumulate(whole, axis=axis)
    np.testing.assert_array_equal(found, expected if before is None else np.delete(expected, 0, axis))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@given(data=st.data())
def test_weighted_windows(make: Callable[..., Any], dtype: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    width = data.draw(st.integers(1, shape[axis]))
    rng = np.random.default_rng(0)
    x, weights = (rng.integers(-9, 9, n).astype(dtype) for n in (shape, width))
    x = x.T.copy().T if data.draw(st.booleans()) else x
    np.testing.assert_array_equal(weigher(make)(x, axis, weights), weighted(x, axis, weights))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1"])
@pytest.mark.parametrize("skip", [False, True])
@given(data=st.data())
def test_moments_of_windows(make: Callable[..., Any], dtype: str, skip: bool, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True))
    widths = [data.draw(st.integers(1, shape[axis])) for axis in axes]
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    if dtype[0] == "f":
        x[x > 6] = np.nan
    x = x.T.copy().T if data.draw(st.booleans()) else x
    number, mean, squares = window_momenter(make)(x, Windows(x.ndim, tuple(axes), tuple(widths)), skip=skip)
    lines = np.lib.stride_tricks.sliding_window_view(x, widths, axes).astype("f8")
    dims = tuple(range(x.ndim, lines.ndim))
    there = ~np.isnan(lines) if skip else np.ones_like(lines, bool)
    kept, count = np.where(there, lines, 0), there.sum(dims)
    expected = kept.sum(dims) / np.maximum(count, 1)
    off = np.where(there, lines - expected.reshape(*expected.shape, *(1,) * len(dims)), 0)
    np.testing.assert_array_equal(number, count)
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(squares, (off * off).sum(dims), rtol=1e-12, atol=1e-12)


def test_moments_of_wide_windows_are_left_to_doubling(make: Callable[..., Any]) -> None:
    x = np.ones(2 * WIDEST)
    assert window_momenter(make)(x, Windows(1, (0,), (WIDEST + 1,)), skip=False) is None
    assert window_momenter(make)(x + 1j, Windows(1, (0,), (2,)), skip=False) is None


REAL = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


def drawn_of(dtype: str, shape: Any, seed: int) -> np.ndarray:
    """Some of everything: extremes, ties, zeros of both signs, infinities and NaN of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, shape).astype(dtype) if dtype[0] in "fi" else rng.integers(0, 9, shape).astype(dtype)
    if dtype[0] == "f":
        strange = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).tiny], dtype)
    elif dtype == "?":
        return x
    else:
        strange = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    chosen = rng.random(shape) < 0.3
    x[chosen] = rng.choice(strange, chosen.sum())
    return x


@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[pytest.mark.thorough] * (d in ("i1", "i4", "u2", "u4", "u8"))) for d in REAL]
)
@given(seed=st.integers(0, 1 << 30), data=st.data())
@settings(max_examples=examples(1 / 2))
def test_lines_in_order(make: Callable[..., Any], dtype: str, seed: int, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = drawn_of(dtype, shape, seed)
    x = x.T.copy().T if data.draw(st.booleans()) else x
    before = x.copy()
    found, places = (sorter(make)(x, axis, places=wanted) for wanted in (False, True))
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(found, np.sort(x, axis, kind="stable"))
    np.testing.assert_array_equal(places, np.argsort(x, axis, kind="stable"))
    assert (found.dtype, places.dtype) == (x.dtype, np.dtype("i8"))


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_longest_lines_that_fit(make: Callable[..., Any], dtype: str, places: bool) -> None:
    room = SHARED // (np.dtype(dtype).itemsize + 2 * places)
    longest = 1 << (room.bit_length() - 1)
    x = drawn_of(dtype, (2, longest), 0)
    expected = (np.argsort if places else np.sort)(x, -1, kind="stable")
    np.testing.assert_array_equal(sorter(make)(x, 1, places=places), expected)
    assert sorter(make)(np.zeros((1, longest + 1), dtype), 1, places=places) is None
    assert sorter(make)(np.zeros((2, 9), "c8"), 1, places=places) is None
    assert sorter(make)(np.zeros((0, 9), dtype), 1, places=places) is None


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("turned", [False, True])
def test_keys(make: Callable[..., Any], dtype: str, turned: bool) -> None:
    x = drawn_of(dtype, (30, 20), 1)
    x = x.T if turned else x
    found = keyer(make)(x)
    assert found.dtype == np.dtype(f"u{x.itemsize}")
    np.testing.assert_array_equal(found, to_keys(x))

"""Convolutions are SciPy's to within rounding: every mode, boundary, cut and device."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, signal
from support.devices import Place, checked, everywhere
from support.examples import examples
from support.transforms import DTYPES, close, noise, stored

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, UnsupportedError
from chunkflow.kernels.fourier import fast_length
from chunkflow.kernels.stencil.windows import WindowKernel
from chunkflow.testing import CountingSource


def test_fast_lengths() -> None:
    powers = itertools.product(range(12), range(8), range(6), range(5))
    smooth = sorted({2**a * 3**b * 5**c * 7**d for a, b, c, d in powers})
    for n in range(1, 2049):
        assert fast_length(n) == next(m for m in smooth if m >= n)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    mode = draw(st.sampled_from(["same", "valid", "full"]))
    sides = tuple(draw(st.integers(1, n if mode == "valid" else 7)) for n in shape)
    return {
        "x": np.asarray(noise(shape, draw(st.sampled_from(DTYPES))), order=draw(st.sampled_from("CF"))),
        "kernel": noise(sides, draw(st.sampled_from(["i2", "f2", "f4", "f8", "c8"]))),
        "mode": mode,
        "method": draw(st.sampled_from(["fft", "direct", "auto"])),
        "chunks": tuple(draw(st.sampled_from(["auto", "auto", -1, 2, 5])) for _ in shape),
        "in_memory": draw(st.booleans()),
        "budget": draw(st.sampled_from([100_000, 2_000_000])),
    }


@everywhere
@settings(max_examples=examples(1 / 4))
@given(case=convolutions())
def test_convolutions_are_scipys(case: dict[str, Any], place: Place) -> None:
    x, kernel, mode, method = case["x"], case["kernel"], case["mode"], case["method"]
    dtype = np.result_type(x.dtype, kernel.dtype)
    is_exact = method != "fft" and dtype.kind in "biu"
    dtype = np.dtype("f8") if dtype.kind in "biu" and not is_exact else np.dtype("f4") if dtype == "f2" else dtype
    source = x if case["in_memory"] else CountingSource(x)
    options = {"chunks": case["chunks"], "device": place.device()}
    call: Any = cf.fft.convolve if method == "fft" else partial(cf.convolve, method=method)
    try:
        got = call(source, kernel, mode, budget=place.budget(case["budget"]), **options)
    except BudgetError:  # axes that are to stay whole may be too much
        got = call(source, kernel, mode, budget=place.budget(20_000_000), **options)
    if is_exact:
        expected = signal.convolve(x.astype(dtype), kernel.astype(dtype), mode, method="direct")
        np.testing.assert_array_equal(place.host(got), expected)
        assert got.dtype == dtype
        return
    wide = np.dtype("c16" if dtype.kind == "c" else "f8")
    expected = signal.convolve(x.astype(wide), kernel.astype(wide), mode, method="direct").astype(dtype)
    size = float(np.abs(x.astype("c16")).max() * np.abs(kernel.astype("c16")).sum()) + 1
    close(place.host(got), expected, size=4 * size)


@checked
@pytest.mark.parametrize("boundary", [0, 2.5, "nearest", "reflect", "mirror", "periodic"])
@pytest.mark.parametrize("sides", [(3, 5), (7, 1), (1, 1), (4, 2)])
def test_boundaries_are_scipys(sides: Any, boundary: Any, place: Place) -> None:
    x, kernel = noise((20, 23), "f8"), noise(sides, "f8")
    mode = {"periodic": "grid-wrap"}.get(boundary, boundary) if isinstance(boundary, str) else "constant"
    cval = 0.0 if isinstance(boundary, str) else float(boundary)
    origin = [-(1 - k % 2) for k in sides]
    expected = ndimage.convolve(x, kernel, mode=mode, cval=cval, origin=origin)
    for chunks in (None, (6, -1), (5, 7)):
        how: dict[str, Any] = {"boundary": boundary, "chunks": chunks, "budget": 300_000, "device": place.device()}
        close(cf.fft.convolve(x, kernel, **how), expected, size=100.0)
        close(cf.convolve(x, kernel, "same", "direct", **how), expected, size=100.0)


@everywhere
@pytest.mark.parametrize("mode", ["same", "valid", "full"])
def test_a_kernel_wider_than_the_blocks(mode: Any, place: Place) -> None:
    x, kernel = noise((90, 5), "f4"), noise((37,), "f4")
    expected = signal.oaconvolve(x, kernel[:, None], mode, axes=0)
    for chunks in ((4, -1), (50, 2)):
        options = {"chunks": chunks, "budget": place.budget(400_000), "device": place.device()}
        close(place.host(cf.fft.convolve(CountingSource(x), kernel, mode, 0, **options)), expected, size=50.0)


def test_the_method_that_is_faster_is_taken() -> None:
    x = cf.open(np.ones((300, 300)))
    for dtype, kernel, is_direct in [
        ("f8", np.ones((5, 5)), True),
        ("f8", np.ones((7, 7)), False),
        ("f8", np.ones((1, 200)), True),
        ("f8", np.ones((1, 299)), False),
        ("i4", np.ones((7, 7), "i4"), True),
        ("i4", np.ones((7, 7)), False),
    ]:
        y = cf.convolve(x.astype(dtype), kernel, "valid")
        assert isinstance(y._node.declared.kernel, WindowKernel) == is_direct
    with pytest.raises(ArgumentError, match="method='fast'"):
        cf.convolve(x, np.ones((2, 2)), method="fast")  # type: ignore[arg-type]


def test_axes_of_the_kernel_are_in_the_order_that_is_given() -> None:
    x, kernel = noise((10, 4, 12), "f8"), noise((3, 5), "f8")
    got = cf.fft.convolve(x, kernel, axes=(2, 0), device="cpu")
    close(got, signal.convolve(x, kernel.T[:, None, :], "same"), size=50.0)


def test_convolving_files(tmp_path: Path) -> None:
    x, kernel = noise((60, 50, 40), "f4"), noise((5, 7, 3), "f4")
    for kind in ("npy", "zarr"):
        got = cf.fft.convolve(
            stored(x, kind, tmp_path), kernel, "full", out=tmp_path / f"y.{kind}", budget="2MB", device="cpu"
        )
        close(got, signal.oaconvolve(x, kernel, "full"), size=100.0)


@pytest.mark.parametrize(
    ("args", "options", "error", "words"),
    [
        (([1, 2],), {}, ArgumentError, "kernel has 1 dimensions and there are 2 axes"),
        (([1, 2],), {"axes": 2}, ArgumentError, "axes=2 is out of bounds"),
        ((np.ones((2, 2)),), {"axes": (0, -2)}, ArgumentError, "twice"),
        ((np.ones((2, 2)), "middle"), {}, ArgumentError, "mode='middle'"),
        ((np.ones((7, 2)), "valid"), {}, ArgumentError, "7 elements along axis 0.*6"),
        ((np.ones((0, 2)),), {}, ArgumentError, "no element"),
        (([["a"]],), {}, ArgumentTypeError, "numbers"),
        ((cf.open(np.ones((2, 2))),), {}, UnsupportedError, r"convolve: kernel= is an expression.*compute\(\)"),
        ((np.ones((2, 2)), "full"), {"boundary": "nearest"}, ArgumentError, "mode='full'"),
        ((np.ones((2, 2)),), {"boundary": "none"}, ArgumentError, "boundary='none'"),
        ((np.ones((2, 2)),), {"boundary": "wrap"}, ArgumentError, "'wrap' is none of"),
    ],
)
def test_bad_convolutions_are_refused_before_a_byte_is_read(args: Any, options: Any, error: Any, words: str) -> None:
    source = CountingSource(np.zeros((6, 4)))
    with pytest.raises(error, match=words):
        cf.fft.convolve(source, *args, device="cpu", **options)
    assert source.bytes_read == 0


@everywhere
@pytest.mark.parametrize("mode", ["same", "valid", "full"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_not_finite_reaches_what_it_reaches_in_a_plain_convolution(mode: Any, dtype: str, place: Place) -> None:
    x = np.ones((60, 50), dtype)
    for at, value in {(3, 4): np.nan, (20, 20): np.inf, (21, 20): -np.inf, (40, 10): np.inf, (59, 49): -np.inf}.items():
        x[at] = value
    kernel = np.array([[1, -2, 0], [3, 0, -1], [1, 1, 2]], dtype)
    with np.errstate(invalid="ignore"):
        expected = signal.convolve(x, kernel, mode, method="direct")
    for budget in (100_000, 400_000, 4_000_000):
        got = place.host(cf.fft.convolve(x, kernel, mode, budget=place.budget(budget), device=place.device()))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_a_complex_nan_does_not_spread_with_the_block() -> None:
    x = np.ones((60, 50), complex)
    x[3, 4] = np.nan
    expected = signal.convolve(x, np.ones((3, 3)), "same", method="direct")
    for budget in ("100kB", "4MB"):
        got = cf.fft.convolve(x, np.ones((3, 3)), budget=budget, device="cpu")
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


def test_a_kernel_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ArgumentError, match="NaN or infinities"):
        cf.fft.convolve(np.ones(9), [1, np.nan], device="cpu")

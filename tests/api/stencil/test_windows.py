"""Reductions of windows are NumPy's, whatever the array, its padding, the windows, the cut, store and device."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from support.budgets import MB, SLACK, traced
from support.devices import CHECKING, CPU, Place, on_cpu_and_gpu, same

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError, ZeroWeightsError
from chunkflow.kernels.stencil import windows as kernels
from chunkflow.testing import CountingSource

EXACT = (
    "min",
    "max",
    "any",
    "all",
    "count_nonzero",
    "ptp",
    "argmin",
    "argmax",
    "median",
    "nanmin",
    "nanmax",
    "nanmedian",
)
CLOSE = ("sum", "prod", "mean", "var", "std", "nansum", "nanprod", "nanmean", "nanvar", "nanstd")
DTYPES = ("?", "i1", "u2", "i4", "f2", "f4", "f8", "c16", ">f4")
MODES = ("constant", "edge", "symmetric", "reflect", "wrap")


def noise(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 10, shape) / 4
    x = x + 1j * x[::-1] if np.dtype(dtype).kind == "c" else x
    x = x.astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(shape) < 0.05] = np.nan
        x[rng.random(shape) < 0.02] = np.inf
    return x


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    ndim = len(shape)
    axes = draw(st.lists(st.integers(0, ndim - 1), min_size=1, max_size=2, unique=draw(st.integers(0, 3)) > 0))
    pads = [(0, 0)] * ndim
    if draw(st.booleans()):
        pads[axes[0]] = (draw(st.integers(0, 4)), draw(st.integers(0, 4)))
    room = [n + sum(pad) for n, pad in zip(shape, pads, strict=True)]
    widths = []
    for axis in axes:
        widths.append(draw(st.integers(1, room[axis])))
        room[axis] -= widths[-1] - 1
    return {
        "shape": shape,
        "axes": axes,
        "widths": widths,
        "pads": pads,
        "mode": draw(st.sampled_from(MODES)),
        "seed": draw(st.integers(0, 99)),
        "store": draw(st.sampled_from(["memory", "npy", "zarr", "expression"])),
        "place": draw(st.sampled_from([CPU, *CHECKING])),
        "budget": draw(st.sampled_from([400_000, 4_000_000])),
    }


def opened(x: np.ndarray, store: str, folder: Path) -> cf.Array:
    """An array as an expression, from wherever it is kept."""
    if store == "npy":
        np.save(folder / "x.npy", x)
        return cf.open(folder / "x.npy")
    if store == "zarr":
        made = zarr.create_array(
            folder / "x.zarr", shape=x.shape, chunks=tuple(-(-n // 2) for n in x.shape), dtype=x.dtype, overwrite=True
        )
        made[...] = x
        return cf.open(folder / "x.zarr")
    found = cf.open(x)
    return np.where(found == found, found, found) if store == "expression" else found  # type: ignore[no-any-return]


def reduced(name: str, windows: Any, axes: tuple[int, ...], **kwargs: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return getattr(np, name)(windows, axis=axes[0] if name.startswith("arg") else axes, **kwargs)


@settings(max_examples=80)
@given(case=cases(), name=st.sampled_from(EXACT + CLOSE), dtype=st.sampled_from(DTYPES), keepdims=st.booleans())
def test_reductions_are_numpys(
    case: dict[str, Any], name: str, dtype: str, keepdims: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = np.dtype(dtype).kind
    if (kind == "c" and name in ("median", "nanmin", "nanmax", "nanmedian")) or (kind == "b" and name == "ptp"):
        return
    x = noise(case["shape"], dtype, case["seed"])
    axes, widths = (case["axes"][:1], case["widths"][:1]) if name.startswith("arg") else (case["axes"], case["widths"])
    folder = tmp_path_factory.mktemp("windows")
    lazy = opened(x, case["store"], folder)
    pads: Any = {"pad_width": case["pads"], "mode": case["mode"]}
    right = sliding_window_view(np.pad(x, **pads), widths, axes)
    dims = tuple(range(x.ndim, right.ndim))
    expected = reduced(name, right, dims, keepdims=keepdims)
    got = reduced(name, sliding_window_view(np.pad(lazy, **pads), widths, axes), dims, keepdims=keepdims)  # type: ignore[call-overload]
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype.newbyteorder("="))
    place = case["place"]
    found = got.compute(device=place.device(), budget=place.budget(case["budget"]))
    if name in EXACT or kind in "biu":
        np.testing.assert_array_equal(found, expected)
    else:  # in single precision NumPy's own rounding errors are larger
        eps = max(np.finfo(expected.dtype).eps, np.finfo(x.dtype if kind in "fc" else "f8").eps)
        scale = float(np.nanmax(np.abs(x[np.isfinite(x)]), initial=1)) ** (2 if "var" in name else 1)
        scale = scale * math.prod(widths) if "prod" not in name else 1
        np.testing.assert_allclose(found, expected, rtol=64 * eps, atol=64 * eps * scale)
    assert found.dtype == expected.dtype.newbyteorder("=")


@settings(max_examples=20)
@given(case=cases(), dtype=st.sampled_from(("i2", "f4", "f8")))
def test_quantiles_are_numpys(case: dict[str, Any], dtype: str) -> None:
    x, place = noise(case["shape"], dtype, case["seed"]), case["place"]
    pads: Any = {"pad_width": case["pads"], "mode": case["mode"]}
    right = sliding_window_view(np.pad(x, **pads), case["widths"], case["axes"])
    dims = tuple(range(x.ndim, right.ndim))
    windows = sliding_window_view(np.pad(cf.open(x), **pads), case["widths"], case["axes"])
    run = {"device": place.device(), "budget": place.budget(case["budget"])}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        same(np.quantile(windows, [0.2, 0.5], dims).compute(**run), np.quantile(right, [0.2, 0.5], dims))  # type: ignore[attr-defined]
        same(np.percentile(windows, 30, dims).compute(**run), np.percentile(right, 30, dims))  # type: ignore[attr-defined]


@pytest.mark.parametrize("widths", [(2,), (31,), (32,), (33,), (5, 5), (2, 16)])
@pytest.mark.parametrize("q", [[0, 0.3, 0.5, 1], 0.5])
def test_order_statistics_of_short_and_long_windows_are_numpys(widths: tuple[int, ...], q: Any) -> None:
    """Infinities and NaN are in just the windows that have them; some windows have NaN alone."""
    x = noise((60, 20), "f4", 0)
    x[10:50, 3:10] = np.nan
    axes = tuple(range(len(widths)))
    right, windows = sliding_window_view(x, widths, axes), sliding_window_view(cf.open(x), widths, axes)
    dims = tuple(range(2, right.ndim))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for fn in (np.quantile, np.nanquantile):
            same(fn(windows, q, dims).compute(device="cpu"), fn(right, q, dims))  # type: ignore[attr-defined]


@settings(max_examples=20)
@given(case=cases())
def test_windows_themselves_are_numpys(case: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    x, place, how = noise(case["shape"], "f4", case["seed"]), case["place"], (case["widths"], case["axes"])
    if any(w > n for n, w in zip(x.shape, sliding_window_view(np.pad(x, case["pads"]), *how).shape, strict=False)):
        case["pads"] = [(0, 0)] * x.ndim
        how = ([1] * len(case["axes"]), case["axes"])
    folder = tmp_path_factory.mktemp("windows")
    lazy = np.pad(opened(x, case["store"], folder), case["pads"])
    right = sliding_window_view(np.pad(x, case["pads"]), *how)
    got = cf.sliding_window_view(lazy, *how)
    run = {"device": place.device(), "budget": place.budget(case["budget"])}
    same(got.compute(**run), right)
    same(cf.sliding_window_view(np.pad(x, case["pads"]), *how, **run), right)
    with np.errstate(all="ignore"):
        same((got * 2 - np.abs(got)).compute(**run), right * 2 - np.abs(right))
    same(got[..., 0][::2].compute(**run), right[..., 0][::2])
    weights = np.arange(right.shape[-1])
    with np.errstate(all="ignore"):
        np.testing.assert_allclose((got @ weights).compute(**run), right @ weights, rtol=1e-5, atol=1e-4)


@given(
    case=cases(),
    dtypes=st.tuples(st.sampled_from(("?", "i2", "f2", "f4", "f8", "c16", ">f4")), st.sampled_from(("i1", "f4", "c8"))),
    long=st.sampled_from([(8, 512), (1, 3)]),
)
def test_weighted_windows_are_numpys(
    case: dict[str, Any], dtypes: Any, long: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where windows are long enough for BLAS to sum up."""
    x, place = noise(case["shape"], dtypes[0], case["seed"]), case["place"]
    axes, widths = case["axes"], case["widths"]
    # BLAS may leave out what weighs nothing, be it NaN.
    weights = np.random.default_rng(case["seed"]).choice([-3, -1, 1, 2], widths).astype(dtypes[1])
    pads: Any = {"pad_width": case["pads"], "mode": case["mode"]}
    right = sliding_window_view(np.pad(x, **pads), widths, axes)
    got = sliding_window_view(
        np.pad(opened(x, case["store"], tmp_path_factory.mktemp("windows")), **pads), widths, axes
    )
    run = {"device": place.device(), "budget": place.budget(case["budget"])}
    calls: list[Any] = [
        lambda w: np.einsum("...v,v->..." if len(widths) == 1 else "...uv,uv->...", w, weights),
        lambda w: np.tensordot(w, weights, len(widths)),
    ]
    if len(widths) == 1:
        calls += [lambda w: w @ weights, lambda w: weights @ np.moveaxis(w, -1, 0) if w.ndim == 2 else w @ weights]
        calls += [lambda w: np.average(w, axis=-1, weights=np.abs(weights) + 1)]
    with np.errstate(all="ignore"), patch.multiple(kernels, LONG=long[0], LONG_LINE=long[1]):
        for call in calls:
            expected, found = call(right), call(got)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype.newbyteorder("="))
            np.testing.assert_allclose(
                found.compute(**run), expected, rtol=1e-2 if dtypes[0] == "f2" else 1e-5, atol=1e-4
            )


def test_weighted_windows_read_their_source_once() -> None:
    x, weights = np.random.default_rng(0).random((900, 15, 20)), np.array([1.0, 4, 6, 4, 1])
    for call in (
        lambda w: w @ weights,
        lambda w: np.einsum("tyxw,w->tyx", w, weights),
        lambda w: np.linalg.vecdot(w, weights),
        lambda w: np.dot(w, weights),
        lambda w: np.average(w, axis=3, weights=weights),
        lambda w: np.where(w > 0.5, w, np.array(0.0)) @ weights,
    ):
        source = CountingSource(x)
        got = call(sliding_window_view(cf.open(source), 5, 0))
        np.testing.assert_allclose(got.compute(budget="1MB", device="cpu"), call(sliding_window_view(x, 5, 0)))
        assert source.bytes_read <= 1.1 * x.nbytes
    w = sliding_window_view(cf.open(x), 5, 0)
    with pytest.raises(ZeroWeightsError):
        np.average(w, axis=3, weights=np.zeros(5))


@on_cpu_and_gpu
def test_kernels_of_windows(place: Place) -> None:
    x = np.random.default_rng(0).standard_normal((40, 7, 6))
    x[3, 2, 1] = np.nan
    windows, right = sliding_window_view(cf.open(x), (5, 2), (0, 2)), sliding_window_view(x, (5, 2), (0, 2))
    for name in ("sum", "mean", "std", "min", "any", "median", "nanmedian", "nanmax", "nanstd"):
        got = reduced(name, windows, (3, 4)).compute(device=place.device())
        np.testing.assert_allclose(place.host(got), reduced(name, right, (3, 4)), rtol=1e-12)
    weights = np.random.default_rng(1).random((5, 2))
    got = np.einsum("...uv,uv->...", windows, weights).compute(device=place.device())
    np.testing.assert_allclose(place.host(got), np.einsum("...uv,uv->...", right, weights), rtol=1e-12)
    place_of = np.argmax(sliding_window_view(cf.open(x), 5, 0), axis=-1).compute(device=place.device())
    np.testing.assert_array_equal(place.host(place_of), np.argmax(sliding_window_view(x, 5, 0), axis=-1))


def test_a_moving_average_reads_its_source_once(tmp_path: Path) -> None:
    """With what is padded before, counted and divided after it, and in blocks that are a small part of the array."""
    x = np.random.default_rng(0).random((3000, 20, 20))
    source = CountingSource(x)
    a = cf.open(source)
    windows = sliding_window_view(np.pad(np.where(a == a, a, 0), ((6, 0), (0, 0), (0, 0))), 7, 0)
    number = sliding_window_view(np.pad(a == a, ((6, 0), (0, 0), (0, 0))), 7, 0).sum(axis=-1)
    mean = np.where(number >= 7, windows.sum(axis=-1) / number, np.nan)
    plan = cf.explain(mean, budget="3MB", device="cpu")
    assert len(plan.passes) == 1
    got = mean.compute(budget="3MB", device="cpu")
    assert source.bytes_read <= 1.02 * x.nbytes
    np.testing.assert_allclose(got[6:], sliding_window_view(x, 7, 0).mean(axis=-1))
    assert np.isnan(got[:6]).all()


@pytest.mark.parametrize("chunk", [100, 1000])
def test_windows_take_no_room_for_those_of_whole_chunks(chunk: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((4000, 10))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(chunk, 10))
    with traced() as most:
        cf.sliding_window_view(tmp_path / "x.zarr", 90, 0, out=tmp_path / "y.npy", budget=2 * MB, device="cpu")
        assert most() < 2 * MB + SLACK
    same(np.load(tmp_path / "y.npy", mmap_mode="r"), sliding_window_view(x, 90, 0))


@pytest.mark.parametrize("width", [90, 800, 1500])
def test_windows_as_long_as_the_array_are_taken_line_by_line(width: int) -> None:
    """Blocks of many lines would be halo for the most part."""
    x = np.random.default_rng(0).random((800, 9, 11))
    source = CountingSource(x)
    ends = ((width - 1, 0), (0, 0), (0, 0))
    most = sliding_window_view(np.pad(cf.open(source), ends), width, 0).max(axis=-1)
    (plan,) = (plan for _, plan in cf.explain(most, budget="400kB", device="cpu").passes)
    assert plan.op.volume(plan.block) <= 2 * math.prod(plan.block)
    got = most.compute(budget="400kB", device="cpu")
    assert source.bytes_read <= 2 * x.nbytes
    np.testing.assert_array_equal(got[::50], sliding_window_view(np.pad(x, ends), width, 0)[::50].max(axis=-1))


@pytest.mark.parametrize("name", ["mean", "std", "median", "argmax"])
def test_the_budget_that_a_refusal_names_does(name: str) -> None:
    x = np.random.default_rng(0).random((60, 3))
    got, right = (reduced(name, sliding_window_view(a, 30, 0), (2,)) for a in (cf.open(x), x))
    with pytest.raises(cf.BudgetError) as error:
        got.compute(budget=1, device="cpu")
    assert error.value.smallest is not None
    np.testing.assert_allclose(got.compute(budget=error.value.smallest, device="cpu"), right, rtol=1e-12)
    with pytest.raises(cf.BudgetError):
        got.compute(budget=error.value.smallest * 2 // 3, device="cpu")


def test_sums_of_windows_lose_no_digits_to_elements_that_have_left() -> None:
    x = np.array([1e300, 1.0, 2.0, np.inf, 3.0, 4.0, np.nan, 5.0, 6.0])
    same(
        sliding_window_view(cf.open(x), 2).sum(axis=-1).compute(device="cpu"),
        sliding_window_view(x, 2).sum(axis=-1),
    )
    y = 1e9 + np.random.default_rng(0).random(1000) * 1e-4
    got = sliding_window_view(cf.open(y), 30).var(axis=-1).compute(device="cpu")
    exact = sliding_window_view(y.astype(np.longdouble), 30).var(axis=-1)
    np.testing.assert_allclose(got, exact.astype("f8"), rtol=1e-9)  # NumPy's own differ in the fifth digit


def test_what_is_no_window_is_refused() -> None:
    x = cf.open(np.ones((4, 5)))
    with pytest.raises(ArgumentError, match="larger than the array"):
        sliding_window_view(x, (5, 1))
    with pytest.raises(ArgumentError, match="larger than the array"):
        sliding_window_view(x[:0], (1, 1))
    assert sliding_window_view(x[:0], 0, axis=0).shape == (1, 5, 0)
    with pytest.raises(ArgumentError, match="one for each"):
        sliding_window_view(x, 3)
    with pytest.raises(ArgumentError, match="negative"):
        sliding_window_view(x, -1, 0)
    with pytest.raises(IndexError, match="out of bounds"):
        sliding_window_view(x, 1, 2)
    with pytest.raises(ArgumentTypeError, match="must be an int"):
        cf.sliding_window_view(x, 2.5, 0)
    with pytest.raises(UnsupportedError, match="out="):
        np.mean(sliding_window_view(x, 2, 0), axis=-1, out=np.empty((3, 5)))


@settings(max_examples=40)
@given(
    n=st.integers(1, 40) | st.integers(1, 8),
    k=st.integers(1, 9),
    dtypes=st.tuples(st.sampled_from(["i1", "i4", "f4", "f8", "c16"]), st.sampled_from(["i2", "f4", "f8", "c8"])),
    mode=st.sampled_from(["full", "same", "valid"]),
    place=st.sampled_from([CPU, *CHECKING]),
)
def test_convolutions_of_lines_are_numpys(n: int, k: int, dtypes: Any, mode: Any, place: Place) -> None:
    rng = np.random.default_rng(n)
    a, v = rng.integers(-9, 9, n).astype(dtypes[0]), rng.integers(-9, 9, k).astype(dtypes[1])
    run = {"device": place.device(), "budget": place.budget(2_000_000)}
    for fn in (np.convolve, np.correlate):
        for lazy in (cf.open(a), cf.open(a) * 1):
            got, expected = fn(lazy, v, mode), fn(a, v, mode)
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            np.testing.assert_allclose(got.compute(**run), expected, rtol=1e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("n", "k"), [(0, 3), (3, 0)])
def test_a_line_without_elements_is_not_weighed(n: int, k: int) -> None:
    for fn in (np.convolve, np.correlate):
        with pytest.raises(ArgumentError, match=f"of {n} elements and {k} in memory: neither can be empty"):
            fn(cf.open(np.ones(n)), np.ones(k))


@pytest.mark.parametrize("dtype", ["?", "u1", "u8", "f4"])
def test_weights_may_be_bools(dtype: str) -> None:
    a, v = (20 * np.arange(20)).astype(dtype), np.array([True, True, False])
    for fn in (np.convolve, np.correlate):
        same(fn(cf.open(a), v, "full").compute(device="cpu"), fn(a, v, "full"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [1, 2, 8, 9, 10])
@pytest.mark.parametrize("name", ["sum", "mean", "nansum"])
def test_zeros_of_either_sign_are_numpys(width: int, name: str) -> None:
    x = np.full((20, 4), -0.0)
    found = getattr(np, name)(sliding_window_view(cf.open(x), width, 0), axis=-1).compute(device="cpu")
    assert not np.signbit(found).any()
    assert not np.signbit(cf.sum(x[:, :1], axis=1, device="cpu")).any()


def test_windows_without_elements_are_reduced_as_what_has_none() -> None:
    windows = sliding_window_view(cf.open(np.ones((5, 3))), 0, 0)
    same(windows.sum(axis=-1).compute(device="cpu"), np.zeros((6, 3)))
    with pytest.raises(ArgumentError, match="max of no elements"):
        windows.max(axis=-1)
    assert cf.sliding_window_view(np.ones((5, 3)), 0, 0, device="cpu").shape == (6, 3, 0)

"""What is wrong with a call is said when the call is made, before a byte is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.testing import FailingArray

X = np.arange(12.0).reshape(3, 4)


def unread() -> Any:
    return FailingArray(X, after=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: cf.map(lambda b: b, x, bugdet="1GB"), r"no argument bugdet=.*did you mean budget=\?"),
        (lambda x: cf.map(np.sqrt, x, wher=1), "no argument wher="),
        (lambda x: cf.map_overlap(lambda b: b, x, depth=1, drop_axis=0), "map_overlap has no argument drop_axis="),
        (lambda x: cf.blockwise(lambda b: b, "i", x, "ij", combin=np.add), "no argument combin="),
        (lambda x: cf.sum(x, wher=True), r"sum got an unexpected keyword argument 'wher'; did you mean where=\?$"),
        (lambda x: cf.sum(x, zebra=True), "sum got an unexpected keyword argument 'zebra': it takes x, .*where"),
        (lambda x: cf.map_overlap(np.sin, x, dept=1), r"missing .*'depth': .*; did you mean depth= by dept=\?$"),
        (
            lambda x: cf.map_overlap(np.sin, x, depth=1, boundaryy=0),
            r"no argument boundaryy=.*did you mean boundary=\?",
        ),
        (lambda x: cf.label_statistics(x, x, statistic="sum"), r"'statistic'; did you mean statistics=\?$"),
        (lambda x: cf.compute(cf.open(x), bugdet=1), r"^compute got .*'bugdet'; did you mean budget=\?$"),
        (lambda x: cf.open(x).compute(bugdet=1), r"^compute got .*'bugdet'; did you mean budget=\?$"),
        (lambda x: cf.open(x).to_zarr("x.zarr", overwrit=1), r"'overwrit'; did you mean overwrite=\?$"),
        (lambda x: cf.store(cf.open(x), "x.npy", bugdet=1), r"^store got .*'bugdet'; did you mean budget=\?$"),
        (lambda x: cf.chunks(x, bugdet=1), r"^chunks got .*'bugdet'; did you mean budget=\?$"),
        (lambda x: cf.copy(x, cf.NewArray("x.zarr", chunk=1)), r"^NewArray got .*'chunk'; did you mean chunks=\?$"),
        (lambda x: cf.copy(x, cf.ExistingArray("x.zarr", appnd=1)), r"^ExistingArray .*; did you mean append=\?$"),
        (
            lambda x: cf.apply_gufunc(np.sort, "(i)->(i)", x, bugdet=1),
            r"^apply_gufunc has no argument bugdet=; did you mean budget=\?$",
        ),
        (
            lambda x: cf.apply_gufunc(np.sort, "(i)->(i)", x, kind="stable"),
            r"^apply_gufunc has no argument kind=: its function sort has, and is given it by kwargs={'kind': \.\.\.}$",
        ),
        (
            lambda x: cf.apply_gufunc(np.sort, "(i)->(i)", x, combine=np.add),
            r"^apply_gufunc .*combine=: it takes dtype, out",
        ),
        (
            lambda x: cf.apply_ufunc(np.sort, xr.DataArray(X), dtyp="f4"),
            r"^apply_ufunc .*dtyp=; did you mean dtype=\?$",
        ),
        (lambda x: cf.coarsen(np.sum, x, {0: 2}, bugdet=1), r"^coarsen has no .* sum; did you mean budget=\?$"),
        (lambda x: cf.coarsen(lambda b, axis: b, x, {0: 2}, bugdet=1), r"^coarsen has no .*; did you mean budget=\?$"),
        (lambda x: cf.explain(np.sin, x, bugdet=1), r"^explain has no .*bugdet=.*"),
        (lambda x: cf.explain(lambda b: b, x, bugdet=1, analyze=True), r"^explain has no .*; did you mean budget=\?$"),
        (lambda x: cf.open(x).mean(keepdim=True), r"'keepdim'\. It takes .*; did you mean keepdims=\?$"),
        (lambda x: cf.open("x.h5", "fields/u"), r"by position.*in its path: chunkflow\.open\('x\.h5:/fields/u'\)$"),
        (lambda x: cf.open("x.zarr", "/u"), r"chunkflow\.open\('x\.zarr/u'\)$"),
        (lambda x: cf.open(x, 3), "open takes 1 by position, and was given 2: all else is given by name"),
        (lambda x: cf.mean(x, 0, "4MB"), r"'4MB' is no dtype: .*; a budget is given by name: budget='4MB'$"),
        (lambda x: cf.map(np.sqrt, x, dtype="80%"), r"'80%' is no dtype: .*; a budget is given by name: budget='80%'$"),
        (lambda x: cf.mean(x, 0, "f9"), r"dtype='f9' is no dtype: [^;]*$"),
        (lambda x: cf.sum(x, missing="error"), "unexpected keyword argument 'missing': .*, and open takes this one"),
        (lambda x: cf.max(x, squeezed=True), "max got an unexpected keyword argument 'squeezed'"),
        (lambda x: cf.argmax(x, where=True), "argmax got an unexpected keyword argument 'where'"),
        (lambda x: cf.flip(x, axes=0), "flip got an unexpected keyword argument 'axes'"),
        (lambda x: cf.nanmean(x, axis=0, dtype=int), "a mean without NaN of float64 is not an integer"),
        (lambda x: np.nanmean(cf.open(x), axis=0, dtype=int), "a mean without NaN of float64 is not an integer"),
        (lambda x: np.median(cf.open(x) + 1j), "quantiles are of real numbers"),
    ],
)
def test_a_wrong_keyword_or_dtype(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        call(unread())


def test_shapes_of_a_reduction_that_keepdims_would_make_fit() -> None:
    v = cf.open(np.arange(60.0).reshape(3, 4, 5))
    for call in (lambda: v - np.median(v, axis=(1, 2)), lambda: np.ones((3, 4, 5)) - v.mean(axis=1)):
        with pytest.raises(ArgumentError, match=r"do not broadcast: .*; if that of shape \(3,.* keepdims=True keeps"):
            call()
    expected = np.asarray(v) - np.median(np.asarray(v), axis=(1, 2), keepdims=True)
    np.testing.assert_array_equal((v - np.median(v, axis=(1, 2), keepdims=True)).compute(device="cpu"), expected)
    with pytest.raises(ArgumentError, match=r"must be equal or 1$"):
        v - np.ones((3, 6))


def test_a_wrong_value() -> None:
    for call in (lambda x: cf.quantile(x, 1.5), lambda x: np.quantile(cf.open(x), 1.5)):
        with pytest.raises(ArgumentError, match=r"q=1.5 must be in the range from 0 to 1"):
            call(unread())


def test_keywords_of_a_function_that_takes_all_or_tells_nothing() -> None:
    def scaled(block: Any, **how: float) -> Any:
        return block * how["by"]

    np.testing.assert_array_equal(cf.map(scaled, X, by=2, device="cpu"), X * 2)
    np.testing.assert_array_equal(cf.map(lambda b, *, by: b * by, X, by=2, device="cpu"), X * 2)


def test_a_ufunc_of_two_results_gives_two_expressions() -> None:
    parts = cf.map(np.modf, cf.open(X / 4))
    for one, other in zip(cf.compute(*parts, device="cpu"), np.modf(X / 4), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axis", [0, (0, 1), None])
def test_a_reduction_of_no_elements_is_what_it_begins_with(axis: Any) -> None:
    empty = np.empty((0, 4), "f4")
    for fn in (np.max, np.min):
        got = fn(cf.open(empty), axis=axis, initial=-1)
        expected = fn(empty, axis=axis, initial=-1)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(got.compute(device="cpu"), expected)


def test_numpy_gets_no_array_behind_the_users_back() -> None:
    large = cf.open(np.broadcast_to(np.float32(1), (1 << 20, 1 << 10))) + 1
    for call in (np.asarray, lambda x: np.arange(5.0)[x], lambda x: memoryview(np.array(x, "f4"))):
        with pytest.raises(UnsupportedError, match=r"of 4.29 GB would be computed into memory.*compute\(\)"):
            call(large)
    small = cf.open(X) + 1
    np.testing.assert_array_equal(np.asarray(small), X + 1)
    with cf.config.set(array_limit=95), pytest.raises(UnsupportedError, match=r"96 B.*chunkflow\.map or map_overlap"):
        np.asarray(small)

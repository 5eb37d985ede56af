"""Shapes and dtypes that an expression promises are those of its results, whatever its function passes for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkflow as cf

X = np.arange(48.0).reshape(6, 8)


def passing_for_numpy(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(np.sqrt, assigned=("__module__", "__name__"), updated=())
    def wrapped(block: Any) -> Any:
        return fn(block)

    return wrapped


RESIZING: dict[str, Callable[[Any], Any]] = {
    "rfft": np.fft.rfft,
    "diff": np.diff,
    "delete": lambda b: np.delete(b, 2, axis=-1),
    "packbits": functools.partial(np.packbits, axis=-1),
    "vectorize": np.vectorize(lambda row: row[::2], signature="(n)->(m)"),
    "wraps": passing_for_numpy(lambda b: b[:, ::2]),
    "trapezoid of pairs": lambda b: b[:, 1:] + b[:, :-1],
}


@pytest.mark.parametrize("name", RESIZING)
def test_a_function_that_resizes_whole_rows(name: str) -> None:
    fn, x = RESIZING[name], X.astype("u1") if name == "packbits" else X
    right = fn(x)
    y = cf.map(fn, cf.open(x), chunks=("auto", -1))
    assert (y.shape, y.dtype) == (right.shape, right.dtype)
    np.testing.assert_allclose(y.compute(device="cpu"), right)
    np.testing.assert_allclose(y.mean(axis=1).compute(device="cpu"), right.mean(axis=1))
    np.testing.assert_allclose(np.concatenate([y, y], 1).compute(device="cpu"), np.concatenate([right, right], 1))
    np.testing.assert_array_equal(y[:, -1].compute(device="cpu"), right[:, -1])


def test_without_chunks_it_is_refused() -> None:
    with pytest.raises(cf.errors.ResultError, match="chunks"):
        cf.map(np.fft.rfft, cf.open(X)).compute(device="cpu", budget="1MB")


def test_a_function_with_another_dtype_for_ones_is_refused_before_anything_is_stored() -> None:
    def root(block: Any) -> Any:
        return np.sqrt(block if block.min() >= 0 else block.astype(complex))

    y = cf.map(root, cf.cumsum(cf.open(X - 20), axis=0))  # the sums must be stored first, and are not there yet
    assert y.dtype == np.float64
    out = np.full(X.shape, -1, complex)
    with pytest.raises(cf.errors.ResultError, match="complex128"):
        cf.store(y, out, device="cpu")
    assert (out == -1).all()
    sure = cf.map(root, cf.cumsum(cf.open(X - 20), axis=0), dtype=complex)
    np.testing.assert_allclose(sure.compute(device="cpu"), np.sqrt(np.cumsum(X - 20, axis=0).astype(complex)))


def test_a_ufunc_that_calls_python_is_no_known_one() -> None:
    calls: list[float] = []
    seen = np.frompyfunc(lambda value: calls.append(value), 1, 1)
    with pytest.raises(cf.errors.ArgumentTypeError, match="object"):
        seen(cf.open(X + 2)).compute(device="cpu")
    assert 1.0 not in calls


TURNED: dict[str, Callable[[Any], Any]] = {
    "astype": lambda x: x.astype(">f4"),
    "zeros_like": lambda x: np.zeros_like(x, dtype=">i2"),
    "full_like of the same dtype": lambda x: np.full_like(x, 7),
    "map": lambda x: cf.map(lambda b: b.astype(">f4"), x),
    "map of a result": lambda x: cf.map(lambda b: b.astype(">f4"), x + 1),
    "map to a dtype": lambda x: cf.map(lambda b: b, x, dtype=">f4"),
    "map_overlap": lambda x: cf.map_overlap(lambda b: b.astype(">c8"), x, depth=1),
    "sum": lambda x: x.sum(dtype=">f8"),
}


@pytest.mark.parametrize("name", TURNED)
def test_results_have_the_native_byte_order(name: str) -> None:
    y = TURNED[name](cf.open(X.astype(">i4")))
    found = np.asarray(y.compute(device="cpu"))
    assert y.dtype == found.dtype
    assert found.dtype.isnative

"""Axes of one place that are dropped, or broadcast, where the elements around that place make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf

ENDS: dict[str, Callable[[Any, int], Any]] = {
    "squeeze": lambda x, axis: np.squeeze(x, axis=axis),
    "index": lambda x, axis: np.take(x, 0, axis=axis),
    "sum": lambda x, axis: x.sum(axis=axis),
    "sum of an index": lambda x, axis: np.take(x, 0, axis=axis).sum(),
    "broadcast": lambda x, axis: np.broadcast_to(x, [5 if a == axis else n for a, n in enumerate(x.shape)]),
    "beside more": lambda x, axis: x + np.arange(4.0).reshape([4 if a == axis else 1 for a in range(x.ndim)]),
    "computed": lambda x, axis: np.squeeze(x * 2 + 1, axis=axis) - 1,
}


@pytest.mark.parametrize("end", ENDS)
@given(data=st.data())
def test_differences_that_leave_one_place(end: str, data: st.DataObject) -> None:
    ndim = data.draw(st.integers(1, 3))
    axis, order = data.draw(st.integers(0, ndim - 1)), data.draw(st.integers(1, 4))
    shape = [order + 1 if a == axis else data.draw(st.integers(1, 9)) for a in range(ndim)]
    dtype = data.draw(st.sampled_from(["i4", "i8", "f4", "f8", "c16"]))
    x = (np.arange(np.prod(shape)) ** 2 % 97).reshape(shape).astype(dtype)

    def of(array: Any) -> Any:
        return ENDS[end](np.diff(array, n=order, axis=axis), axis)

    budget = data.draw(st.sampled_from(["100kB", "1MB"]))
    got = of(cf.open(x)).compute(budget=budget, device="cpu")
    np.testing.assert_array_equal(got, of(x))
    assert np.shape(got) == np.shape(of(x))


def test_windows_that_leave_one_place() -> None:
    x = np.random.default_rng(0).random((20, 5))
    for of in (
        lambda x: np.squeeze(np.lib.stride_tricks.sliding_window_view(x, 5, axis=1).max(axis=-1)),
        lambda x: np.trapezoid(np.diff(x, n=3, axis=1), axis=1),
        lambda x: np.diff(x, n=4, axis=1)[:, 0] + x[:, 2],
    ):
        np.testing.assert_allclose(of(cf.open(x)).compute(budget="100kB", device="cpu"), of(x))

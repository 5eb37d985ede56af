"""What is put together, left out or shifted is NumPy's, or refused where NumPy refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.devices import CHECKING, same
from support.examples import examples

import chunkflow as cf

ARRAYS = npst.arrays(
    st.sampled_from(("?", "i2", "u8", "f4", "c16")), npst.array_shapes(min_dims=1, max_dims=3, max_side=5)
)
X = np.arange(60.0).reshape(3, 4, 5) % 7


def as_numpy(call: Callable[[Any], Any], x: np.ndarray, budget: str) -> None:
    """The same as of the array, with its shape and dtype before it is computed; or an error where NumPy has one."""
    try:
        expected = call(x)
    except (ValueError, IndexError, TypeError):
        with pytest.raises((cf.ChunkflowError, ValueError, IndexError, TypeError)):
            call(cf.open(x))
        return
    lazy = call(cf.open(x))
    assert (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype)
    same(lazy.compute(budget=budget, device="cpu"), expected)


@st.composite
def places(draw: Any, n: int) -> Any:
    """What NumPy takes for places along an axis."""
    one = st.integers(-n, n - 1)
    return draw(
        one
        | st.lists(one, max_size=4)
        | st.builds(slice, one, one, st.sampled_from([None, 1, 2, -1]))
        | st.lists(st.booleans(), min_size=n, max_size=n).map(np.array)
        | st.just(n + 1)
    )


@given(ARRAYS, st.data(), st.sampled_from(["16kB", "64MB"]))
@settings(max_examples=examples(1), deadline=None)
def test_places_are_left_out_and_put_in(x: np.ndarray, data: st.DataObject, budget: str) -> None:
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    obj = data.draw(places(x.size if axis is None else x.shape[axis]))
    as_numpy(lambda a: np.delete(a, obj, axis), x, budget)
    values = data.draw(st.sampled_from([1, [2], np.ones(2, x.dtype), x[:1]]))
    as_numpy(lambda a: np.insert(a, obj, values, axis), x, budget)


@given(ARRAYS, st.integers(-6, 6), st.sampled_from(["16kB", "64MB"]))
@settings(max_examples=examples(1), deadline=None)
def test_triangles(x: np.ndarray, k: int, budget: str) -> None:
    for fn in (np.tril, np.triu):
        as_numpy(lambda a: fn(a, k), x, budget)  # noqa: B023
    as_numpy(lambda a: np.fft.ifftshift(np.fft.fftshift(a, -1)), x, budget)
    as_numpy(lambda a: np.kron(a, np.ones(2, x.dtype)), x, budget) if x.dtype.kind != "?" else None


@pytest.mark.parametrize(
    "call",
    [
        lambda a: np.block([[a[0], a[1]], [a[2], a[0]]]),
        lambda a: np.block([a, a[..., 0:2]]),
        lambda a: np.block([[[a], [a]], [[a * 2], [a]]]),
        lambda a: np.block(a),
        lambda a: np.block([[a], a]),
        lambda a: np.block([]),
        lambda a: np.block((a, a)),
        lambda a: np.cross(a[..., :3], a[:, :1, 1:4]),
        lambda a: np.cross(a[0, 0, :3], a[..., 2:]),
        lambda a: np.cross(a, a),
        lambda a: np.polyval(np.array([2, 1], "f4"), a),
        lambda a: np.ediff1d(a.astype("i4"), to_end=1.5),
        lambda a: np.ediff1d(a > 2),
        lambda a: np.vander(a[0, 0], 0),
        lambda a: np.vander(a[0]),
        lambda a: np.meshgrid(a[0, 0], a[:, 0, 0], indexing="xx"),
        lambda a: np.apply_over_axes(np.cumsum, a, [0, -1]),
        lambda a: np.apply_over_axes(lambda b, axis: np.sum(b), a, [0]),
        lambda a: np.subtract.outer(a[0], a[:, 0, 0]),
        lambda a: np.power.outer(a[0, 0], 2),
    ],
)
def test_as_numpy(call: Callable[[Any], Any]) -> None:
    for budget in ("16kB", "64MB"):
        as_numpy(call, X, budget)


def test_an_expression_among_other_arguments() -> None:
    e = cf.open(X)
    same(np.insert(e, [0, 2], e[:2] * 2, axis=0).compute(device="cpu"), np.insert(X, [0, 2], X[:2] * 2, axis=0))
    for call, match in (
        (lambda: np.insert(X, 1, e[0], axis=0), "chunkflow.open"),
        (lambda: np.delete(e, e[0, 0]), "obj is to be in memory"),
        (lambda: np.polyval(e[0, 0], 2.0), "coefficients"),
        (lambda: np.polyval(e[0, 0], e), "p is to be in memory"),
        (lambda: np.add.outer(e, e, dtype="f4"), "takes no dtype"),
    ):
        with pytest.raises(cf.ChunkflowError, match=match):
            call()


def test_on_other_devices() -> None:
    place = CHECKING[-1]
    found = np.tril(cf.open(X)) + np.fft.fftshift(cf.open(X))
    same(found.compute(device=place.device(), budget=place.budget(100_000)), np.tril(X) + np.fft.fftshift(X))


@pytest.mark.parametrize(("value", "dtype"), [(300, "u1"), (-1, "u8"), (np.nan, "i8"), (1 + 2j, "f8")])
def test_what_a_dtype_cannot_hold_is_not_inserted(value: Any, dtype: str) -> None:
    x = np.zeros(2, dtype)
    with pytest.raises((OverflowError, ValueError, TypeError)) as theirs:
        np.insert(x, 0, value)
    with pytest.raises(theirs.type):
        np.insert(cf.open(x), 0, value)


def test_nothing_is_inserted_into_nothing() -> None:
    x = np.zeros((0, 2))
    for places, values in (([], np.zeros((0, 2))), (slice(0, 0), np.zeros((0, 2))), (0, 5.0), ([0, 0], 5.0)):
        expected = np.insert(x, np.asarray(places, int) if places == [] else places, values, axis=0)
        found = np.insert(cf.open(x), places, values, axis=0)
        np.testing.assert_array_equal(found.compute(device="cpu"), expected)

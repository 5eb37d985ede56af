from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.system import native, past_caches


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of the rows that compiled loops were given."""
    if native.staging is None:
        pytest.skip("no compiled loops")
    found: list[int] = []

    class Noted:
        @staticmethod
        def copy(to: int, start: int, width: int, turned: int, axes: Any) -> None:
            found.append(width)
            staging.copy(to, start, width, turned, axes)

    staging = native.staging
    monkeypatch.setattr(native, "staging", Noted)
    return found


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """A view of a larger array, some axes of which may run backwards, or be others in memory."""
    ndim = len(shape)
    order = draw(st.permutations(range(ndim))) if draw(st.booleans()) else list(range(ndim))
    starts = draw(st.lists(st.integers(0, 3), min_size=ndim, max_size=ndim))
    whole = np.arange(np.prod([n + 3 for n in shape]), dtype="u4").astype("u1")
    whole = whole.reshape([shape[a] + 3 for a in order]).transpose(np.argsort(order))
    view = whole[tuple(slice(start, start + n) for start, n in zip(starts, shape, strict=True))]
    return view[tuple(slice(None, None, draw(st.sampled_from([1, 1, 1, -1]))) for _ in shape)]


@given(data=st.data())
def test_any_two_views_are_copied_and_nothing_beside_them(data: st.DataObject) -> None:
    shape = (
        *data.draw(st.lists(st.integers(1, 9), max_size=3)),
        data.draw(st.sampled_from([1, 511, 512, 700, 40_000])),
    )
    array, out = data.draw(views(shape)), data.draw(views(shape))
    whole = out
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    whole = whole if whole.flags.writeable else whole.copy()
    expected = whole.copy()
    start = out.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    np.ndarray(out.shape, "u1", expected.reshape(-1), start, out.strides)[...] = array
    past_caches.copy(out, array)
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "c16", "?", "M8[s]"])
def test_numbers_of_any_kind(dtype: str, compiled: list[int]) -> None:
    array = np.arange(3 * 5 * 700).reshape(3, 5, 700).astype(dtype)
    past_caches.copy(out := np.zeros((3, 7, 701), dtype)[:, 1:6, 1:], array)
    np.testing.assert_array_equal(out, array)
    assert compiled == [700 * array.itemsize]


def test_short_rows_other_dtypes_and_what_overlaps_are_left_to_numpy(compiled: list[int]) -> None:
    x = np.arange(20_000.0)
    past_caches.copy(out := np.zeros((20_000, 2))[:, 0], x)
    np.testing.assert_array_equal(out, x)
    past_caches.copy(narrow := np.zeros(20_000, "f4"), x)
    np.testing.assert_array_equal(narrow, x.astype("f4"))
    past_caches.copy(x[1:], x[:-1])
    np.testing.assert_array_equal(x[1:], np.arange(19_999.0))
    assert not compiled


@pytest.mark.parametrize("dtype", ["?", "f2", "f4", ">i4", "c8", "c16"])
def test_rows_are_turned_round(dtype: str, compiled: list[int]) -> None:
    array = np.arange(3 * 4 * 1500).reshape(3, 4, 1500).astype(dtype)
    for turned in (array[..., ::-1], array[:, ::-1, ::-1], array[::-1, :, 1::-1], array.reshape(-1)[::-1]):
        past_caches.copy(out := np.zeros(turned.shape, dtype), turned)
        np.testing.assert_array_equal(out, turned)
    past_caches.copy(backwards := np.zeros(array.shape, dtype)[..., ::-1], array)
    np.testing.assert_array_equal(backwards, array)
    size = array.itemsize
    assert compiled == [1500 * size, 4 * 1500 * size, array.nbytes, 1500 * size]


def test_rows_that_follow_one_another_are_one(compiled: list[int]) -> None:
    past_caches.copy(np.zeros((40, 50, 60)), np.ones((40, 50, 60)))
    past_caches.copy(np.zeros((40, 50, 60)), np.broadcast_to(np.ones((50, 60)), (40, 50, 60)))
    assert compiled == [40 * 50 * 60 * 8, 50 * 60 * 8]


def test_a_table_of_no_axes_is_refused() -> None:
    if native.staging is None:
        pytest.skip("no compiled loops")
    for table in (np.zeros(0, "i8"), np.zeros(4, "i8"), np.zeros((65, 3), "i8")):
        with pytest.raises(ValueError, match="table"):
            native.staging.copy(0, 0, 0, 0, table)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.errors import ArgumentError, HostMemoryError
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.stores import memory as array_store
from chunkflow.testing import SinkContract, SourceContract, filled


class TestArraySource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(array)


class TestFortranArraySource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(np.asarray(array, order="F"))


class TestReversedReadOnlyArraySource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        backwards = tuple(slice(None, None, -1) for _ in array.shape)
        kept = np.array(array[backwards], copy=True)
        kept.flags.writeable = False
        return open_source(kept[backwards])


class TestArraySink(SinkContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(np.empty(array.shape, array.dtype))


class TestFortranBigEndianArraySink(SinkContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(np.empty(array.shape, array.dtype.newbyteorder(">"), "F"))


class TestNewArray(SinkContract):
    existing = False

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(None)


@pytest.mark.parametrize(
    ("array", "order"),
    [
        (np.zeros((3, 4, 5)), (0, 1, 2)),
        (np.zeros((3, 4, 5), order="F"), (2, 1, 0)),
        (np.zeros((3, 4, 5)).transpose(1, 0, 2)[::-1], (1, 0, 2)),
        (np.broadcast_to(np.zeros((4, 1)), (3, 4, 5)), (0, 1, 2)),
        (np.zeros((1, 4, 1)), (0, 1, 2)),
        (np.zeros(()), ()),
    ],
)
def test_order_goes_from_slow_to_fast(array: np.ndarray, order: tuple[int, ...]) -> None:
    assert open_source(array).spec.order == order


def test_big_endian_is_read_by_copies_only() -> None:
    assert open_source(np.zeros(3, "f4")).spec.storage.in_memory
    assert not open_source(np.zeros(3, ">f4")).spec.storage.in_memory


def test_a_view_shares_the_array_and_leaves_it_writable() -> None:
    array = filled((4, 5), "f4")
    view = open_source(array).view((slice(1, 3), slice(0, 5)))
    assert view is not None
    assert np.shares_memory(view, array)
    assert array.flags.writeable


def test_commit_returns_the_very_array() -> None:
    out = np.zeros((2, 3))
    target = open_target(out)
    assert target.open(target.describe((2, 3), out.dtype, None)).commit() is out


def test_footprints_tell_the_same_array_from_a_shifted_one() -> None:
    base = np.zeros((10, 4))
    one, same, shifted, apart = (open_source(a).footprint for a in (base[:5], base[:5], base[1:6], base[5:]))
    assert one is not None
    assert same is not None
    assert shifted is not None
    assert apart is not None
    assert one == same == open_target(base[:5]).footprint
    assert one.overlaps(shifted)
    assert one != shifted
    assert not one.overlaps(apart)
    backwards = open_source(base[4::-1]).footprint
    assert backwards is not None
    assert (backwards.start, backwards.stop) == (one.start, one.stop)
    assert backwards != one


def test_an_array_without_elements_overlaps_nothing() -> None:
    base = np.zeros((10, 4))
    empty, full = open_source(base[3:3]).footprint, open_source(base).footprint
    assert empty is not None
    assert full is not None
    assert not empty.overlaps(full)


@pytest.mark.parametrize(
    "out",
    [
        np.broadcast_to(np.zeros(3), (2, 3)),
        np.lib.stride_tricks.as_strided(np.zeros(3), (2, 3), (0, 8)),
        np.lib.stride_tricks.as_strided(np.zeros(4), (3, 2), (8, 8)),
    ],
)
def test_read_only_and_overlapping_outputs_are_refused(out: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match=r"read-only|overlaps itself"):
        open_target(out)


@pytest.mark.parametrize("room", [100, None])
def test_a_result_larger_than_host_memory_is_refused(room: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_store, "available_memory", lambda: room)
    target = open_target(None)
    spec = target.describe((1 << 40, 1 << 20), np.dtype("f8"), None)
    with pytest.raises(HostMemoryError, match=r"out='result\.npy'"):
        target.open(spec)


def test_reading_converts_bytes_not_values() -> None:
    array = np.array([1.5, np.nan, -np.inf, 0.0], ">f4")
    out = np.empty(4, "f4")
    open_source(array).read(whole((4,)), out)
    np.testing.assert_array_equal(out, array)


@pytest.mark.parametrize("code", ["q", "Q", "l", "L"])
def test_integers_that_c_has_two_names_for_are_stored(code: str, tmp_path: Path) -> None:
    """NumPy tells C's long long from its long of equal size. zarr takes one of them."""
    x = np.arange(10).astype(code)
    for out in (cf.NewArray(tmp_path / "x.zarr"), cf.NewArray(tmp_path / "x2.zarr", zarr_format=2)):
        cf.copy(x, out, device="cpu")
        np.testing.assert_array_equal(zarr.open_array(out.path), x)
    cf.map(lambda block: block.astype(code), np.arange(10), out=tmp_path / "m.zarr", device="cpu")
    assert zarr.open_array(tmp_path / "m.zarr").dtype == x.dtype

"""Any region of an array's elements at places or at points is what NumPy has there; nothing else is read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.devices import Place, everywhere, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.core import grid
from chunkflow.core.grid import Region, shape_of
from chunkflow.stores import Source, open_source
from chunkflow.stores.protocol import bytes_held, run_of
from chunkflow.stores.views import marked
from chunkflow.stores.views.assigned import MarkedMask, MarkedValues
from chunkflow.stores.views.marked import MarkedSource, Marks
from chunkflow.stores.views.taken import PointsSource, TakenSource
from chunkflow.testing import CountingSource, SourceContract
from chunkflow.testing.stores import moved_by


def _spread(array: np.ndarray, folder: Path, name: str, places: np.ndarray) -> tuple[Source, np.ndarray]:
    """A source of a larger array, and the places along its first axis that have the array's elements."""
    wide = np.zeros((3 * len(array), *array.shape[1:]), array.dtype)
    wide[places] = array
    if name.endswith(".npy"):
        np.save(folder / name, wide)
    else:
        zarr.create_array(folder / name, data=wide, chunks=[-(-n // 4) or 1 for n in wide.shape], zarr_format=2)
    return open_source(folder / name), places


class TestTakenSource(SourceContract):
    name = "x.zarr"

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        if not array.ndim:  # there is no axis
            return open_source(array)
        return self.some(*_spread(array, tmp_path, self.name, self.spread(len(array))), array.ndim)

    def spread(self, number: int) -> np.ndarray:
        return np.random.default_rng(0).permutation(3 * number)[:number]

    def some(self, source: Source, places: np.ndarray, ndim: int) -> Source:
        return TakenSource(source, [places, *[None] * (ndim - 1)])


class TestTakenFromFile(TestTakenSource):
    name = "x.npy"


class TestPointsSource(TestTakenSource):
    def some(self, source: Source, places: np.ndarray, ndim: int) -> Source:
        return PointsSource(source, [0], places[None], 0)


class TestMarkedSource(TestTakenSource):
    name = "x.npy"

    def some(self, source: Source, places: np.ndarray, ndim: int) -> Source:
        marks = Marks(source.spec.shape[:1], 0)
        mask = np.zeros(source.spec.shape[0], bool)
        mask[places] = True
        marks[grid.whole(mask.shape)] = mask
        return MarkedSource(source, marks.counted(), 0)

    def spread(self, number: int) -> np.ndarray:
        return np.sort(super().spread(number))


def stored(folder: Path, x: np.ndarray) -> list[Any]:
    """The array in stores of several layouts."""
    np.save(folder / "x.npy", x)
    np.save(folder / "f.npy", np.asfortranarray(x))
    zarr.create_array(folder / "x.zarr", data=x, chunks=(3, 4, 5))
    return [x, folder / "x.npy", folder / "f.npy", folder / "x.zarr"]


def regions(shape: tuple[int, ...], number: int) -> list[Region]:
    rng = np.random.default_rng(1)
    return [tuple(slice(a, int(rng.integers(a, n + 1))) for n in shape for a in [int(rng.integers(0, n + 1))])
            for _ in range(number)]  # fmt: skip


PLACES: list[list[list[int] | None]] = [
    [[0, 1, 2, 5, 6], None, None],
    [None, None, [11, 3, 3, 0]],
    [[9, 0, 9], [2, 3, 4, 5], None],
    [[1], [6, 5, 4, 0], [0, 1, 2, 8, 9, 10, 11]],
    [[], None, [1]],
]


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_regions_at_places(places: Any, tmp_path: Path) -> None:
    x = np.arange(10 * 7 * 12).reshape(10, 7, 12)
    wanted = [None if p is None else np.array(p, int) for p in places]
    expected = x[np.ix_(*(np.arange(n) if p is None else p for p, n in zip(wanted, x.shape, strict=True)))]
    for array in stored(tmp_path, x):
        source = TakenSource(open_source(array), wanted)
        for region in regions(expected.shape, 30):
            out = np.full(shape_of(region), -1)
            source.read(region, out)
            np.testing.assert_array_equal(out, expected[region])
        source.close()


@pytest.mark.parametrize(("axes", "at"), [((0, 1), 0), ((0, 2), 0), ((1, 2), 1), ((1,), 1), ((0, 1, 2), 0)])
def test_regions_at_points(axes: tuple[int, ...], at: int, tmp_path: Path) -> None:
    x = np.arange(10 * 7 * 12).reshape(10, 7, 12)
    points = np.stack([np.random.default_rng(axis).integers(0, x.shape[axis], 20) for axis in axes])
    expected = np.moveaxis(np.moveaxis(x, axes, range(len(axes)))[tuple(points)], 0, at)
    for array in stored(tmp_path, x):
        source = PointsSource(open_source(array), axes, points, at)
        assert source.spec.shape == expected.shape
        for region in regions(expected.shape, 30):
            out = np.full(shape_of(region), -1)
            source.read(region, out)
            np.testing.assert_array_equal(out, expected[region])
        source.close()


# -- What is read ------------------------------------------------------------------------------------------------------


def counting(folder: Path, x: np.ndarray, chunks: tuple[int, ...]) -> CountingSource:
    return CountingSource(zarr.create_array(folder / "counted.zarr", data=x, chunks=chunks, overwrite=True))


def test_only_chunks_with_a_wanted_element_are_read(tmp_path: Path) -> None:
    x = np.arange(100 * 40.0).reshape(100, 40)
    source = counting(tmp_path, x, (10, 8))
    np.testing.assert_array_equal(cf.take(source, [3, 91, 95], 0, device="cpu"), x[[3, 91, 95]])
    assert source.bytes_read <= 2 * 10 * 40 * 8
    source = counting(tmp_path, x, (10, 8))
    lazy = cf.open(source)[[3, 91], [39, 0]] + 1
    np.testing.assert_array_equal(lazy.compute(device="cpu"), x[[3, 91], [39, 0]] + 1)
    assert source.bytes_read <= 2 * 10 * 8 * 8
    source = counting(tmp_path, x, (10, 8))
    found = np.sqrt(cf.open(source) * 2)[[95, 3, 3]][:, [0, 9]].sum(0)
    np.testing.assert_allclose(found.compute(device="cpu"), np.sqrt(x * 2)[[95, 3, 3]][:, [0, 9]].sum(0))
    assert source.bytes_read <= 2 * 2 * 10 * 8 * 8, "two rows of chunks, and two chunks of each"


def test_only_chunks_with_an_element_of_a_flattened_expression_are_read(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((100, 40))
    source = counting(tmp_path, x, (10, 8))
    for places in ([[3, -1], [400, 3]], 1234, []):
        same(np.take(cf.open(source) * 2, places).compute(device="cpu"), np.take(x * 2, places))
    assert source.bytes_read <= 2 * 4 * 10 * 8 * 8, "four chunks hold one"
    same(np.take(cf.open(source), np.arange(x.size), mode="wrap").compute(device="cpu"), x.reshape(-1))


def test_sorted_places_are_read_once(tmp_path: Path) -> None:
    x = np.arange(3000 * 40.0).reshape(3000, 40)
    source = counting(tmp_path, x, (10, 40))
    places = np.flatnonzero(np.arange(3000) % 30 < 12)
    np.testing.assert_array_equal(cf.take(source, places, 0, device="cpu", budget="1MB"), x[places])
    assert source.bytes_read <= 1.2 * 2 * x.nbytes / 3, "two chunks of three, and those that a block cuts once more"


def test_places_in_any_order_are_read_once_where_there_is_room(tmp_path: Path) -> None:
    x = np.arange(3000 * 40.0).reshape(3000, 40)
    source = counting(tmp_path, x, (10, 40))
    places = np.random.default_rng(0).permutation(3000)
    np.testing.assert_array_equal(cf.take(source, places, 0, device="cpu", budget="64MB"), x[places])
    assert source.bytes_read == x.nbytes


def test_an_index_that_changes_later_changes_nothing() -> None:
    x, index = np.arange(5), np.array([3, 1])
    lazy = cf.open(x)[index]
    index[:] = 0
    np.testing.assert_array_equal(lazy.compute(device="cpu"), [3, 1])


# -- Marks -------------------------------------------------------------------------------------------------------------


def test_only_chunks_with_a_marked_element_are_read_the_second_time(tmp_path: Path) -> None:
    x = np.zeros((100, 40, 30))
    x[3:9, 11, 4:20], x[55, 2, 29] = 1 + np.arange(16.0), 5
    source = counting(tmp_path, x, (10, 8, 10))
    lazy = cf.open(source)
    picked = lazy[lazy > 2]
    counted = source.bytes_read
    assert picked.shape == x[x > 2].shape
    np.testing.assert_array_equal((picked * 2).compute(device="cpu"), x[x > 2] * 2)
    assert source.bytes_read <= counted + 4 * 10 * 8 * 10 * 8, "three chunks hold one, and one is tried"


@pytest.mark.parametrize("budget", ["400kB", "4MB"])
def test_masks_of_arrays_beyond_the_budget(budget: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((200, 60, 90))
    for name in ("x.npy", "x.zarr"):
        np.save(tmp_path / name, x) if name == "x.npy" else zarr.create_array(
            tmp_path / name, data=x, chunks=(9, 20, 30)
        )
        with cf.Budget(budget):
            lazy = cf.open(tmp_path / name)
            found = lazy[lazy > 0.7].to_npy(tmp_path / "y.npy", device="cpu", overwrite=True)
        np.testing.assert_array_equal(found, x[x > 0.7])
        np.save(tmp_path / "mask.npy", x > 0.4)
        found = cf.extract(tmp_path / "mask.npy", tmp_path / name, budget=budget, device="cpu")
        np.testing.assert_array_equal(found, x[x > 0.4])
        found = cf.argwhere(
            tmp_path / "mask.npy", out=tmp_path / "places.npy", budget=budget, device="cpu", overwrite=True
        )
        np.testing.assert_array_equal(found[...], np.argwhere(x > 0.4))


@given(npst.arrays(bool, npst.array_shapes(max_dims=3, max_side=20)), st.data())
@settings(max_examples=examples(1), deadline=None)
def test_marks_know_places_and_ranks(mask: np.ndarray, data: st.DataObject) -> None:
    marks = Marks(mask.shape, data.draw(st.sampled_from([0, 1 << 20])))
    for region in grid.regions(mask.shape, tuple(data.draw(st.integers(1, n)) for n in mask.shape)):
        marks[region] = mask[region]
    assert marks.counted().number == mask.sum()
    places = np.flatnonzero(mask)
    assert [marks.place(n) for n in range(len(places))] == places.tolist()
    np.testing.assert_array_equal(marks.rank(np.arange(mask.size)), np.cumsum(mask) - mask.reshape(-1))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(places))] * 2)))
    np.testing.assert_array_equal(np.concatenate([np.empty(0, int), *marks.places(start, stop)]), places[start:stop])


@pytest.mark.parametrize("form", ["memory", "npy", "zarr"])
@given(data=st.data())
@settings(max_examples=examples(1), deadline=None)
def test_regions_of_marked_elements_that_are_moved_some_at_a_time(
    form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    at = data.draw(st.integers(0, len(shape) - 1))
    end = data.draw(st.integers(at + 1, len(shape)))
    mask = data.draw(npst.arrays(bool, shape[at:end]))
    x = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    few = {"AT_ONCE": 7, "BITS": 40, "ROWS": 2, "PLACES": 5, "STRIP": 64}
    with pytest.MonkeyPatch.context() as patch:
        for name, number in few.items():
            patch.setattr(marked, name, number)
        marks = Marks(mask.shape, data.draw(st.sampled_from([0, 1 << 20])))
        marks[grid.whole(mask.shape)] = mask
        marks.counted()
        array: Any = x
        if form != "memory":
            array = tmp_path_factory.mktemp("marked") / f"x.{form}"
            chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
            np.save(array, x) if form == "npy" else zarr.create_array(array, data=x, chunks=chunks)
        expected = x[(*(slice(None),) * at, mask)]
        source = MarkedSource(open_source(array), marks, at)
        sides = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in expected.shape]
        region = tuple(slice(*side) for side in sides)
        source.read(region, out := np.empty(shape_of(region), "i4"))
        np.testing.assert_array_equal(out, expected[region])
        np.testing.assert_array_equal(
            np.concatenate([np.empty(0, int), *marks.places(0, marks.number)]), np.flatnonzero(mask)
        )
        values, x[...] = MarkedValues(marks, open_source(np.arange(1, marks.number + 1))), 0
        put = np.zeros(mask.shape, int)
        put[mask] = np.arange(1, marks.number + 1)
        region = tuple(slice(*sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in mask.shape)
        for one, right in ((values, put), (MarkedMask(marks), mask)):
            one.read(region, out := np.empty(shape_of(region), right.dtype))
            np.testing.assert_array_equal(out, right[region])


def test_marks_that_several_sources_have_are_there_once() -> None:
    marks = Marks((100, 100), 1 << 20)
    marks[0:100, 0:100] = np.eye(100, dtype=bool)
    x = np.arange(10_000.0).reshape(100, 100)
    one, other = (MarkedSource(open_source(array), marks.counted(), 0) for array in (x, x + 1))
    assert bytes_held([one, other, MarkedMask(marks)]) == marks.held > 100 * 100 // 8
    assert bytes_held([MarkedSource(open_source(x), Marks((100, 100), 0), 0)]) == 0, "in a file"


def test_marks_travel_as_far_as_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.random.default_rng(0).random((7, 30)) < 0.3
    marks = Marks(mask.shape, 1 << 20)
    marks[0:7, 0:30] = mask
    received = pickle.loads(pickle.dumps(marks.counted()))
    assert received.number == mask.sum()
    np.testing.assert_array_equal(np.concatenate(list(received.places(0, received.number))), np.flatnonzero(mask))
    monkeypatch.setattr("chunkflow.stores.views.marked.SENT", 10)
    with pytest.raises(cf.errors.ArgumentTypeError, match="Up to 10 B are pickled"):
        pickle.dumps(marks)


@pytest.mark.parametrize("chunks", [(32, 25), (320, 10), (1, 400)])
@pytest.mark.parametrize("budget", ["150kB", "64MB"])
def test_elements_of_a_flattened_array_need_no_budget_for_a_row_of_chunks(
    tmp_path: Path, chunks: Any, budget: str
) -> None:
    x = np.arange(128_000.0).reshape(320, 400)
    stored = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=chunks, dtype="f8", compressors=None)
    stored[...] = x
    places = np.random.default_rng(0).integers(-x.size, x.size, 300)
    condition = np.arange(700) % 7 == 0
    for wanted in (places, np.sort(places % x.size), places.reshape(20, 15), places[0]):
        same(cf.take(stored, wanted, budget=budget, device="cpu"), np.take(x, wanted))
    same(cf.compress(condition, stored, budget=budget, device="cpu"), np.compress(condition, x))


def test_indices_that_are_a_path_are_to_be_opened() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=r"path 'places\.zarr'.*chunkflow\.open\(indices\)"):
        cf.take(np.arange(9.0), "places.zarr", device="cpu")


@settings(max_examples=examples(100))
@given(
    shape=npst.array_shapes(min_dims=1, max_dims=4, max_side=7),
    order=st.sampled_from("CF"),
    dtype=st.sampled_from(["f8", ">f4", "c16"]),
    data=st.data(),
)
def test_compiled_loops_are_told_where_rows_at_places_lie(
    shape: tuple[int, ...], order: Any, dtype: str, data: st.DataObject
) -> None:
    array = np.arange(np.prod(shape) * 64).reshape(*shape, 64).astype(dtype, order=order)
    array = array.transpose(data.draw(st.permutations(range(array.ndim))))
    axis = data.draw(st.integers(0, array.ndim - 1))
    n = array.shape[axis]
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9)))
    source = TakenSource(open_source(array), [places if a == axis else None for a in range(array.ndim)])
    region = tuple(
        slice(*sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2)))) for n in source.spec.shape
    )
    run, wanted = run_of(source, region), np.take(array, places, axis)[region]
    if run is not None:
        in_order = wanted.transpose(source.spec.order)
        found = moved_by(run, in_order.dtype.newbyteorder("="), in_order.shape)
        np.testing.assert_array_equal(found, in_order)


def test_rows_of_whole_planes_are_one_run_with_places() -> None:
    array = np.arange(6.0 * 8 * 100).reshape(6, 8, 100)
    source = TakenSource(open_source(array), [None, np.array([7, 0, 0, 3]), None])
    run = run_of(source, (slice(2, 5), slice(1, 4), slice(0, 100)))
    assert run is not None
    assert run.rows is not None
    assert (run.width, run.height, run.plane, run.rows.tolist()) == (800, 3, 6400, [0, 0, 2400])
    assert run_of(source, (slice(2, 5), slice(1, 4), slice(0, 9))) is None, "short rows are NumPy's"


@everywhere
def test_rows_at_places_reach_every_device(place: Place) -> None:
    x = np.random.default_rng(0).random((40, 30, 200), dtype="f4")
    run = {"budget": place.budget(1_000_000), "device": place.device()}
    same(np.delete(cf.open(x), slice(None, None, 9), axis=1).compute(**run), np.delete(x, slice(None, None, 9), axis=1))
    counts = [i % 3 for i in range(30)]
    same(np.repeat(cf.open(x), counts, axis=1).compute(**run), np.repeat(x, counts, axis=1))
    swapped = x.astype(">f4")
    same(cf.open(swapped)[[5, 3, 3, 39]].compute(**run), x[[5, 3, 3, 39]])

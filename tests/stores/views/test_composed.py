"""Any region of what is put together is what NumPy has there; each element is read once, into place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.api.rearrange.join import MODES
from chunkflow.core import arrangement as ops
from chunkflow.core.grid import shape_of, within
from chunkflow.stores import open_source
from chunkflow.stores.protocol import run_of
from chunkflow.stores.views import composed
from chunkflow.stores.views.composed import ComposedSource
from chunkflow.testing import CountingSource, filled
from chunkflow.testing.stores import moved_by

DTYPES = ("?", "i1", "u2", "i8", "f4", "f8", "c16")
SHAPE = (7, 9)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[np.ndarray, str], Any]:
    """An array as it may lie in a store."""
    folder = tmp_path_factory.mktemp("composed")

    def store(x: np.ndarray, kind: str) -> Any:
        path: Path = folder / f"{x.dtype}.{kind}"
        if kind == "zarr" and not path.exists():
            zarr.create_array(path, shape=x.shape, dtype=x.dtype, chunks=(3, 4))[...] = x
        elif kind in ("C.npy", "F.npy") and not path.exists():
            np.save(path, np.asarray(x, order=kind[0]))  # type: ignore[call-overload]
        return {"array": x, "asked": CountingSource(x)}.get(kind, path)

    return store


@st.composite
def axes(draw: Any, n: int) -> Any:
    """An axis and the places of the source along it, -1 for none."""
    width = st.integers(0, 30)
    axis = draw(
        st.one_of(
            st.sampled_from([ops.straight(n), ops.flipped(n)]),
            st.builds(ops.rolled, st.just(n), st.integers(-9, 9)),
            st.builds(ops.repeated, st.just(n), st.integers(1, 9)),
            st.builds(ops.padded, st.just(n), width, width, st.sampled_from([m for m in MODES if m != "constant"])),
        )
    )
    places = np.empty(axis.length, int)
    for p in axis.parts(0, axis.length):
        source = np.arange(p.source.start, p.source.stop)[:: -1 if p.back else 1]
        places[p.place] = np.repeat(source, p.times)[p.skip :][: p.place.stop - p.place.start]
    return axis, places


@pytest.mark.parametrize("kind", ["array", "asked", "C.npy", "F.npy", "zarr"])
@given(data=st.data())
def test_any_region_is_what_numpy_has_there(stored: Any, kind: str, data: Any) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    wider = data.draw(st.sampled_from([d for d in DTYPES if np.result_type(d, dtype) == d]))
    x = filled(SHAPE, dtype)
    made = [data.draw(axes(n)) for n in SHAPE]
    expected = x[np.ix_(*[places for _, places in made])].astype(wider)
    source = open_source(stored(x, kind))
    arrangement = ops.Separable(tuple(axis for axis, _ in made))
    whole = ComposedSource([source], arrangement, np.dtype(wider))
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in expected.shape]
    region = tuple(slice(*pair) for pair in bounds)
    order = data.draw(st.sampled_from("CF"))
    block = np.zeros(tuple(n + 2 for n in shape_of(region)), wider, order)
    with mock.patch.object(composed, "STRIP", data.draw(st.sampled_from([64, 256, 256 << 10]))):
        whole.read(region, block[1:-1, 1:-1])
    np.testing.assert_array_equal(block[1:-1, 1:-1], expected[region])
    block[1:-1, 1:-1] = 0
    assert not block.any(), "nothing beyond the region is touched"
    whole.close()


@pytest.mark.parametrize("times", [2, 3, 50])
@pytest.mark.parametrize("start", [0, 1, 2, 4])
def test_each_element_is_read_once_however_often_it_comes(times: int, start: int) -> None:
    x = filled((40, 3), "i4")
    asked = CountingSource(x)
    arrangement = ops.Separable((ops.repeated(40, times), ops.straight(3)))
    whole = ComposedSource([open_source(asked)], arrangement, np.dtype("f8"))
    expected = np.repeat(x, times, 0).astype("f8")[start : 20 * times + 1]
    block = np.empty_like(expected)
    whole.read((slice(start, 20 * times + 1), slice(0, 3)), block)
    np.testing.assert_array_equal(block, expected)
    elements = 20 + 1 - start // times
    assert asked.bytes_read == elements * 3 * x.itemsize
    assert asked.reads <= 2


def test_numbers_of_no_axis() -> None:
    whole = ComposedSource([open_source(np.array(7, "i2"))], ops.Separable(()), np.dtype("f8"))
    block = np.zeros((), "f8")
    whole.read((), block)
    assert block == 7


@given(st.data())
def test_boxes_of_what_is_joined_of_joined_arrays(data: st.DataObject) -> None:
    """Boxes lie in memory, but narrow ones, and all of them make up the region."""
    wide = 2000
    rows, columns = (data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)) for _ in range(2))
    parts = [[np.random.default_rng(0).random((n, wide * m)) for m in columns] for n in rows]
    whole = np.block(parts)
    joined = np.block([[cf.open(part) for part in row] for row in parts])
    source: Any = open_source(joined)
    seen = [source.seen(box) for box in source.boxes(tuple(slice(0, n) for n in whole.shape))]
    assert [None if box is None else box.shape for box in seen] == [part.shape for row in parts for part in row]
    cuts = tuple(slice(data.draw(st.integers(0, n - 1)), None) for n in whole.shape)
    source, whole = data.draw(st.sampled_from([(source, whole), (open_source(joined[cuts]), whole[cuts])]))
    starts = [data.draw(st.integers(0, n - 1)) for n in whole.shape]
    region = tuple(slice(a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, whole.shape, strict=True))
    found = np.full(shape_of(region), np.nan)
    for box in source.boxes(region):
        view = source.seen(box)
        assert (source.run(box) is None) == (view is None)
        if view is None:  # rows that are too short to be moved apart
            view = np.empty(shape_of(box))
            source.read(box, view)
        found[within(box, region)] = view
    np.testing.assert_array_equal(found, whole[region])


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_loops_fill_boxes_from_one_row(dtype: str) -> None:
    x = filled((40, 300), dtype)
    value = 1 if dtype == "?" else 7
    axes = [ops.padded(n, 50, 90, "constant", (value, value)) for n in x.shape]
    source = ComposedSource([open_source(x)], ops.Separable(tuple(axes)), np.dtype(dtype))
    expected = np.pad(x, ((50, 90),) * 2, constant_values=value)
    for region in ((slice(3, 44), slice(0, 440)), (slice(60, 80), slice(2, 50)), (slice(130, 131), slice(399, 440))):
        [box] = source.boxes(region)
        run = run_of(source, box)
        assert run is not None
        np.testing.assert_array_equal(moved_by(run, source.spec.dtype, shape_of(region)), expected[region])


def test_elements_of_files_become_narrower_by_strips(tmp_path: Path) -> None:
    """Of a block in which a strip has more of the narrow elements than of the file's."""
    x = np.random.default_rng(0).random((24, 128, 128), "f4")
    np.save(tmp_path / "x.npy", x)
    stack = np.stack([cf.open(tmp_path / "x.npy")] * 2, dtype="f2", casting="unsafe")
    np.testing.assert_array_equal(stack.compute(budget="4MB", device="cpu"), np.stack([x, x]).astype("f2"))

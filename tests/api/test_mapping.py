"""`map` does what NumPy does on the whole array, to the bit, whatever the arrays, the cut and the device."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.devices import CPU, Place, everywhere, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.testing import CountingSource, FailingArray, filled

DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i2", ">c16")
SOURCES = ("ndarray", "memmap", "npy", "zarr2", "zarr3", "sharded", "group", "generic")
SINKS = ("none", "ndarray", "fortran", "memmap", "npy", "zarr", "zarr.Array", "generic")
LAYOUTS = ("C", "F", "permuted", "negative", "sliced")

thorough = settings(
    max_examples=examples(1 / 2),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


# -- What is fed in and taken out ----------------------------------------------------------------------------


def noise(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Random values, a NaN and a minus zero among them where the dtype has them."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-100, 100, shape)
    array = np.asarray(values + 1j * values[..., ::-1] if np.dtype(dtype).kind == "c" and shape else values)
    array = np.array(array.astype(dtype))
    if array.dtype.kind in "fc" and array.size > 3:
        array.flat[rng.integers(array.size)] = np.nan
        array.flat[rng.integers(array.size)] = -0.0
    return array


def laid(array: np.ndarray, layout: str) -> np.ndarray:
    """The same values in another memory layout."""
    ndim = array.ndim
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "permuted" and ndim:
        order = (*range(1, ndim), 0)
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if layout == "negative" and ndim:
        back = (slice(None, None, -1),) * ndim
        return array[back].copy()[back]
    if layout == "sliced" and ndim:
        wide = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)
        odd = tuple(slice(1, 2 * n, 2) for n in array.shape)
        wide[odd] = array
        return wide[odd]
    return array


def source(kind: str, array: np.ndarray, folder: Path) -> Any:
    """The array in a store of this kind."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    if kind == "memmap" and array.size:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        kept = np.memmap(folder / "raw.bin", array.dtype, "w+", offset=24, shape=array.shape, order=order)
        kept[...] = array
        kept.flush()
        return np.memmap(folder / "raw.bin", array.dtype, "r", offset=24, shape=array.shape, order=order)
    if kind == "npy":
        np.save(folder / "x.npy", array)
        return str(folder / "x.npy")
    if kind in ("zarr2", "zarr3", "sharded", "group") and array.ndim:
        name = "g/x" if kind == "group" else None
        chunks = tuple(max(1, n // 3) for n in array.shape)
        made = zarr.create_array(
            folder / "s.zarr",
            name=name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=chunks,
            shards=tuple(2 * n for n in chunks) if kind == "sharded" else None,
            zarr_format=2 if kind == "zarr2" else 3,
        )
        made[...] = array
        return str(folder / "s.zarr" / (name or ""))
    return CountingSource(array) if kind == "generic" else array


class Sink:
    """Somewhere to write an array of known shape and dtype: `out` is what `map` gets."""

    def __init__(self, kind: str, shape: tuple[int, ...], dtype: Any, folder: Path) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder))
        self.kind, self.out, self._memory = kind, None, None
        if kind in ("ndarray", "fortran", "generic") or (kind == "memmap" and not math.prod(shape)):
            self.out = self._memory = np.zeros(shape, dtype, order="F" if kind == "fortran" else "C")
        if kind == "generic":
            self.out = FailingArray(self._memory, after=1 << 60)
        elif kind == "memmap" and self.out is None:
            self.out = np.memmap(folder / "raw.bin", dtype, "w+", offset=16, shape=shape)
        elif kind in ("npy", "zarr"):
            self.out = folder / f"y.{kind}"
        elif kind == "zarr.Array":
            chunks = tuple(max(1, n // 2) for n in shape)
            self.out = zarr.create_array(folder / "y.zarr", shape=shape, dtype=dtype, chunks=chunks)

    def values(self, returned: Any) -> np.ndarray:
        """What was written, after checking that `map` returned the sink itself, opened."""
        if self.kind == "generic":
            assert returned is self.out
            assert self._memory is not None
            return self._memory
        if self.kind in ("ndarray", "fortran", "memmap", "zarr.Array"):
            assert returned is self.out
        return np.asarray(returned[...])


def run(place: Place, budget: int, fn: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """`map` with the budget, or the smallest that will do if that is more."""
    least = place.budget(budget)
    for _ in range(9):
        try:
            return cf.map(fn, *arrays, budget=least, device=place.device(), **options)
        except cf.BudgetError as error:
            # A trial on few elements also measures what Python itself allocates, which varies a little.
            least, before = error.smallest or 0, least
        assert least > before, "the error names a budget that is enough"
    raise AssertionError(f"no budget is enough: {least} bytes were promised to be")


def total(*values: Any) -> Any:
    """Exact on every device, in every dtype."""
    with np.errstate(all="ignore"):
        return functools.reduce(operator.add, values)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """0-d to 4-d, with sides of 0 and 1 among them."""
    ndim = draw(st.integers(0, 4))
    most = (0, 400, 40, 12, 6)[ndim]
    sides = st.one_of(st.integers(1, most), st.sampled_from([0, 1, most])) if ndim else st.nothing()
    return tuple(draw(sides) for _ in range(ndim))


@st.composite
def broadcast(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to the one given: sides of 1, leading ones left out."""
    kept = tuple(n if draw(st.integers(0, 3)) else 1 for n in shape)
    return kept[draw(st.integers(0, len(kept))) :] if not draw(st.integers(0, 3)) else kept


# -- Random runs ---------------------------------------------------------------------------------------------


@everywhere
@given(data=st.data())
@thorough
def test_random_runs_equal_numpy(place: Place, tmp_path: Path, data: st.DataObject) -> None:
    shape = data.draw(shapes(), "shape")
    arrays = []
    for _ in range(data.draw(st.integers(1, 3), "arrays")):
        own = data.draw(broadcast(shape))
        values = noise(own, data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 99)))
        arrays.append(laid(values, data.draw(st.sampled_from(LAYOUTS))))
    scalar = data.draw(st.sampled_from([(), (2,), (True,)]), "scalars")
    expected = np.asarray(total(*(a.astype(a.dtype.newbyteorder("=")) for a in arrays), *scalar))
    kinds = [data.draw(st.sampled_from(SOURCES)) for _ in arrays]
    sink = Sink(data.draw(st.sampled_from(SINKS)), expected.shape, expected.dtype, tmp_path)
    chunks = None
    if sink.kind != "zarr.Array" and data.draw(st.booleans(), "fixed blocks"):
        chunks = tuple(data.draw(st.integers(-(-n // 4) or 1, max(n, 1))) for n in expected.shape)
    nbytes = max(1, sum(a.nbytes for a in arrays) + expected.nbytes)
    budget = max(1, int(nbytes * data.draw(st.sampled_from([0.02, 0.1, 0.3, 1, 4, 100]), "budget")))

    given_arrays = [source(kind, a, tmp_path) for kind, a in zip(kinds, arrays, strict=True)]
    returned = run(place, budget, total, *given_arrays, *scalar, out=sink.out, chunks=chunks)

    same(sink.values(returned), expected)


@on_cpu_and_gpu
@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_into_every_sink(place: Place, kind: str, sink: str, tmp_path: Path) -> None:
    test_each_source_and_each_sink(place, kind, sink, tmp_path)


@everywhere
@pytest.mark.parametrize(("kind", "sink"), [*zip(SOURCES, SINKS, strict=True), *zip(SOURCES, SINKS[::-1], strict=True)])
def test_each_source_and_each_sink(place: Place, kind: str, sink: str, tmp_path: Path) -> None:
    x = filled((11, 13, 7), "f4")
    given_array = source(kind, x, tmp_path)
    target = Sink(sink, x.shape, x.dtype, tmp_path)

    returned = run(place, 3000, lambda x: x * x - 1, given_array, out=target.out)

    same(target.values(returned), x * x - 1)


@everywhere
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(place: Place, dtype: str) -> None:
    x = noise((9, 31), dtype, 5)
    same(run(place, 400, lambda x: x, x), x.astype(x.dtype.newbyteorder("=")))


def test_extended_precision_where_numpy_has_it(tmp_path: Path) -> None:
    x = noise((50, 40), "g", 3) / np.longdouble(3)
    np.save(tmp_path / "x.npy", x)
    for given_array in (x, tmp_path / "x.npy"):
        same(cf.map(np.negative, given_array, budget="20kB", device="cpu"), -x)


@everywhere
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1, 1), (7,), (13, 1), (1, 13)])
@pytest.mark.parametrize("sink", ["none", "npy", "zarr"])
def test_odd_shapes(place: Place, shape: tuple[int, ...], sink: str, tmp_path: Path) -> None:
    x = filled(shape, "f8")
    target = Sink(sink, shape, "f8", tmp_path)
    same(target.values(run(place, 1, np.sqrt, x, out=target.out)), np.sqrt(x))


@everywhere
def test_blocks_of_one_element(place: Place) -> None:
    x = filled((4, 5), "f4")
    blocks = []

    def note(x: Any) -> Any:
        blocks.append(x.shape)
        return x + x

    same(run(place, 1, note, x, chunks=1), x + x)
    assert blocks.count((1, 1)) >= x.size


@everywhere
@pytest.mark.parametrize("chunks", [(5, 7), (100, 100), (40, 1)])
def test_chunks_larger_than_the_array_or_ragged_at_its_edge(
    place: Place, chunks: tuple[int, int], tmp_path: Path
) -> None:
    x = filled((40, 33), "i4")
    made = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=chunks)
    made[...] = x
    y = run(place, 100_000, lambda x: x + 1, made, out=tmp_path / "y.zarr")
    same(y[...], x + 1)
    assert y.chunks == tuple(min(c, n) for c, n in zip(chunks, x.shape, strict=True))


@everywhere
@pytest.mark.parametrize("where", ["memory", "npy", "memmap"])
def test_fortran_order_in_and_out(place: Place, where: str, tmp_path: Path) -> None:
    x = np.asfortranarray(filled((21, 17, 9), "f4"))
    given_array: Any = x
    if where == "npy":
        np.save(tmp_path / "x.npy", x)
        given_array = tmp_path / "x.npy"
    elif where == "memmap":
        given_array = source("memmap", x, tmp_path)
    out = np.memmap(tmp_path / "y.bin", "f4", "w+", shape=x.shape, order="F")
    assert run(place, 3000, lambda x: x - 1, given_array, out=out) is out
    same(out, x - 1)


@everywhere
def test_missing_chunks_are_the_fill_value(place: Place, tmp_path: Path) -> None:
    sparse = zarr.create_array(tmp_path / "x.zarr", shape=(30, 30), dtype="f4", chunks=(7, 7), fill_value=3)
    sparse[:7, :7] = 1
    same(run(place, 2000, lambda x: x + 1, tmp_path / "x.zarr"), sparse[...] + 1)


# -- Broadcasting, and what is read how often ----------------------------------------------------------------


@everywhere
@pytest.mark.parametrize(
    "shapes",
    [((1, 50), (40, 1)), ((40, 50), (50,)), ((40, 50), ()), ((3, 1, 8), (5, 1), (3, 5, 8)), ((1, 1), (6, 7))],
)
def test_broadcasting(place: Place, shapes: list[tuple[int, ...]]) -> None:
    arrays = [noise(shape, "i4", n) for n, shape in enumerate(shapes)]
    same(run(place, 2000, total, *arrays), total(*arrays))


@everywhere
@pytest.mark.parametrize("shapes", [((2, 2, 0), (1, 1, 1)), ((2, 2, 1), (1, 1, 0)), ((0, 3), (2, 1, 1))])
def test_broadcasting_with_an_empty_axis(place: Place, shapes: list[tuple[int, ...]]) -> None:
    arrays = [filled(shape, "f4") for shape in shapes]
    same(run(place, 2000, total, *arrays), total(*arrays))


@everywhere
@pytest.mark.parametrize("axis", [0, 1])
def test_each_element_is_read_once_also_where_it_is_broadcast(place: Place, axis: int) -> None:
    shape = [60, 70]
    shape[axis] = 1
    table, line = CountingSource(noise((60, 70), "f8", 0)), CountingSource(noise(tuple(shape), "f8", 1))
    blocks = []

    def add(a: Any, b: Any) -> Any:
        blocks.append(a.shape)
        return a + b

    expected = np.asarray(table[...]) + line[...]
    table.bytes_read = line.bytes_read = 0
    chunks = (7, -1) if axis == 0 else (-1, 7)
    got = cf.map(
        add, table, line, budget=place.budget(200_000), device=place.device(), chunks=chunks, dtype="f8", workspace=0
    )
    same(got, expected)
    assert len(blocks) >= 9
    assert table.bytes_read == 60 * 70 * 8
    assert line.bytes_read == math.prod(shape) * 8, "it is on the device all the while"


@everywhere
def test_two_lines_make_a_table(place: Place) -> None:
    row, column = CountingSource(noise((1, 90), "f4", 0)), CountingSource(noise((80, 1), "f4", 1))
    options = {"dtype": "f4", "workspace": 0, "chunks": (10, -1), "device": place.device()}
    got = cf.map(operator.add, row, column, budget=place.budget(20_000), **options)
    assert (row.bytes_read, column.bytes_read) == (90 * 4, 80 * 4)
    same(got, row[...] + column[...])


@everywhere
def test_the_trial_call_reads_little(place: Place) -> None:
    x = CountingSource(noise((200, 300), "f8", 0))
    cf.map(operator.neg, x, budget=place.budget(100_000), device=place.device())
    assert x.bytes_read <= 200 * 300 * 8 * (2 if place.is_gpu else 1.1)


# -- Options -------------------------------------------------------------------------------------------------


@everywhere
def test_scalars_and_keywords_pass_through(place: Place) -> None:
    x = filled((20, 30), "f4")

    def scale(x: Any, factor: float, nothing: None, *, offset: int, label: str, name: str) -> Any:
        assert nothing is None
        assert (label, name) == ("n", "n")
        return x * factor + offset

    named = functools.partial(scale, name="n")  # `name=` is the call's own
    same(run(place, 1000, named, x, 2.0, None, offset=1, label="n"), x * 2.0 + 1)
    same(run(place, 1000, lambda a, x: a - x, np.float64(2), x), np.float64(2) - x)


@everywhere
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_dtype_casts_the_result(place: Place, dtype: str) -> None:
    x = filled((20, 30), "f8")
    got = run(place, 3000, lambda x: x * 2, x, dtype=dtype)
    same(got, (x * 2).astype(dtype))


@everywhere
def test_a_sink_casts_by_the_same_kind_rule(place: Place) -> None:
    x = filled((20, 30), "f8")
    out = np.zeros((20, 30), "f4")
    assert run(place, 3000, lambda x: x * 2, x, out=out) is out
    same(out, (x * 2).astype("f4"))


@everywhere
def test_dtype_and_workspace_replace_the_trial_call(place: Place) -> None:
    calls = []

    def note(x: Any) -> Any:
        calls.append(x.shape)
        return x + 1

    x = filled((30, 20), "f4")
    got = cf.map(note, x, chunks=(10, -1), dtype="f4", workspace=0, device=place.device(), budget=place.budget(1 << 20))
    same(got, x + 1)
    assert calls == [(10, 20)] * 3 if place.lanes == 1 else sorted(calls) == [(10, 20)] * 3


@everywhere
@pytest.mark.parametrize("chunks", [7, (7, -1), (None, 11), ((7, 7, 6), (11, 11, 8)), (1, 30)])
def test_chunks_fix_the_blocks(place: Place, chunks: Any) -> None:
    seen = set()

    def note(x: Any, block_id: tuple[int, ...]) -> Any:
        seen.add((block_id, x.shape))
        return x - 1

    x = filled((20, 30), "i2")
    got = run(place, 8000, note, x, chunks=chunks, dtype="i2", workspace=0)
    same(got, x - 1)
    sides = (7, 7) if chunks == 7 else tuple(c[0] if isinstance(c, tuple) else c for c in chunks)
    sides = tuple(n if s in (None, -1) else s for s, n in zip(sides, x.shape, strict=True))
    grid = itertools.product(*(range(-(-n // s)) for n, s in zip(x.shape, sides, strict=True)))
    assert seen == {
        (index, tuple(min(s, n - i * s) for i, s, n in zip(index, sides, x.shape, strict=True))) for index in grid
    }


@everywhere
@pytest.mark.parametrize("n", [24, 21, 1, 2])
def test_functions_that_resize_their_blocks(place: Place, n: int) -> None:
    x = filled((n, 10), "f4")
    same(run(place, 4000, lambda x: x[::2], x, chunks=(2, -1)), x[::2])
    same(run(place, 4000, lambda x: np.repeat(x, 2, axis=0), x, chunks=(4, 10)), np.repeat(x, 2, axis=0))
    same(run(place, 4000, lambda x: np.repeat(x, 3, axis=1), x, chunks=(5, 6)), np.repeat(x, 3, axis=1))


@everywhere
@pytest.mark.parametrize("axis", [0, 1, 2, -1, (0, 2), (0, 1, 2)])
def test_dropped_axes_are_whole(place: Place, axis: Any) -> None:
    x = filled((9, 10, 11), "i8")
    same(run(place, 6000, lambda x: x.sum(axis=axis), x, drop_axis=axis), x.sum(axis=axis))


@everywhere
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_new_axes_are_filled_by_each_block(place: Place, axis: int) -> None:
    x = filled((30, 20), "f4")

    def both(x: Any) -> Any:
        return np.stack([x, x * x, -x], axis=axis)

    same(run(place, 5000, both, x, new_axis=axis), both(x))


@everywhere
def test_one_axis_goes_and_another_comes(place: Place) -> None:
    x = filled((8, 9, 10), "f8")

    def spread(x: Any) -> Any:
        return np.stack([x.min(axis=1), x.max(axis=1)])

    same(run(place, 5000, spread, x, drop_axis=1, new_axis=0), spread(x))


@everywhere
def test_several_results_of_one_pass(place: Place, tmp_path: Path) -> None:
    x = CountingSource(noise((40, 50), "i4", 3))

    def both(x: Any) -> Any:
        return x + x, x > 0, x.astype("f8")

    options = {"dtype": (np.int32, bool, np.float64), "workspace": 1, "device": place.device()}
    memory = np.zeros((40, 50), bool)
    out = (tmp_path / "twice.npy", memory, None)
    twice, positive, floats = cf.map(both, x, out=out, budget=place.budget(9000), **options)
    assert x.bytes_read == 40 * 50 * 4
    assert positive is memory
    for got, expected in zip((twice, positive, floats), both(x[...]), strict=True):
        same(got, expected)
    assert isinstance(run(place, 9000, lambda x: (x,), x), tuple)


# -- Where a block is ----------------------------------------------------------------------------------------


class Notes:
    """A function that keeps what it is told of its blocks."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn, self._lock = fn, threading.Lock()
        self.ids: list[tuple[int, ...]] = []
        self.infos: dict[Any, Any] = {}

    def __call__(self, *blocks: Any, block_id: Any = None, block_info: Any = None) -> Any:
        with self._lock:
            self.ids.append(block_id)
            self.infos[block_id] = block_info
        return self._fn(*blocks)


def by_dask(fn: Callable[..., Any], arrays: list[np.ndarray], chunks: list[Any], **options: Any) -> Notes:
    """What dask tells the same function."""
    notes = Notes(fn)
    dask_arrays = [da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)]
    meta = np.empty((0,) * options.pop("ndim", arrays[0].ndim))
    da.map_blocks(notes, *dask_arrays, meta=meta, dtype="f8", **options).compute(scheduler="sync")
    return notes


def located(infos: dict[Any, Any]) -> dict[Any, Any]:
    """Block infos with plain ints and tuples, for a comparison."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return [plain(v) for v in value]
        return int(value) if isinstance(value, np.integer) else value

    return {k: plain(v) for k, v in infos.items()}


@everywhere
def test_block_id_and_block_info_are_dasks(place: Place) -> None:
    x, row = filled((20, 30), "f8"), filled((30,), "f8")
    expected = by_dask(operator.add, [x, row], [(7, 11), (11,)])
    notes = Notes(operator.add)
    run(place, 20_000, notes, x, row, chunks=(7, 11), dtype="f8", workspace=8)
    assert sorted(notes.ids) == sorted(expected.ids)
    assert located(notes.infos) == located(expected.infos)


@everywhere
def test_block_id_and_block_info_are_dasks_where_an_axis_is_dropped(place: Place) -> None:
    x = filled((20, 30), "f8")
    expected = by_dask(lambda x: x.sum(axis=1), [x], [(7, 30)], drop_axis=1, ndim=1)
    notes = Notes(lambda x: x.sum(axis=1))
    same(run(place, 20_000, notes, x, drop_axis=1, chunks=(7,), dtype="f8", workspace=8), x.sum(axis=1))
    assert sorted(notes.ids) == sorted(expected.ids)
    assert located(notes.infos) == located(expected.infos)


@everywhere
def test_block_id_and_block_info_are_dasks_where_an_axis_is_new(place: Place) -> None:
    x = filled((20, 30), "f8")
    expected = by_dask(lambda x: x[None], [x], [(7, 11)], new_axis=0, ndim=3)
    notes = Notes(lambda x: x[None])
    same(run(place, 20_000, notes, x, new_axis=0, chunks=(1, 7, 11), dtype="f8", workspace=8), x[None])
    assert sorted(notes.ids) == sorted(expected.ids)
    assert located(notes.infos) == located(expected.infos)


@everywhere
def test_the_trial_call_is_told_of_the_result_too(place: Place) -> None:
    def coordinate(x: Any, block_info: Any) -> Any:
        start = block_info[None]["array-location"][0][0]
        return x + start

    x = np.zeros((20, 3))
    got = run(place, 20_000, coordinate, x, chunks=(5, 3))
    same(got, x + np.repeat(np.arange(0, 20, 5), 5)[:, None])


@everywhere
@given(shape=shapes(), share=st.sampled_from([0.05, 0.3, 2]), seed=st.integers(0, 9))
@thorough
@example(shape=(0, 3), share=1, seed=0)
def test_the_blocks_tile_the_array(place: Place, shape: tuple[int, ...], share: float, seed: int) -> None:
    x = noise(shape, "f4", seed)
    covered = np.zeros(shape, int)
    lock = threading.Lock()

    def mark(x: Any, block_info: Any) -> Any:
        with lock:
            covered[tuple(slice(*side) for side in block_info[0]["array-location"])] += 1
        return x

    run(place, max(1, int(x.nbytes * share)), mark, x, dtype="f4", workspace=0)
    assert (covered == 1).all()


# -- In place ------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("kind", ["ndarray", "fortran", "memmap", "zarr.Array"])
def test_in_place(place: Place, kind: str, tmp_path: Path) -> None:
    x = filled((30, 41), "f4")
    sink = Sink(kind, x.shape, x.dtype, tmp_path)
    sink.out[...] = x
    assert run(place, 2000, lambda x: x * 2 + 1, sink.out, out=sink.out) is sink.out
    same(sink.out[...], x * 2 + 1)


@everywhere
def test_in_place_through_two_views_of_the_same_elements(place: Place, tmp_path: Path) -> None:
    x = filled((30, 41), "f4")
    memory = x.copy()
    run(place, 2000, operator.neg, memory[:20], out=memory[:20, :])
    same(memory, np.concatenate([-x[:20], x[20:]]))
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f4", x.shape)
    file[...] = x
    file.flush()
    run(place, 2000, operator.neg, tmp_path / "x.npy", out=np.load(tmp_path / "x.npy", mmap_mode="r+"))
    same(np.load(tmp_path / "x.npy"), -x)


@everywhere
@pytest.mark.parametrize("view", [lambda b: b, lambda b: b[::-1]], ids=["itself", "a view"])
def test_a_result_that_is_its_block_beside_one_in_place(place: Place, view: Any) -> None:
    """The one in place is stored first, over the elements of the other."""
    x, beside = filled((40, 10), "f4"), np.full((40, 10), np.nan, "f4")
    memory = x.copy()
    run(place, 2000, lambda b: (b * 2, view(b)), memory, out=(memory, beside), chunks=(8, -1), dtype=("f4", "f4"))
    same(memory, x * 2)
    same(beside, np.concatenate([view(x[i : i + 8]) for i in range(0, 40, 8)]))


@everywhere
@pytest.mark.parametrize("kind", ["private", "deleted"])
def test_a_result_that_is_a_view_in_place_through_another_mapping(place: Place, kind: str, tmp_path: Path) -> None:
    x = filled((40, 200), "f4")
    np.save(tmp_path / "x.npy", x)
    source = np.load(tmp_path / "x.npy", mmap_mode="c" if kind == "private" else "r")
    out = np.load(tmp_path / "x.npy", mmap_mode="r+")
    if kind == "deleted":
        (tmp_path / "x.npy").unlink()
    run(place, 20000, lambda b: b[::-1, ::-1], source, out=out, chunks=(8, -1))
    same(np.array(out), np.concatenate([x[i : i + 8][::-1, ::-1] for i in range(0, 40, 8)]))


@everywhere
def test_halves_of_one_array_do_not_overlap(place: Place) -> None:
    x = filled((40, 10), "f4")
    expected = np.concatenate([x[:20], -x[:20]])
    run(place, 1000, operator.neg, x[:20], out=x[20:])
    same(x, expected)


@everywhere
@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize(
    "parts",
    [
        ((slice(None), slice(0, 5)), (slice(None), slice(5, 10))),
        ((slice(None), slice(0, None, 2)), (slice(None), slice(1, None, 2))),
        ((slice(39, None, -2), slice(0, 9)), (slice(0, None, 2), slice(1, 10))),
    ],
    ids=["columns", "every other", "shifted in other rows"],
)
def test_parts_of_one_array_that_share_no_element_do_not_overlap(
    place: Place, kind: str, parts: Any, tmp_path: Path
) -> None:
    x = filled((40, 10), "f4")
    whole = x if kind == "memory" else np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f4", x.shape)
    whole[...] = filled((40, 10), "f4")
    read, written = parts
    expected = whole.copy()
    expected[written] = -whole[read]
    run(place, 1000, operator.neg, whole[read], out=whole[written])
    same(whole, expected)


@pytest.mark.parametrize("step", [1, 2])
def test_parts_that_share_an_element_do_overlap(step: int) -> None:
    x = filled((40, 10), "f4")
    with pytest.raises(errors.ArgumentError, match="overlaps the input"):
        cf.map(operator.neg, x[:, 0:8:step], out=x[:, 2::step][:, : 8 // step], device="cpu")


# -- Functions that hand back what is not theirs -------------------------------------------------------------


@everywhere
def test_a_function_may_return_its_input_or_a_view_of_it(place: Place) -> None:
    x = noise((50, 60), "f4", 2)
    same(run(place, 3000, lambda x: x, x), x)
    same(run(place, 3000, lambda x: x[::-1][::-1], x), x)
    same(run(place, 3000, lambda x: np.broadcast_to(x[:, :1], x.shape), x, chunks=(7, 60)), np.repeat(x[:, :1], 60, 1))
    for got in run(place, 3000, lambda x: (x, x, x[:, :]), x):
        same(got, x)


@everywhere
def test_a_function_may_use_one_buffer_for_all_its_results(place: Place) -> None:
    x = noise((64, 50), "f8", 2)
    kept = threading.local()  # several lanes call it at once

    def reuse(x: Any) -> Any:
        buffers = kept.__dict__.setdefault("buffers", {})
        if x.shape not in buffers:
            buffers[x.shape] = np.zeros_like(x)
        return np.add(x, 1, out=buffers[x.shape])

    same(run(place, 8000, reuse, x, chunks=(4, 50)), x + 1)


@everywhere
def test_a_transposed_result(place: Place) -> None:
    x = noise((30, 30), "f4", 2)
    same(run(place, 4000, lambda x: x.copy(order="F") + 1, x), x + 1)
    same(run(place, 4000, lambda x: x.T.copy().T, x), x)


@pytest.mark.parametrize("place", [CPU], ids=str)
@pytest.mark.parametrize("kind", ["ndarray", "npy", "zarr3", "generic"])
def test_blocks_are_read_only_on_the_cpu(place: Place, kind: str, tmp_path: Path) -> None:
    x = filled((20, 20), "f4")

    def spoil(x: Any) -> Any:
        x += 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        run(place, 3000, spoil, source(kind, x, tmp_path), dtype="f4", workspace=0)
    same(x, filled((20, 20), "f4"))


@everywhere
@pytest.mark.parametrize(
    ("returns", "out", "works"),
    [("f8", "f4", True), ("i4", "f8", True), ("f4", "c8", True), ("f8", "i4", False), ("c8", "f4", False)],
)
def test_a_function_that_changes_its_mind_about_its_dtype(place: Place, returns: str, out: str, works: bool) -> None:
    x = filled((20, 30), "i2")
    options = {"dtype": out, "workspace": 0, "chunks": (7, -1)}
    if works:
        same(run(place, 20_000, lambda x: x.astype(returns), x, **options), x.astype(returns).astype(out))
    else:
        with pytest.raises(errors.ResultTypeError, match="same_kind"):
            run(place, 20_000, lambda x: x.astype(returns), x, **options)


@everywhere
def test_a_numpy_scalar_stands_for_a_0d_array(place: Place) -> None:
    x = filled((5, 6), "f8")
    same(run(place, 4000, lambda x: x.sum(), x, drop_axis=(0, 1)), x.sum())


# -- The plan ------------------------------------------------------------------------------------------------


@everywhere
def test_explain_says_what_map_does(place: Place, tmp_path: Path) -> None:
    x = noise((60, 70), "f4", 0)
    out = tmp_path / "y.npy"
    blocks = []
    plan = cf.explain(lambda x: x + 1, x, out=out, budget=place.budget(5000), device=place.device())
    assert not out.exists()
    assert plan.memory.total <= plan.budget == place.budget(5000)
    assert (plan.bytes_in, plan.bytes_out) == (x.nbytes, x.nbytes)
    assert "float32 (60, 70)" in str(plan)

    def note(x: Any) -> Any:
        blocks.append(x.shape)
        return x + 1

    cf.map(note, x, budget=place.budget(5000), device=place.device(), dtype="f4", workspace=4)
    assert len(blocks) == len(
        cf.explain(note, x, budget=place.budget(5000), device=place.device(), dtype="f4", workspace=4).grid
    )


@everywhere
def test_a_budget_of_many_blocks_gives_the_same_bits_as_one(place: Place) -> None:
    x = noise((77, 41), "f4", 8)
    options = {"dtype": "f4", "workspace": 8}
    many = run(place, 2000, lambda x: x * x - 1, x, **options)
    one = run(place, 1 << 20, lambda x: x * x - 1, x, **options)
    assert many.tobytes() == one.tobytes()


def test_the_setting_names_the_device() -> None:
    with cf.config.set(device="cpu"):
        assert cf.explain(np.sqrt, np.ones(4)).machine.staged is False
    with cf.config.set(device="cuda:99"), pytest.raises(errors.DeviceError, match=r"cuda:99|CuPy"):
        cf.map(np.sqrt, np.ones(4))


# -- Dtypes that nobody has said --------------------------------------------------------------------------------------


def narrow_at_first(block: Any, **_: Any) -> Any:
    return block.astype("f4") if block.max() < 10 else block


NARROWED: dict[str, Any] = {
    "map": lambda x, **how: cf.map(narrow_at_first, x, chunks=(500, -1), **how),
    "lazy": lambda x, **how: cf.map(narrow_at_first, cf.open(x), chunks=(500, -1)).compute(**how),
    "overlap": lambda x, **how: cf.map_overlap(narrow_at_first, x, depth=1, chunks=(500, -1), **how),
    "gufunc": lambda x, **how: cf.apply_gufunc(narrow_at_first, "(i)->(i)", x, budget="60kB", **how),
    "blockwise": lambda x, **how: cf.blockwise(narrow_at_first, "ij", x, "ij", budget="60kB", **how),
    "tuple": lambda x, **how: cf.map(lambda b: (narrow_at_first(b), b), x, chunks=(500, -1), **how)[0],
    "reduction": lambda x, **how: cf.reduction(
        x,
        lambda b, axis, keepdims: narrow_at_first(b).max(axis=axis, keepdims=keepdims),
        np.max,
        axis=1,
        chunks=(500, -1),
        **how,
    ),
}


@pytest.mark.parametrize("way", NARROWED)
@pytest.mark.parametrize("value", [1e300, 16777217.0, 2**60 + 1, 2**63 - 1, 1e300j], ids=str)
def test_no_value_is_narrowed_to_what_the_first_block_gave(way: str, value: Any) -> None:
    x = np.ones((3000, 8), type(value))
    x[-1] = value
    if isinstance(value, complex) and way != "map":
        pytest.skip("complex numbers have no order")
    fn = (lambda b: b.astype("c8") if abs(b).max() < 10 else b) if isinstance(value, complex) else None
    with pytest.raises(cf.errors.ResultTypeError, match=r"in its trial call.*name what it returns, as dtype="):
        cf.map(fn, x, chunks=(500, -1), device="cpu") if fn else NARROWED[way](x, device="cpu")


def test_values_that_the_narrower_dtype_holds_are_right() -> None:
    x = np.arange(24000.0).reshape(3000, 8)
    x[-1, 0], x[-1, 1] = np.nan, np.inf
    for way in set(NARROWED) - {"reduction"}:
        found = NARROWED[way](x, device="cpu")
        np.testing.assert_array_equal(found, x)
    wide = x + 1 / 3
    np.testing.assert_array_equal(
        cf.map(narrow_at_first, wide, chunks=(500, -1), dtype="f4", device="cpu"), wide.astype("f4")
    )
    out = np.empty((3000, 8), "f4")
    np.testing.assert_array_equal(
        cf.map(narrow_at_first, wide, chunks=(500, -1), out=out, device="cpu"), wide.astype("f4")
    )

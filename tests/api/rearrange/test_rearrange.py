"""Moved elements are NumPy's, whatever the stores, the cut and the device; and no chunk is moved twice."""

from __future__ import annotations

import math
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.devices import CHECKING, CPU, Place, checked, everywhere, same

import chunkflow as cf
from chunkflow import Budget, errors
from chunkflow.api.operation import plan_of
from chunkflow.api.rearrange.join import MODES, concatenate, pad, stack
from chunkflow.api.rearrange.rearrange import copy, flip, repeat, roll, transpose
from chunkflow.api.rearrange.rechunk import rechunk, rechunk_plan
from chunkflow.core import arrangement as ops
from chunkflow.core.grid import Region, shape_of
from chunkflow.stores.zarr.array import ZarrSink, ZarrSource
from chunkflow.testing import CountingSource, FailingArray, filled

DTYPES = ("?", "i1", "u2", "i8", "f2", "f4", "f8", "c16", ">f4")
BUDGETS = (30_000, 300_000, 3_000_000)


class Chunked:
    """An array-like object with chunks, which must be read in slices."""

    def __init__(self, array: np.ndarray, chunks: Any) -> None:
        self._array, self.shape, self.dtype, self.chunks = array, array.shape, array.dtype, chunks

    def __getitem__(self, region: Any) -> np.ndarray:
        assert isinstance(region, tuple)
        assert all(s.step in (None, 1) and 0 <= s.start <= s.stop <= n for s, n in zip(region, self.shape, strict=True))
        return self._array[region]


shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
places = st.sampled_from([CPU, *CHECKING])


@st.composite
def cases(draw: Any, least: int = 0) -> tuple[np.ndarray, Any, dict[str, Any]]:
    """An array, the same as a source, and options."""
    shape = draw(shapes.filter(lambda s: len(s) >= least))
    x = filled(shape, draw(st.sampled_from(DTYPES)))
    source: Any = np.asarray(x, order=draw(st.sampled_from("CF")))
    if draw(st.booleans()):
        source = Chunked(source, tuple(draw(st.integers(1, 5)) for _ in shape))
    options = {"device": draw(places).device(), "budget": draw(st.sampled_from(BUDGETS))}
    return x.astype(x.dtype.newbyteorder("=")), source, options


def axes_of(x: np.ndarray) -> Any:
    return st.integers(-x.ndim, x.ndim - 1)


@given(case=cases(), data=st.data())
def test_copies_flips_and_transposes(case: Any, data: Any) -> None:
    x, source, options = case
    same(copy(source, **options), x)
    order = data.draw(st.permutations(range(x.ndim)))
    same(transpose(source, order, **options), np.transpose(x, order))
    same(transpose(source, **options), x.T)
    same(flip(source, **options), np.flip(x))
    if x.ndim:
        axis = data.draw(axes_of(x))
        same(flip(source, axis, **options), np.flip(x, axis))
        same(flip(source, [axis], **options), np.flip(x, axis))


@given(case=cases(), data=st.data())
def test_rolls_and_repeats(case: Any, data: Any) -> None:
    x, source, options = case
    shifts = st.integers(-40, 40)
    by = data.draw(shifts)
    same(roll(source, by, **options), np.roll(x, by))
    often = data.draw(st.integers(0, 4))
    same(repeat(source, often, **options), np.repeat(x, often))
    if x.ndim:
        axis = data.draw(axes_of(x))
        same(roll(source, by, axis, **options), np.roll(x, by, axis))
        both = data.draw(st.tuples(shifts, shifts)), (axis, data.draw(axes_of(x)))
        same(roll(source, *both, **options), np.roll(x, *both))
        same(roll(source, by, both[1], **options), np.roll(x, by, both[1]))
        same(repeat(source, often, axis, **options), np.repeat(x, often, axis))


@given(case=cases(), data=st.data())
def test_joins(case: Any, data: Any) -> None:
    x, source, options = case
    other = x.astype(data.draw(st.sampled_from(DTYPES)), casting="unsafe") if x.dtype.kind != "c" else x
    axis = data.draw(st.integers(-x.ndim - 1, x.ndim))
    same(stack([source, other, source], axis, **options), _native(np.stack([x, other, x], axis)))
    same(concatenate([other, source], None, **options), _native(np.concatenate([other, x], None)))
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    with np.errstate(invalid="ignore"), warnings.catch_warnings(action="ignore", category=np.exceptions.ComplexWarning):
        cast = np.stack([other, x], dtype=dtype, casting="unsafe")
        same(stack([other, source], dtype=dtype, casting="unsafe", **options), _native(cast))
    if x.ndim:
        axis = data.draw(axes_of(x))
        part = other[(slice(None),) * (axis % x.ndim) + (slice(0, data.draw(st.integers(0, 3))),)]
        same(concatenate((part, source, part), axis, **options), _native(np.concatenate((part, x, part), axis)))


def _native(x: np.ndarray) -> np.ndarray:
    return x.astype(x.dtype.newbyteorder("="))


@pytest.mark.parametrize("mode", MODES)
@given(case=cases(), data=st.data())
def test_pads(mode: Any, case: Any, data: Any) -> None:
    x, source, options = case
    width = st.integers(0, 12)
    pair = st.tuples(width, width)
    widths = data.draw(st.one_of(width, pair, st.tuples(*[pair] * x.ndim))) if x.ndim else 0
    values = st.integers(0, 9)
    if mode == "constant" and x.ndim:
        pairs = st.tuples(values, values)
        given_values = data.draw(st.one_of(values, pairs, st.tuples(*[pairs] * x.ndim)))
        expected = np.pad(x, widths, constant_values=given_values)
        same(pad(source, widths, constant_values=given_values, **options), expected)
        return
    try:
        expected = np.pad(x, widths, mode)
    except ValueError:
        with pytest.raises(errors.ArgumentError, match="no element to pad"):
            pad(source, widths, mode, **options)
        return
    same(pad(source, widths, mode, **options), expected)


@everywhere
def test_many_blocks(place: Place) -> None:
    x = filled((60, 70), "i4")
    options = {"budget": place.budget(20_000), "device": place.device()}
    for source in (x, np.asfortranarray(x), CountingSource(x), Chunked(x, (7, 11))):
        same(copy(source, **options), x)
        same(transpose(source, **options), x.T)
        same(flip(source, **options), np.flip(x))
        same(roll(source, 1234, **options), np.roll(x, 1234))
        same(pad(source, ((3, 90), (0, 2)), "reflect", **options), np.pad(x, ((3, 90), (0, 2)), "reflect"))
        same(repeat(source, 3, 1, **options), np.repeat(x, 3, 1))
        same(repeat(source, 3, **options), np.repeat(x, 3))
        same(concatenate([source, x], 1, **options), np.concatenate([x, x], 1))
        same(
            concatenate([source, x[0], 7], None, dtype="i2", **options), np.concatenate([x, x[0], 7], None, dtype="i2")
        )
        same(stack([source, x], 2, **options), np.stack([x, x], 2))


@checked
def test_from_store_to_store(place: Place, tmp_path: Path) -> None:
    x = filled((40, 33), "f4")
    options = {"budget": 300_000, "device": place.device()}
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    made = copy(tmp_path / "x.npy", tmp_path / "x.zarr", chunks=(7, -1), **options)
    assert made.chunks == (7, 33)
    same(made[...], x)
    assert copy(tmp_path / "x.zarr", tmp_path / "y.zarr", **options).chunks == (7, 33)
    assert copy(tmp_path / "x.zarr", tmp_path / "z.zarr", chunks=5, **options).chunks == (5, 5)
    turned = transpose(tmp_path / "z.zarr", out=tmp_path / "t.zarr", **options)
    same(turned[...], x.T)
    for source, out in ((tmp_path / "x.npy", tmp_path / "a.zarr"), (tmp_path / "z.zarr", tmp_path / "a.npy")):
        same(flip(source, 1, out=out, overwrite=True, **options)[...], np.flip(x, 1))
        same(pad(source, 3, "wrap", out=out, overwrite=True, **options)[...], np.pad(x, 3, "wrap"))
        joined = concatenate([source, tmp_path / "x.zarr"], out=out, overwrite=True, **options)
        same(joined[...], np.concatenate([x, x]))
        same(stack([source] * 3, 1, out=out, overwrite=True, **options)[...], np.stack([x] * 3, 1))
    with pytest.raises(errors.OutputExistsError):
        flip(tmp_path / "x.npy", out=tmp_path / "a.npy", **options)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_copy_reads_each_byte_once() -> None:
    x = filled((128, 96), "f8")
    for chunks in (None, (32, 24), (16, 96)):
        source = CountingSource(x)
        source.chunks = chunks
        same(copy(source, device="cpu"), x)
        assert source.bytes_read == x.nbytes
    source = CountingSource(x)
    same(concatenate([source, flip(x, device="cpu"), source], device="cpu"), np.concatenate([x, np.flip(x), x]))
    assert source.bytes_read == 2 * x.nbytes


def test_a_flattened_array_is_read_by_whole_chunks() -> None:
    x, run = filled((1024, 96), "f8"), {"device": "cpu", "budget": "1MB"}
    source = CountingSource(x)
    source.chunks = (32, 24)
    (side,) = plan_of(repeat, (source, 2), run).block
    assert side < 2 * x.size
    assert side % (2 * 32 * 96) == 0
    same(repeat(source, 2, **run), np.repeat(x, 2))
    assert source.bytes_read == x.nbytes
    assert isinstance(repeat(cf.open(x), 2), cf.Array)


def test_a_transposed_array_is_written_in_long_runs(tmp_path: Path) -> None:
    x = np.zeros((3000, 2000), "f4")
    for options in ({}, {"out": tmp_path / "x.npy"}):
        plan = plan_of(transpose, (x,), {"device": "cpu", "budget": "8MB", **options})
        assert min(plan.block) >= 256
    assert plan_of(copy, (x.T,), {"device": "cpu", "budget": "8MB"}).block[1] >= 256


def test_an_output_that_is_still_to_be_read_is_refused(tmp_path: Path) -> None:
    x = filled((8, 8), "f8")
    kept, run = x.copy(), {"device": "cpu"}
    assert copy(x, x, **run) is x
    mapped = np.lib.format.open_memmap(tmp_path / "m.npy", "w+", "f8", (8, 8))
    mapped[...] = x
    stored = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(3, 3), dtype="f8")
    stored[...] = x
    for array in (x, mapped, stored):
        for ask in (
            lambda a: flip(a, out=a, **run),
            lambda a: roll(a, 1, out=a, **run),
            lambda a: transpose(a, out=a, **run),
            lambda a: pad(a, 0, out=a, **run),
            lambda a: concatenate([np.zeros((0, 8)), a], out=a, **run),
        ):
            with pytest.raises(errors.ArgumentError, match="overlaps"):
                ask(array)
        same(array[...], kept)
    with pytest.raises(errors.ArgumentError, match="overlaps"):
        concatenate([x[:2], x[4:6]], out=x[1:5], **run)
    same(concatenate([x[:2], x[:2]], out=x[4:], **run), np.concatenate([kept[:2]] * 2))  # beside one another


class Untouchable:
    """An array that must not be read."""

    shape, dtype = (4, 5), np.dtype("f4")

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


U = Untouchable()


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda: copy(3.0), errors.ArgumentTypeError, "float"),
        (lambda: copy(U, np.zeros((4, 4), "f4")), errors.ArgumentError, "shape"),
        (lambda: copy(U, np.zeros((4, 5), "i4")), errors.ArgumentTypeError, "cannot hold"),
        (lambda: copy(U, chunks=(1, 2, 3)), errors.ArgumentError, "3 entries"),
        (lambda: transpose(U, (0, 0)), errors.ArgumentError, "twice"),
        (lambda: transpose(U, (0,)), errors.ArgumentError, "each of the 2 axes"),
        (lambda: flip(U, 2), errors.ArgumentError, "out of bounds"),
        (lambda: flip(U, 1.5), errors.ArgumentTypeError, "1.5"),
        (lambda: roll(U, 1.5), errors.ArgumentTypeError, "1.5"),
        (lambda: roll(U, (1, 2.5)), errors.ArgumentTypeError, "int"),
        (lambda: roll(U, (1, 2, 3), (0, 1)), errors.ArgumentError, "same number"),
        (lambda: concatenate([]), errors.ArgumentError, "empty"),
        (lambda: concatenate(np.zeros(3)), errors.ArgumentTypeError, "list or tuple"),
        (lambda: concatenate([np.array(1.0)]), errors.ArgumentError, "stack"),
        (lambda: concatenate([U, np.zeros((3, 4))]), errors.ArgumentError, "array 1 of shape"),
        (lambda: concatenate([U], [0]), errors.ArgumentTypeError, r"\[0\]"),
        (lambda: concatenate([U], None, dtype="U3"), errors.UnsupportedError, "numbers"),
        (lambda: concatenate([U], dtype="i4"), errors.ArgumentTypeError, "casting='unsafe'"),
        (lambda: stack([U], casting="most"), errors.ArgumentError, "same_kind"),
        (lambda: copy(U, order="Q"), errors.ArgumentError, "'Q'"),
        (lambda: stack([U, np.zeros((5, 4))]), errors.ArgumentError, "array 1 has the shape"),
        (lambda: pad(U, -1), errors.ArgumentError, "negative"),
        (lambda: pad(U, 1.5), errors.ArgumentTypeError, "1.5"),
        (lambda: pad(U, ((1, 2, 3), (1, 2, 3))), errors.ArgumentError, "2 axes"),
        (lambda: pad(U, 1, "linear_ramp"), errors.ArgumentError, "linear_ramp"),
        (lambda: pad(U, 1, constant_values=1j), errors.ArgumentTypeError, "float32"),
        (lambda: repeat(U, -1, 0), errors.ArgumentError, "-1"),
        (lambda: repeat(U, [1, 2], 0), errors.ArgumentError, "2 numbers of repeats"),
        (lambda: repeat(U, [[1, 2]], 0), errors.ArgumentTypeError, "one for each place"),
        (lambda: repeat(U, 1.5, 0), errors.ArgumentTypeError, "must be an int"),
        (lambda: repeat(U, 2, "0"), errors.ArgumentTypeError, "'0'"),
        (lambda: repeat(U), errors.ArgumentTypeError, "repeats"),
        (lambda: repeat(U, 2, 0, None), errors.ArgumentTypeError, "by position it takes x, repeats, axis"),
        (lambda: rechunk(U, (2, 2), "x.npy"), errors.ArgumentError, "no chunks"),
        (lambda: rechunk(U, (2, "auto"), "x.zarr"), errors.ArgumentError, "each axis"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(ask: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ask()


def test_pieces_cover_each_place_once() -> None:
    axis = ops.padded(4, 9, 7, "symmetric")
    arrangement = ops.Separable((axis, ops.repeated(3, 4)))
    hits = np.zeros(arrangement.shape, int)
    for piece in arrangement.pieces((slice(0, 20), slice(0, 12))):
        hits[piece.place] += 1
    assert (hits == 1).all()


# -- Rechunking ----------------------------------------------------------------------------------------------


def count(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that zarr arrays read and write from now on; each region must hold whole chunks."""
    counts, lock = {"read": 0, "written": 0}, threading.Lock()

    def whole(region: Region, chunks: Any, shape: Any) -> None:
        for side, chunk, n in zip(region, chunks, shape, strict=True):
            assert side.start % chunk == 0
            assert side.stop % chunk == 0 or side.stop == n

    read, write = ZarrSource.read, ZarrSink.write

    def counted_read(self: Any, region: Region, out: np.ndarray) -> None:
        whole(region, self.spec.chunks, self.spec.shape)
        with lock:
            counts["read"] += math.prod(shape_of(region)) * self.spec.dtype.itemsize
        read(self, region, out)

    def counted_write(self: Any, region: Region, block: np.ndarray) -> None:
        whole(region, self.spec.chunks, self.spec.shape)
        with lock:
            counts["written"] += block.nbytes
        write(self, region, block)

    for store in (ZarrSource, ZarrSink):
        monkeypatch.setattr(store, "files", lambda *_: None)  # which others would read, or write
    monkeypatch.setattr(ZarrSource, "read", counted_read)
    monkeypatch.setattr(ZarrSink, "write", counted_write)
    return counts


RECHUNKS = [
    ((60, 70), (7, 11), (5, 13), 40_000),
    ((60, 70), (7, 11), (5, 13), 4_000_000),
    ((64, 96), (1, 96), (64, 1), 40_000),
    ((61, 97), (2, 97), (61, 3), 40_000),
    ((20, 21, 22), (20, 3, 4), (3, 5, 22), 60_000),
    ((20, 21, 22), (1, 21, 22), (20, 21, 1), 30_000),
    ((50,), (7,), (3,), 1_000_000),
    ((0, 5), (1, 2), (1, 5), 100_000),
]


@pytest.mark.parametrize(("shape", "chunks", "wanted", "budget"), RECHUNKS)
@checked
def test_each_chunk_is_read_and_written_once(
    place: Place, shape: Any, chunks: Any, wanted: Any, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = filled(shape, "f4")
    zarr.create_array(tmp_path / "x.zarr", shape=shape, chunks=chunks, dtype="f4")[...] = x
    options = {"budget": budget, "device": place.device()}
    plan = rechunk_plan(tmp_path / "x.zarr", wanted, **options)
    assert (plan.passes == 2) == (plan.intermediate is not None)
    assert str(plan).count("->") == plan.passes
    counts = count(monkeypatch)
    made = rechunk(tmp_path / "x.zarr", wanted, tmp_path / "y.zarr", **options)
    assert counts == {"read": plan.bytes_read, "written": plan.bytes_written}
    assert plan.bytes_read == plan.passes * x.nbytes
    monkeypatch.undo()
    assert made.chunks == tuple(min(c, max(n, 1)) for c, n in zip(wanted, shape, strict=True))
    same(made[...], x)
    assert sorted(os.listdir(tmp_path)) == ["x.zarr", "y.zarr"]


def test_two_passes_are_made_where_one_does_not_fit(tmp_path: Path) -> None:
    x = CountingSource(zarr.create_array({}, shape=(64, 96), chunks=(1, 96), dtype="f4"))
    plans = [rechunk_plan(x, (64, 1), budget, device=CHECKING[0].device()) for budget in (40_000, 4_000_000)]
    assert [plan.passes for plan in plans] == [2, 1]
    (one, other), between = plans[0].blocks, plans[0].intermediate
    assert between is not None
    assert (one[1], other[0]) == (96, 64)
    assert between == (one[0], other[1])
    assert min(between) > 1
    out = tmp_path / "deep.zarr" / "group" / "y"
    rechunk(x, (64, 1), out, budget=40_000, device=CHECKING[0].device())
    assert x.bytes_read == 64 * 96 * 4
    assert os.listdir(tmp_path) == ["deep.zarr"]
    assert sorted(os.listdir(tmp_path / "deep.zarr" / "group")) == ["y", "zarr.json"]
    with Budget(40_000):
        rechunk(x, (64, 1), tmp_path / "z.zarr", device=CHECKING[0].device())


def test_what_does_not_fit_says_what_would(tmp_path: Path) -> None:
    x = zarr.create_array(tmp_path / "x.zarr", shape=(64, 96), chunks=(8, 96), dtype="f4")
    x[...] = filled(x.shape, "f4")
    with pytest.raises(errors.BudgetError, match="two") as caught:
        rechunk(x, (64, 4), tmp_path / "y.zarr", budget=3000, device="cpu")
    assert caught.value.smallest is not None
    assert caught.value.smallest > 3000
    assert rechunk_plan(x, (64, 4), caught.value.smallest, device="cpu").passes in (1, 2)
    same(rechunk(x, (64, 4), tmp_path / "y.zarr", budget=caught.value.smallest, device="cpu")[...], x[...])


@pytest.mark.parametrize("after", [0, 1, 70])
def test_a_failure_leaves_nothing(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = filled((64, 96), "f4")
    source = FailingArray(array, after)
    source.chunks = (1, 96)
    options: dict[str, Any] = {"budget": 40_000, "device": CHECKING[0].device()}
    if after == 70:  # the second pass fails: only the store in between is read by zarr
        source = FailingArray(array, 1 << 20)
        source.chunks = (1, 96)
        read = ZarrSource.read

        def failing(self: Any, region: Region, out: np.ndarray) -> None:
            if region[1].start:
                raise errors.ReadError("injected failure")
            read(self, region, out)

        monkeypatch.setattr(ZarrSource, "read", failing)
    with pytest.raises(errors.ReadError, match="injected"):
        rechunk(source, (64, 1), tmp_path / "y.zarr", **options)
    assert os.listdir(tmp_path) == []


@given(data=st.data())
def test_plans_keep_chunks_whole(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple))
    chunks = [tuple(data.draw(st.integers(1, min(n, 9))) for n in shape) for _ in range(2)]
    x = Untouchable()
    x.shape, x.chunks = shape, chunks[0]  # type: ignore[misc, attr-defined]
    plan = rechunk_plan(
        x, chunks[1], data.draw(st.sampled_from((200_000, 1_000_000))), device=data.draw(places).device()
    )
    assert plan.source == chunks[0]
    stores = [c for c in (plan.source, plan.intermediate, plan.target) if c is not None]
    for block, before, after in zip(plan.blocks, stores[:-1], stores[1:], strict=True):
        for side, one, other, n in zip(block, before, after, shape, strict=True):
            assert side >= n or (side % one == 0 and side % other == 0)


def test_into_an_array_that_exists(tmp_path: Path) -> None:
    x = filled((20, 20), "f4")
    out = zarr.create_array(tmp_path / "y.zarr", shape=x.shape, chunks=(4, 5), dtype="f8")
    same(rechunk(x, (4, 5), out, device="cpu")[...], x.astype("f8"))
    with pytest.raises(errors.ArgumentError, match="chunks"):
        rechunk(x, (5, 5), out, device="cpu")
    with pytest.raises(errors.OutputExistsError):
        rechunk(x, (4, 5), tmp_path / "y.zarr", device="cpu")
    made = rechunk(tmp_path / "y.zarr", (20, 1), tmp_path / "y.zarr", overwrite=True, device="cpu")
    same(made[...], x.astype("f8"))


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 300, -1, 2.7, 1e6, 10**30, (0, np.nan), -0.5])
def test_constants_are_those_that_the_dtype_holds(value: Any, dtype: str) -> None:
    x = np.arange(3, dtype=dtype)
    wide = np.pad(x.astype("f8"), 1, constant_values=value)
    info = np.finfo(dtype) if dtype == "f2" else np.iinfo(dtype)
    held = np.abs(wide - np.clip(wide, float(info.min), float(info.max))) < 1
    if dtype == "f2":
        held |= ~np.isfinite(wide)
    if held.all():
        np.testing.assert_array_equal(cf.pad(x, 1, constant_values=value, device="cpu"), wide.astype(dtype))
        return
    for array in (x, cf.open(x)):
        with pytest.raises(cf.errors.ValueRangeError, match=rf"more than {x.dtype} holds"):
            cf.pad(array, 1, constant_values=value)


def test_constants_of_another_mode_are_refused() -> None:
    with pytest.raises(cf.errors.ArgumentError, match="no meaning in mode='edge'"):
        np.pad(cf.open(np.arange(3)), 1, "edge", constant_values=9)


@pytest.mark.parametrize("places", [np.full((1, 60), 7), np.array([[-1], [-1], [3]]), np.zeros((0, 60), "i8")])
def test_lines_of_which_a_few_places_are_taken_are_read_there(places: np.ndarray) -> None:
    x = np.random.default_rng(0).random((400, 60))
    source = CountingSource(x)
    taken = np.take_along_axis(cf.open(source), places, 0)
    expected = np.take_along_axis(x, np.broadcast_to(places, (len(places), 60)), 0)
    np.testing.assert_array_equal(taken.compute(device="cpu", budget="100kB"), expected)
    assert source.bytes_read <= 2 * (2 * 60 * 8)  # twice: a trial call is among it
    source = CountingSource(x)
    np.testing.assert_array_equal(cf.take_along_axis(source, places, 0, device="cpu", budget="100kB"), expected)
    assert source.bytes_read <= 2 * (2 * 60 * 8)
    with pytest.raises(errors.PlaceError, match="index 400 is out of bounds"):
        np.take_along_axis(cf.open(x), np.full((1, 60), 400), 0).compute(device="cpu")


@pytest.mark.parametrize("place", [CPU, *CHECKING], ids=str)
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "c16", ">f8", "?"])
def test_rows_that_are_flipped_are_right_wherever_that_is_done(place: Place, dtype: str, tmp_path: Path) -> None:
    """A device with memory of its own flips them itself."""
    x = np.random.default_rng(0).integers(0, 200, (60, 7, 90)).astype(dtype)
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(16, 4, 25), dimension_names=("z", "y", "x"))
    for source in (x, tmp_path / "x.zarr", cf.open(x)[:, ::2], cf.open(x) if dtype == "?" else cf.open(x) + x[0, 0, 0]):
        wanted = np.flip(cf.open(source).compute(device="cpu"), -1)
        for budget in (400_000, "64MB"):
            same(cf.compute(np.flip(cf.open(source), -1), device=place.device(), budget=budget), wanted)
    cf.store(np.flip(cf.open(tmp_path / "x.zarr"), -1), tmp_path / "y.zarr", device=place.device())
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "y.zarr")[...], x[..., ::-1])
    assert zarr.open_array(tmp_path / "y.zarr").metadata.dimension_names == ("z", "y", "x")
    (plan,) = cf.explain(np.flip(cf.open(x), -1), device=place.device(), budget="64MB").plans
    assert (2 in plan.op.whole) == place.staged

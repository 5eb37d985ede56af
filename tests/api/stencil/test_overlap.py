"""Stencils across block borders, against the whole array: every boundary, depth, cut and device."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from support.devices import CHECKING, MODES, Place, checked, checking, everywhere, machine, numpy_device, same
from support.examples import examples

import chunkflow as cf
from chunkflow.devices.common import Done
from chunkflow.devices.cpu.device import NumpyDevice, NumpyPool
from chunkflow.devices.protocol import Edge
from chunkflow.engine.transfer import Loaded
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, RaceError, ResultError
from chunkflow.stores.memory import ArraySink
from chunkflow.testing import CountingSource, FailingArray

NUMPY_MODE = {"nearest": "edge", "reflect": "symmetric", "mirror": "reflect", "periodic": "wrap"}
SCIPY_MODE = {"nearest": "nearest", "reflect": "reflect", "mirror": "mirror", "periodic": "grid-wrap"}


def padded(x: np.ndarray, depth: list[tuple[int, int]], boundary: list[Any]) -> np.ndarray:
    """The whole array with its halo, axis after axis."""
    for axis, (pair, kind) in enumerate(zip(depth, boundary, strict=True)):
        widths = [(0, 0)] * x.ndim
        widths[axis] = pair
        if isinstance(kind, str):
            if kind != "none":
                x = np.pad(x, widths, mode=NUMPY_MODE[kind])  # type: ignore[call-overload]
        else:
            x = np.pad(x, widths, constant_values=kind)
    return x


def windows(x: np.ndarray, depth: list[tuple[int, int]], shape: tuple[int, ...]) -> np.ndarray:
    """A weighted sum of each element's neighbours: every one of them has a weight of its own."""
    total = np.zeros(shape, "i8")
    offsets = itertools.product(*(range(b + a + 1) for b, a in depth))
    for weight, offset in enumerate(offsets, 1):
        total += weight * x[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))].astype("i8")
    return total


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    depth, boundary = [], []
    for n in shape:
        kind: Any = draw(st.sampled_from([*NUMPY_MODE, 3]))
        most = {"reflect": n, "mirror": n - 1, "periodic": n}.get(kind, 4)
        depth.append((draw(st.integers(0, min(most, 3))), draw(st.integers(0, min(most, 3)))))
        boundary.append(kind)
    return {
        "shape": shape,
        "depth": depth,
        "boundary": boundary,
        "chunks": tuple(draw(st.sampled_from(["auto", -1, 1, 2, 4])) for _ in shape),
        "order": draw(st.sampled_from("CF")),
        "in_memory": draw(st.booleans()),
        "budget": draw(st.sampled_from([60_000, 1_000_000])),
    }


@everywhere
@settings(max_examples=examples(1 / 4))
@given(case=cases())
def test_it_equals_the_stencil_of_the_whole_array(case: dict[str, Any], place: Place) -> None:
    x = np.random.default_rng(1).integers(-50, 50, case["shape"]).astype("i4", order=case["order"])
    depth = case["depth"]

    def stencil(block: Any) -> Any:
        shape = tuple(n - b - a for n, (b, a) in zip(block.shape, depth, strict=True))
        return windows_on(block, depth, shape)

    got = cf.map_overlap(
        stencil,
        x if case["in_memory"] else CountingSource(x),
        depth=tuple(depth),
        boundary=tuple(case["boundary"]),
        trim=False,
        chunks=case["chunks"],
        budget=place.budget(case["budget"]),
        device=place.device(),
    )
    same(place.host(got), windows(padded(x, depth, case["boundary"]), depth, x.shape))


def windows_on(block: Any, depth: Any, shape: tuple[int, ...]) -> Any:
    """`windows` with the operations that any device has."""
    total = None
    for weight, offset in enumerate(itertools.product(*(range(b + a + 1) for b, a in depth)), 1):
        term = weight * block[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))].astype("i8")
        total = term if total is None else total + term
    return total


@checked
@settings(max_examples=examples(1 / 4))
@given(
    st.tuples(*[st.integers(3, 12)] * 2),
    st.sampled_from([*SCIPY_MODE, 0.5]),
    st.sampled_from([(1, -1), (2, 3), (5, "auto"), ("auto", 4)]),
)
def test_trimmed_filters_equal_scipys(place: Place, shape: Any, kind: Any, chunks: Any) -> None:
    x = np.random.default_rng(2).random(shape)
    weights = np.random.default_rng(3).random((3, 3))
    got = cf.map_overlap(
        lambda b: ndimage.correlate(b, weights, mode="nearest"),
        x,
        depth=1,
        boundary=kind,
        chunks=chunks,
        budget=200_000,
        device=place.device(),
    )
    mode = SCIPY_MODE.get(kind, "constant")
    same(got, ndimage.correlate(x, weights, mode=mode, cval=0.5))


@checked
def test_without_a_boundary_blocks_at_the_edge_are_smaller(place: Place) -> None:
    x = np.arange(40.0).reshape(10, 4)
    seen = set()

    def fn(block: np.ndarray) -> np.ndarray:
        seen.add(block.shape)
        return block * 2

    got = cf.map_overlap(fn, x, depth={0: (2, 1)}, chunks=(4, -1), device=place.device(), dtype="f8", workspace=8)
    same(got, x * 2)
    if place.staged:  # elsewhere a block may be computed by tiles
        assert seen == {(5, 4), (7, 4), (4, 4)}


@checked
def test_arrays_of_different_depths_and_broadcasting(place: Place) -> None:
    rng = np.random.default_rng(5)
    x, weight = rng.random((12, 6)), rng.random((12, 1))

    def fn(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return (x[2:] - x[:-2]) * w

    got = cf.map_overlap(
        fn, x, weight, depth=[{0: 1}, 0], boundary=["nearest", "none"], trim=False, chunks=(5, -1),
        device=place.device(), budget=100_000,
    )  # fmt: skip
    wide = np.pad(x, [(1, 1), (0, 0)], mode="edge")
    same(got, (wide[2:] - wide[:-2]) * weight)


@checked
def test_several_results(place: Place) -> None:
    x = np.arange(60.0).reshape(20, 3)
    low, high = cf.map_overlap(
        lambda b: (ndimage.minimum_filter1d(b, 3, 0), ndimage.maximum_filter1d(b, 3, 0)),
        x, depth={0: 1}, boundary="reflect", chunks=(6, -1), device=place.device(), budget=100_000,
    )  # fmt: skip
    same(low, ndimage.minimum_filter1d(x, 3, 0))
    same(high, ndimage.maximum_filter1d(x, 3, 0))


STAGED = [place for place in CHECKING if place.staged]


@pytest.mark.parametrize("place", CHECKING, ids=str)
@pytest.mark.parametrize("kind", ["none", "nearest", "mirror", 0.0, "periodic"])
def test_walking_slabs_reads_every_element_once(place: Place, kind: Any) -> None:
    x = np.random.default_rng(0).random((200, 8, 8))
    source = CountingSource(x)
    options: dict[str, Any] = {
        "depth": 1, "boundary": kind, "chunks": (4, -1, -1), "budget": 400_000, "dtype": "f8", "workspace": 16.0,
    }  # fmt: skip
    plan = cf.explain(cf.map_overlap, np.copy, source, device=place.device(), **options)
    assert plan.depth > 1
    assert source.bytes_read == 0 or place.staged  # nothing is tried: dtype and workspace are given
    source.bytes_read = 0
    got = cf.map_overlap(np.copy, source, device=place.device(), **options)
    same(got, x)
    if kind == "periodic":
        assert plan.bytes_in == x.nbytes * 202 // 200  # along the other axes blocks hold what lies beyond
    else:
        assert plan.bytes_in == x.nbytes
    assert plan.bytes_in <= source.bytes_read <= plan.bytes_in + 4096  # and the trial call's, where there was one


@settings(max_examples=examples(1))
@given(case=cases())
def test_the_bytes_read_are_the_plans(case: dict[str, Any]) -> None:
    place = CHECKING[0]
    source = CountingSource(np.zeros(case["shape"]))
    options = {"depth": tuple(case["depth"]), "boundary": tuple(case["boundary"]), "chunks": case["chunks"]}
    watched: list[int] = []

    class Watch:
        wants_spans = False

        def started(self, plan: Any, run: Any) -> None:
            source.bytes_read = 0
            watched.append(plan.bytes_in)

        def span(self, *_: Any) -> None: ...
        def landed(self, nbytes_in: int, nbytes_out: int) -> None:
            watched[-1] -= nbytes_in

        def noted(self, text: str) -> None: ...
        def finished(self, error: Any, peak: int) -> None: ...

    with cf.observing(Watch()):
        planned = cf.explain(cf.map_overlap, np.copy, source, device=place.device(), budget=case["budget"], **options)
        cf.map_overlap(np.copy, source, device=place.device(), budget=case["budget"], **options)
    assert source.bytes_read == planned.bytes_in
    assert watched == [0]


def test_where_a_plane_does_not_fit_the_least_is_read_twice() -> None:
    shape = (64, 64, 64)
    plan = cf.explain(
        cf.map_overlap, np.copy, CountingSource(np.zeros(shape, "f4")), depth=1, boundary="nearest", budget=100_000,
        device=checking("eager", staged=True), dtype="f4", workspace=8.0,
    )  # fmt: skip
    assert plan.memory.total <= 100_000
    assert plan.block[1] < 64
    blocks = plan.grid.counts[1]
    assert plan.bytes_in == 64 * (64 + 2 * (blocks - 1)) * 64 * 4  # twice at the cuts along one axis only
    assert "times" in str(plan)


@pytest.mark.parametrize("place", [p for p in CHECKING if p.lanes == 2 or p.mode != "eager"], ids=str)
def test_a_halo_copied_too_early_is_a_race(place: Place) -> None:
    source = CountingSource(np.random.default_rng(0).random((60, 8)))
    device = checking(place.mode, staged=place.staged, lanes=2, drop=Edge.COMPLETE)
    with pytest.raises(RaceError):
        cf.map_overlap(np.copy, source, depth=1, boundary="nearest", chunks=(4, -1), device=device, budget=100_000)


def test_files_and_zarr(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((40, 30, 20)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(16, 16, 16), dtype="f4")[...] = x
    expected = ndimage.uniform_filter(x, 3, mode="mirror")
    for name in ("x.npy", "x.zarr"):
        out = cf.map_overlap(
            lambda b: ndimage.uniform_filter(b, 3), tmp_path / name, depth=1, boundary="mirror",
            out=tmp_path / f"y-{name}", budget="2MB", device="cpu",
        )  # fmt: skip
        np.testing.assert_allclose(out[...], expected, rtol=1e-5)


def test_a_depth_of_nothing_is_a_map() -> None:
    x = np.arange(12.0).reshape(3, 4)
    same(cf.map_overlap(np.negative, x, depth=0, device="cpu"), -x)


def test_an_empty_array() -> None:
    x = np.zeros((0, 4))
    same(cf.map_overlap(np.negative, x, depth={1: 1}, boundary="nearest", device="cpu"), -x)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"depth": -1}, ArgumentError, "-1 is negative"),
        ({"depth": 1.5}, ArgumentTypeError, "1.5"),
        ({"depth": (1, 1, 1)}, ArgumentError, "3 entries for an array of 2"),
        ({"depth": {2: 1}}, ArgumentError, "2"),
        ({"depth": ((1, 2, 3), 0)}, ArgumentError, "pair"),
        ({"depth": [1, 1]}, ArgumentError, "2 and there are 1"),
        ({"depth": 1, "boundary": "wrap"}, ArgumentError, "'wrap' is none of"),
        ({"depth": 1, "boundary": object()}, ArgumentTypeError, "neither"),
        ({"depth": {0: 7}, "boundary": "reflect"}, ArgumentError, "7 along axis 0.*6"),
        ({"depth": {0: 6}, "boundary": "mirror"}, ArgumentError, "6 along axis 0.*5"),
        ({"depth": {0: 7}, "boundary": "periodic"}, ArgumentError, "7 along axis 0.*6"),
    ],
)
def test_bad_arguments_are_refused_before_a_byte_is_read(options: Any, error: Any, words: str) -> None:
    source = CountingSource(np.zeros((6, 4)))
    with pytest.raises(error, match=words):
        cf.map_overlap(np.negative, source, device="cpu", **options)
    assert source.bytes_read == 0


def test_a_constant_that_the_dtype_cannot_hold_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"0\.5 cannot be stored"):
        cf.map_overlap(np.negative, np.zeros((4, 4), "i4"), depth=1, boundary=0.5, device="cpu")


def test_an_output_that_is_the_input_is_refused() -> None:
    x = np.zeros((8, 4))
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.map_overlap(np.negative, x, depth=1, out=x, device="cpu")


def test_a_result_of_another_shape_says_what_was_expected() -> None:
    with pytest.raises(ResultError, match=r"\(8, 6\).*expected \(10, 6\).*trim=False"):
        cf.map_overlap(lambda b: b[1:-1], np.zeros((8, 4)), depth=1, boundary="nearest", device="cpu")


def test_a_budget_too_small_for_one_element_and_its_halo_says_what_would_do() -> None:
    with pytest.raises(BudgetError) as caught:
        cf.map_overlap(
            np.copy, CountingSource(np.zeros((50, 50, 50))), depth=10, boundary="nearest", budget=20_000, dtype="f8",
            workspace=0.0, device=checking("eager", staged=True),
        )  # fmt: skip
    assert caught.value.smallest is not None
    assert caught.value.smallest > 21**3 * 8


def rows(block: np.ndarray) -> np.ndarray:
    """Sums of three rows, for all but the block's first and last."""
    return np.concatenate([block[:1], block[:-2] + block[1:-1] + block[2:], block[-1:]])


def summed(x: np.ndarray) -> np.ndarray:
    return rows(np.pad(x, ((1, 1), (0, 0)), "edge"))[1:-1]


@pytest.mark.parametrize("mode", ["threaded", "lazy"])
@pytest.mark.parametrize("lanes", [3, 4])
@pytest.mark.parametrize("depths", [(4, 1), (5, 1), (6, 1)])
def test_a_halo_comes_no_sooner_than_its_slot_is_free(mode: str, lanes: int, depths: tuple[int, ...]) -> None:
    """Of several lanes one is ahead of that which computes what was in the slot."""
    x = np.arange(400.0 * 16).reshape(400, 16)
    device = checking(mode, staged=True, lanes=lanes, depths=depths)
    # Lines are short: where one begins nothing is taken over, and nothing else orders one lane after another.
    options: dict[str, Any] = {"depth": {0: 1, 1: 0}, "boundary": "nearest", "chunks": (150, 2)}
    same(cf.map_overlap(rows, x, device=device, budget=10**6, **options), summed(x))


@pytest.mark.parametrize("step", ["take_over", "complete"])
def test_memory_that_runs_out_while_a_halo_is_made_is_an_error(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a call is made at once and says only once that it failed."""

    def call(self: Any, fn: Any, reads: Any = (), writes: Any = ()) -> Done:
        try:
            return Done(fn(), None)
        except BaseException as error:
            return Done(None, error)

    times, real = itertools.count(), getattr(Loaded, step)

    def failing(self: Loaded, *args: Any) -> None:
        if next(times) == 3:
            raise MemoryError("no room")
        real(self, *args)

    monkeypatch.setattr("chunkflow.devices.cpu.device._EagerLane.call", call)
    monkeypatch.setattr(Loaded, step, failing)
    x = np.arange(200.0 * 64).reshape(200, 64)
    device = numpy_device("eager", staged=True, lanes=1)
    with pytest.raises(MemoryError, match="no room"):
        cf.map_overlap(rows, x, depth={0: 1}, boundary="nearest", device=device, budget=120_000)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_the_traceback_of_a_failed_run_keeps_no_block(mode: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers, real = [], NumpyPool.allocate

    def allocate(self: NumpyPool, nbytes: int) -> np.ndarray:
        found = real(self, nbytes)
        buffers.append(weakref.ref(found))
        return found

    monkeypatch.setattr(NumpyPool, "allocate", allocate)
    x = np.arange(400.0 * 64).reshape(400, 64)
    with pytest.raises(cf.ReadError) as caught:
        cf.map_overlap(
            rows,
            FailingArray(x, after=8),
            depth={0: 1},
            boundary="nearest",
            device=numpy_device(mode, staged=True, lanes=lanes),
            budget=120_000,
        )
    gc.collect()
    assert buffers
    assert not [ref for ref in buffers if ref() is not None]
    assert caught.tb is not None


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_result_that_is_a_view_of_its_block_is_stored_before_that_is_overwritten(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another lane reads the slot's next block: there are more slots than lanes, but not twice as many."""
    write, naps = ArraySink.write, itertools.cycle([0.002, 0.0, 0.001])
    monkeypatch.setattr(ArraySink, "write", lambda self, *a: (time.sleep(next(naps)), write(self, *a)))
    x: Any = np.random.default_rng(0).random((60, 6, 5), "f4")
    if where == "file":
        np.save(tmp_path / "x.npy", x)
    device = NumpyDevice(machine=machine(staged=False, lanes=2, depths=(3,), cache=1 << 30))
    got = cf.map_overlap(
        lambda b: b[:, 1:-1, 1:-1], tmp_path / "x.npy" if where == "file" else x, depth=(0, 1, 1), trim=False,
        boundary="nearest", chunks=(3, -1, -1), device=device, dtype="f4", workspace=0,
    )  # fmt: skip
    same(got, x)

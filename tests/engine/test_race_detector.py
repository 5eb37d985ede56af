"""The engine keeps every edge: without one the race detector reports a race, or the data come out wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.devices import MODES, at_work, checking, machine, numpy_device, same

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice, NumpyEvent
from chunkflow.devices.protocol import Edge
from chunkflow.devices.race_detector import ClockDevice
from chunkflow.errors import RaceError
from chunkflow.testing import CountingSource, filled

modes = pytest.mark.parametrize("mode", MODES)


def x() -> np.ndarray:
    return filled((64, 50), "f4")


def stream(device: Any) -> np.ndarray:
    """A run of several blocks, slots, lanes and pieces: 12 blocks of 3 slots, each of 3 pieces and more."""
    options = {"dtype": "f4", "workspace": 0, "chunks": (6, -1), "budget": "40kB"}
    y: np.ndarray = cf.map(lambda a, b: a * b + a, CountingSource(x()), x(), device=device, **options)
    return y


@modes
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("staged", [True, False])
def test_folds_and_stencils_have_no_race(mode: str, lanes: int, staged: bool) -> None:
    same(stencil(checking(mode, staged=staged, lanes=lanes)), x() * 2)
    np.testing.assert_allclose(total(checking(mode, staged=staged, lanes=lanes)), x().sum(axis=0), rtol=1e-6)


def small(mode: str, drop: Edge | None = None) -> ClockDevice:
    return checking(mode, staged=True, piece=400, drop=drop)


@modes
def test_a_run_with_every_edge_has_no_race(mode: str) -> None:
    same(stream(small(mode)), x() * x() + x())


def stencil(device: Any) -> np.ndarray:
    """Blocks whose halos are copied from the block before, which another lane computed."""
    options = {"depth": {0: 2}, "boundary": "nearest", "chunks": (6, -1), "budget": "40kB"}
    y: np.ndarray = cf.map_overlap(lambda b: b * 2, CountingSource(x()), device=device, **options)
    return y


def total(device: Any) -> np.ndarray:
    """Partial results of two lanes, merged by one of them."""
    y: np.ndarray = cf.sum(CountingSource(x()), axis=0, chunks=(6, 50), budget="40kB", device=device)
    return y


RUNS = {Edge.COMPLETE: stencil, Edge.FOLDED: total}


@modes
@pytest.mark.parametrize("edge", list(Edge), ids=lambda e: e.name)
def test_a_run_without_one_edge_is_caught(mode: str, edge: Edge) -> None:
    before = at_work()
    run = RUNS.get(edge, stream)
    with pytest.raises(RaceError, match="nothing orders it"):
        run(checking(mode, staged=True, piece=400, drop=edge, lanes=2 if edge in RUNS else 1))
    assert at_work() == before


# The loop reads on the calling thread, which asks for the next load itself: no OVERWRITE is needed on the CPU.
@modes
@pytest.mark.parametrize("edge", [Edge.PUBLISHED, Edge.REFILL, Edge.ENQUEUED, Edge.UPLOADED], ids=lambda e: e.name)
def test_a_loop_over_chunks_without_one_edge_is_caught(mode: str, edge: Edge) -> None:
    def loop(device: Any) -> float:
        return float(sum(c.data.sum() for c in cf.chunks(x(), chunks=(4, -1), budget="40kB", device=device)))

    assert loop(small(mode)) == x().sum()
    with pytest.raises(RaceError, match="nothing orders it"):
        loop(small(mode, edge))


@modes
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_lanes_that_share_the_hosts_memory_have_no_race(mode: str, lanes: int) -> None:
    table, row, column = x(), CountingSource(filled((1, 50), "f4")), CountingSource(filled((64, 1), "f4"))
    for chunks in ((3, -1), (-1, 7), (9, 9)):
        options = {"dtype": "f4", "workspace": 0, "chunks": chunks, "budget": "60kB"}
        device = checking(mode, staged=False, lanes=lanes)
        got = cf.map(lambda a, b, c: a * b + c, table, row, column, device=device, **options)
        same(got, table * row[...] + column[...])


# OVERWRITE follows from STORED there: a lane reads a block only when the one before it in the slot has landed.
def test_lanes_that_share_the_hosts_memory_need_their_uploads() -> None:
    row = CountingSource(filled((1, 50), "f4"))  # read on one lane and used on the others
    options = {"dtype": "f4", "workspace": 0, "chunks": (7, 11), "budget": "60kB"}
    with pytest.raises(RaceError, match="nothing orders it"):
        cf.map(np.multiply, x(), row, device=checking("threaded", staged=False, drop=Edge.UPLOADED), **options)


# -- The modes see something even without the race detector ------------------------------------------------------


class _DeafLane:
    """A lane that does not wait for one kind of edge."""

    def __init__(self, inner: Any, drop: Edge) -> None:
        self._inner, self._drop = inner, drop

    def wait(self, event: Any, edge: Edge) -> None:
        if edge is not self._drop:
            self._inner.wait(event, edge)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _DeafEvent(NumpyEvent):
    """An event that nobody waits for on one kind of edge."""

    def __init__(self, drop: Edge) -> None:
        super().__init__()
        self._drop = drop

    def synchronize(self, edge: Edge) -> None:
        if edge is not self._drop:
            super().synchronize(edge)


class Dropping:
    """A device that does not wait for one kind of edge, and nobody there to object."""

    def __init__(self, inner: NumpyDevice, drop: Edge) -> None:
        self._inner, self._drop = inner, drop

    def lane(self, *, kernels: bool = False) -> Any:
        return _DeafLane(self._inner.lane(kernels=kernels), self._drop)

    def event(self, *, timed: bool = False) -> Any:
        return _DeafEvent(self._drop)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# Not so OVERWRITE and COMPUTED: NumPy's kernels have run when the host hears of their result, so only the race
# detector can tell that a GPU's would not have.
@pytest.mark.parametrize("edge", [Edge.UPLOADED, Edge.REFILL, Edge.LANDED], ids=lambda e: e.name)
def test_laziness_and_poison_turn_a_missing_edge_into_wrong_data(edge: Edge) -> None:
    lazy = numpy_device("lazy", staged=True, piece=400)
    same(stream(lazy), x() * x() + x())
    with np.errstate(all="ignore"):
        assert not np.array_equal(stream(Dropping(lazy, edge)), x() * x() + x())


def test_fresh_and_freed_memory_is_poisoned() -> None:
    device = NumpyDevice(mode="eager", staged=True, poison=True, machine=machine(staged=True))
    pool = device.pool(4096)
    fresh = pool.allocate(64)
    assert np.isnan(fresh.view("f4")).all()
    fresh[:] = 0
    pool.free(fresh)
    assert np.isnan(fresh.view("f4")).all()
    assert all(np.isnan(slot.array[:8].view("f4")).all() for slot in pool.host_buffers(2, 8))

"""How passes are cut into partitions: by their arrays and the size asked for, and without dask."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.cluster import partition
from chunkflow.cluster.partition import Partitioning, filled, partitioned, pass_of
from chunkflow.errors import ArgumentError, UnsupportedError


def cut(array: Any, size: int | str, sink: tuple[int, ...] | None = None) -> Partitioning:
    return partitioned(pass_of(array._node)[0], size, sink)


@given(
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple),
    size=st.integers(1, 2000),
    axis=st.integers(-1, 2),
    data=st.data(),
)
def test_partitions_cover_the_nest_once(shape: tuple[int, ...], size: int, axis: int, data: Any) -> None:
    x = cf.open(np.ones(shape))
    reduces = 0 <= axis < len(shape)
    sink = None if reduces else tuple(data.draw(st.integers(1, 4)) for _ in shape)
    found = cut(x.sum(axis=axis) if reduces else x + 1, size, sink)
    covered = np.zeros(shape, int)
    for index in found:
        covered[found.box(index)] += 1
        if sink is not None:
            assert all(side.start % chunk == 0 for side, chunk in zip(found.box(index), sink, strict=True))
    assert (covered == 1).all()
    assert len(list(found)) == len(found)
    units = sink or (1,) * len(shape)
    least = [min(side, unit) for side, unit in zip(found.sides, units, strict=True)]
    assert found.nbytes <= max(size, 8 * math.prod(least)), found
    assert found.folded <= {axis}


def test_stored_chunks_are_not_cut(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=(100, 100), chunks=(10, 50), dtype="f4")
    x = cf.open(path)
    assert cut(x + 1, "5kB").sides == (10, 100)
    assert cut(x + 1, "5kB", (4, 100)).sides == (20, 100)
    assert cut(x.sum(axis=0), 1).sides == (10, 50)


def test_partial_results_are_small_enough_to_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "PARTIAL", 1000)
    found = cut(cf.open(np.ones((500, 60, 70))).sum(axis=0), "1MB")
    assert math.prod(found.sides[1:]) <= 1000
    assert found.folded == {0} or found.counts[0] == 1


def test_products_are_cut_into_squares_and_never_along_what_is_summed() -> None:
    a = cf.open(np.ones((64, 32)))
    found = cut(cf.matmul(a, a.T), 2 * 16 * 32 * 8)
    assert found.sides == (16, 16, 32)
    assert not found.folded


def test_functions_that_ask_where_they_are_see_a_whole_run() -> None:
    x = cf.open(np.ones((8, 8)))
    assert len(cut(x.map(lambda b, block_id: b + block_id[0], dtype="f8"), 8)) == 1
    assert len(cut(x.map(lambda b: b.cumsum(axis=0), chunks=(2, 2), dtype="f8"), 8)) == 1


def test_flattened_results_have_more_elements_than_the_nest() -> None:
    x = cf.open(np.arange(120.0).reshape(30, 4))
    found = cut(x.cumsum(axis=None), 100)
    assert found.chunks((120,)) == ((120,),)
    assert found.region((0, 0), (120,)) == (slice(0, 120),)


def test_what_a_pass_waits_for_is_named() -> None:
    x = cf.open(np.ones((8, 8)))
    mean = x.mean()
    made, awaited = pass_of((x - mean)._node)
    assert awaited == [mean._node]
    assert [filled(source, [np.ones(())]) for source in made.sources][-1] == np.ones(())


def test_what_decides_on_its_next_pass_is_refused() -> None:
    x = cf.open(np.ones((8, 8)))
    for array in (np.fft.fftn(x), abs(np.fft.fftn(x)).sum()):
        with pytest.raises(UnsupportedError, match=r"(?s)fftn.*several passes.*compute\(\)"):
            pass_of(array._node)


def test_a_hundred_terabytes_are_planned_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=(25_000, 1000, 1_000_000), chunks=(25, 100, 10_000), dtype="f4")
    x = cf.open(path)
    begin = time.perf_counter()
    plan = cf.explain(((x - x.mean()) ** 2).mean(), workers=256, partition="64GB", budget="4GB", device="cpu")
    print(f"{plan}\n{time.perf_counter() - begin:.2f} s")  # to be read: no clock decides a test
    assert plan.tasks == 2 * 2000
    assert all(found.nbytes <= 64e9 for _, found in plan.parts)
    assert plan.seconds > 0
    assert "tasks on 256 workers" in str(plan)
    assert "60.00 GB each, combined in a tree" in str(plan)
    half = cf.explain((x**2).mean(), workers=128, partition="64GB", budget="4GB", device="cpu")
    whole = cf.explain((x**2).mean(), workers=256, partition="64GB", budget="4GB", device="cpu")
    assert half.seconds == pytest.approx(2 * whole.seconds)


def test_there_is_a_worker() -> None:
    for workers in (0, -1, True, "2", 2.5):
        with pytest.raises(ArgumentError, match=f"workers={workers!r} must be a whole number"):
            cf.explain(cf.open(np.ones(3)).sum(), workers=workers)

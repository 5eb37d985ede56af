"""Chunks of new outputs get smaller where the budget asks for it, unless users have chosen them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.errors import SlowRunWarning

SHAPE, CHUNKS = (6, 16, 24, 24), (1, 16, 24, 24)
TIGHT = {"budget": "500kB", "device": "cpu"}


@pytest.fixture
def x(tmp_path: Path) -> Any:
    values = np.random.default_rng(0).random(SHAPE, "f4")
    zarr.create_array(tmp_path / "x.zarr", data=values, chunks=CHUNKS)
    return cf.open(tmp_path / "x.zarr")


def hungry(block: Any) -> Any:
    """The same elements, by way of forty times as many."""
    return np.repeat(block[None], 40, 0).max(0)


EXPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "a map": lambda x: cf.map(hungry, x),
    "an overlap": lambda x: cf.map_overlap(hungry, x, depth=(0, 1, 2, 2)),
    "a reduction": lambda x: np.mean(cf.map(hungry, x), axis=0),
    "two passes": lambda x: cf.map(hungry, x) - x.mean(),
}
SINKS: dict[str, Callable[[Path], Any]] = {
    "zarr": lambda folder: folder / "y.zarr",
    "HDF5": lambda folder: folder / "y.h5",
    "netCDF": lambda folder: folder / "y.nc",
    "compressed HDF5": lambda folder: cf.NewArray(folder / "y.h5", compressors="gzip"),
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_is_planned_in_memory_is_stored(name: str, sink: str, x: Any, tmp_path: Path) -> None:
    asked = EXPRESSIONS[name](x)
    cf.explain(asked, **TIGHT)
    cf.store(asked, SINKS[sink](tmp_path), **TIGHT)
    stored = cf.open(tmp_path / ("y.zarr" if sink == "zarr" else "y.nc" if sink == "netCDF" else "y.h5"))
    np.testing.assert_allclose(stored.compute(device="cpu"), asked.compute(device="cpu"), rtol=1e-6)


def test_chunks_are_no_smaller_than_need_be(x: Any, tmp_path: Path) -> None:
    y = cf.map(hungry, x)
    assert y.to_zarr(tmp_path / "roomy.zarr", budget="8MB", device="cpu").chunks == CHUNKS
    assert y.to_zarr(tmp_path / "tight.zarr", **TIGHT).chunks == (1, 4, 24, 24)


def test_an_axis_that_blocks_have_whole_stays_whole_in_chunks(x: Any, tmp_path: Path) -> None:
    y = cf.apply_gufunc(hungry, "(i,j)->(i,j)", x)
    assert y.to_zarr(tmp_path / "y.zarr", **TIGHT | {"budget": "250kB"}).chunks == (1, 1, 24, 24)


CHOSEN: dict[str, Callable[..., Any]] = {
    "chunks=": lambda y, path, chunks: y.to_zarr(path, chunks=chunks, **TIGHT),
    "a NewArray": lambda y, path, chunks: y.to_zarr(cf.NewArray(path, chunks=chunks), **TIGHT),
    "shards=": lambda y, path, chunks: y.to_zarr(cf.NewArray(path, chunks=(1, 1, 8, 8), shards=chunks), **TIGHT),
}


@pytest.mark.parametrize("way", CHOSEN)
def test_chunks_that_are_chosen_are_kept_and_the_refusal_names_some_that_fit(way: str, x: Any, tmp_path: Path) -> None:
    y = cf.map_overlap(hungry, x, depth=(0, 1, 2, 2))
    with pytest.raises(cf.BudgetError, match=r"blocks hold whole chunks \(1, 16, 24, 24\) of ") as caught:
        CHOSEN[way](y, tmp_path / "y.zarr", CHUNKS)
    word = "shards" if way == "shards=" else "chunks"
    found = re.search(rf"; {word}=\(([\d, ]+)\) would fit", str(caught.value))
    assert found is not None
    chunks = tuple(map(int, found[1].split(",")))
    CHOSEN[way](y, tmp_path / "y.zarr", chunks)
    double = (1, 2 * chunks[1], *chunks[2:])
    with pytest.raises(cf.BudgetError):
        CHOSEN[way](y, tmp_path / "z.zarr", double)


def test_blocks_that_are_fixed_by_chunks_too(x: Any, tmp_path: Path) -> None:
    with pytest.raises(cf.BudgetError, match=r"; chunks=\(1, 4, 24, 24\) would fit"):
        cf.map(hungry, tmp_path / "x.zarr", out=tmp_path / "y.zarr", chunks=CHUNKS, **TIGHT)
    assert cf.map(hungry, tmp_path / "x.zarr", out=tmp_path / "y.zarr", chunks=(1, 4, 24, 24), **TIGHT).chunks[1] == 4


def test_an_array_that_exists_keeps_its_chunks(x: Any, tmp_path: Path) -> None:
    there = zarr.create_array(tmp_path / "y.zarr", shape=SHAPE, chunks=CHUNKS, dtype="f4")
    with pytest.raises(cf.BudgetError) as caught:
        cf.store(cf.map(hungry, x), there, **TIGHT)
    assert "would fit" not in str(caught.value)


def test_a_dataset_without_chunks_is_no_obstacle(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "y.h5", "w") as file:
        out = file.create_dataset("y", SHAPE, "f4")
        cf.map(hungry, np.ones(SHAPE, "f4"), out=out, **TIGHT)
        assert (out[...] == 1).all()


@pytest.fixture
def deep(tmp_path: Path) -> Any:
    """Chunks of a file of which few fit a budget."""
    values = np.random.default_rng(0).random((200, 64, 96), "f4")
    with h5py.File(tmp_path / "deep.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(50, 64, 96), compression="gzip")
    return cf.open(tmp_path / "deep.h5")


REDUCED: dict[str, Callable[[Any], Any]] = {
    "groups": lambda x: cf.groupby_reduce(x, np.arange(200) % 10, func="nanmean", axis=0)[0],
    "lines": lambda x: np.nanmean(x, axis=(1, 2)),
    "windows": lambda x: np.lib.stride_tricks.sliding_window_view(x, 5, axis=0).mean(-1),
    "deviations": lambda x: x.std(axis=0),
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("budget", ["6MB", "8MB", "10MB"])
def test_a_stored_result_takes_not_much_longer_than_one_in_memory(
    name: str, sink: str, budget: str, deep: Any, tmp_path: Path
) -> None:
    asked = REDUCED[name](deep)
    (free,) = cf.explain(asked, budget=budget, device="cpu").plans
    (plan,) = cf.explain(cf.store, asked, SINKS[sink](tmp_path), budget=budget, device="cpu").plans
    assert plan.bytes_in <= 2 * free.bytes_in
    assert plan.memory.total <= plan.budget


def test_chunks_that_suit_blocks_hold_what_was_computed(deep: Any, tmp_path: Path) -> None:
    asked = REDUCED["groups"](deep)
    stored = asked.to_zarr(tmp_path / "y.zarr", budget="6MB", device="cpu")
    assert stored.chunks == (4, 48, 10)
    np.testing.assert_allclose(stored[...], asked.compute(device="cpu"))
    said = cf.NewArray(tmp_path / "said.zarr", chunks=(32, 48, 10))
    with pytest.warns(SlowRunWarning, match="read elements"):  # of chunks that are said, which do not suit
        assert cf.store(asked, said, budget="6MB", device="cpu").chunks == (32, 48, 10)


@pytest.mark.parametrize(
    ("chunks", "budget", "found"),
    [((-1, "auto", "auto", "auto"), "8MB", (6, 16, 24, 24)), ((-1, "auto", "auto", "auto"), "700kB", (6, 16, 12, 24))],
)
def test_axes_that_are_left_to_the_run_have_smaller_chunks_where_they_must(
    chunks: Any, budget: str, found: tuple[int, ...], x: Any, tmp_path: Path
) -> None:
    """And the whole axis was no whole one beside them."""
    y = cf.map(np.negative, x)
    assert y.to_zarr(tmp_path / "y.zarr", chunks=chunks, device="cpu", budget=budget).chunks == found


def test_a_refusal_names_chunks_that_keep_axes_whole(x: Any, tmp_path: Path) -> None:
    """Blocks that had a part of it gave a function of the axis other values."""
    y = cf.map(hungry, x, chunks=(-1, 16, 24, 24))
    with pytest.raises(cf.BudgetError, match=r"; chunks=\(-1, \d+, \d+, \d+\) would fit"):
        y.to_zarr(tmp_path / "y.zarr", chunks=(-1, 16, 24, 24), device="cpu", budget="700kB")

"""Arrays that give other blocks than they say, or masked ones, are refused wherever they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ArgumentTypeError, ReadError, UnsupportedError

da = pytest.importorskip("dask.array")

from chunkflow import dask as cd  # noqa: E402

CPU = {"device": "cpu"}


class Like:
    """An array of 20 integers whose slices are something else."""

    shape, dtype = (20,), np.dtype("i4")

    def __init__(self, change: Callable[[np.ndarray], Any]) -> None:
        self._change = change

    def __getitem__(self, region: Any) -> Any:
        return self._change(np.arange(20, dtype="i4")[region])


def on_dask(change: Callable[[Any], Any]) -> Any:
    return da.arange(20, chunks=5, dtype="i4").map_blocks(change, dtype="i4", meta=np.empty(0, "i4"))


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "map": lambda x, _: cf.map(lambda b: b + 1, x, **CPU),
    "sum": lambda x, _: cf.sum(x, **CPU),
    "copy into a file": lambda x, place: cf.copy(x, out=place / "y.npy", **CPU),
    "lazy": lambda x, _: (cf.open(x) + 1).compute(**CPU),
    "lazy map": lambda x, _: cf.map(lambda b: b + 1, cf.open(x)).compute(**CPU),
    "chunks": lambda x, _: [chunk.data for chunk in cf.chunks(x, chunks=(4,), **CPU)],
    "label_statistics": lambda x, _: cf.label_statistics(x, np.ones(20, int), **CPU),
    "labels": lambda x, _: cf.label_statistics(np.ones(20), x, **CPU),
    "unique": lambda x, _: cf.unique(x, **CPU),
    "quantile": lambda x, _: cf.quantile(x, 0.5, **CPU),
    "matmul": lambda x, _: cf.matmul(x, np.ones(20), **CPU),
    "fft": lambda x, _: cf.fft.fft(x, **CPU),
    "concatenate": lambda x, _: cf.concatenate([np.ones(3), x], **CPU),
    "stack": lambda x, _: cf.stack([np.ones(20), x], **CPU),
    "map_overlap": lambda x, _: cf.map_overlap(lambda b: b, x, depth=1, **CPU),
    "store of a mix": lambda x, place: cf.store(
        [cf.open(np.ones(3)), cf.open(x) + 1], [place / "a.npy", place / "y.npy"]
    ),
}
"""Ways to read an array, on one machine."""

ON_A_CLUSTER: dict[str, Callable[[Any, Path], Any]] = {
    "to_dask": lambda x, _: (cf.open(x) + 1).to_dask(partition="80B", **CPU).compute(scheduler="sync"),
    "dask.compute": lambda x, _: da.compute(cf.open(x).sum(), scheduler="sync"),
    "map_overlap": lambda x, _: (
        cf.map_overlap(lambda b: b, cf.open(x), depth=1, boundary="periodic")
        .to_dask(partition="80B", **CPU)
        .compute(scheduler="sync")
    ),
    "dask.store": lambda x, place: cd.store(cf.open(x) + 1, place / "y.zarr", scheduler="sync", **CPU),
}
"""Ways that make tasks of it."""

BLOCKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another dtype": (lambda b: b + 0.5, r"dtype float64 for \[.*\], although its dtype is int32"),
    "a wider dtype": (lambda b: b.astype("i8") + 2**40, r"dtype int64 for \[.*\], although its dtype is int32"),
    "another shape": (lambda b: b[: len(b) // 2], r"shape \(\d+,\) for \[.*\], which has shape \(\d+,\)"),
    "a mask": (lambda b: np.ma.masked_less(b, 7), r"a masked array for \[.*\], whose mask would be lost"),
}
"""What a block may be instead, and what is said of it."""


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Like, on_dask])
def test_a_block_that_is_not_what_its_array_says_is_refused(make: Any, way: str, block: str, tmp_path: Path) -> None:
    change, said = BLOCKS[block]
    with pytest.raises(ReadError, match=said) as caught:
        WAYS[way](make(change), tmp_path)
    assert caught.value.region is not None
    assert not list(tmp_path.glob("y.*"))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("way", ON_A_CLUSTER)
def test_so_it_is_on_a_cluster(way: str, block: str, tmp_path: Path) -> None:
    change, said = BLOCKS[block]
    with pytest.raises(ReadError, match=said):
        ON_A_CLUSTER[way](on_dask(change), tmp_path)
    assert not list(tmp_path.glob("y.*"))


MASKED = da.ma.masked_greater(da.arange(20, chunks=5), 7)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("lazy", "lazy map", "store of a mix")])
def test_a_dask_array_that_is_said_to_be_masked_is_refused_at_once(way: str, tmp_path: Path) -> None:
    for array in (MASKED, da.concatenate([MASKED[:10], da.arange(10, chunks=5)])):
        with pytest.raises((ArgumentTypeError, ReadError), match=r"lose its mask.*da\.ma\.filled|mask would be lost"):
            WAYS[way](array, tmp_path)


@pytest.mark.parametrize("way", ["lazy", "lazy map", "store of a mix", *ON_A_CLUSTER])
def test_an_expression_of_it_keeps_the_mask_or_is_refused(way: str, tmp_path: Path) -> None:
    call = {**WAYS, **ON_A_CLUSTER}[way] if way != "map_overlap" else ON_A_CLUSTER[way]
    if way in ("lazy", "to_dask"):
        np.testing.assert_array_equal(call(MASKED, tmp_path).filled(0), [*range(1, 9), *[0] * 12])
        return
    if way == "dask.compute":
        assert call(MASKED, tmp_path) == (28,)
        return
    with pytest.raises((ArgumentTypeError, UnsupportedError), match=r"filled\(value\)|to_dask\(\)"):
        call(MASKED, tmp_path)


@pytest.mark.parametrize("way", ["sum", "lazy", "copy into a file", "to_dask", "map_overlap"])
def test_a_narrower_dtype_becomes_the_one_that_was_said(way: str, tmp_path: Path) -> None:
    narrow = da.arange(20, chunks=5).map_blocks(lambda b: b.astype("i2"), dtype="i8", meta=np.empty(0, "i8"))
    array = np.arange(20)
    expected = {"sum": array.sum(), "lazy": array + 1, "to_dask": array + 1}.get(way, array)
    for ways in (WAYS, ON_A_CLUSTER):
        if way in ways:
            found = ways[way](narrow, tmp_path)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == "i8"

"""Boxes of neighbours are reduced as NumPy reduces an array with split axes: in one pass, and without a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import CHECKING, CPU, Place, on_cpu_and_gpu

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.engine.trial import STAGED_BYTES
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores import open_source
from chunkflow.stores.views.split import SplitSource, split_axes
from chunkflow.testing import CountingSource


def spread(block: Any, axis: Any) -> Any:
    return block.max(axis=axis) - block.min(axis=axis)


REDUCTIONS = (np.mean, np.sum, np.min, np.median, np.std, np.nanmax, cf.mean, spread)


def opened(x: np.ndarray, store: str, folder: Path) -> Any:
    if store == "npy":
        np.save(folder / "x.npy", np.asfortranarray(x))
        return folder / "x.npy"
    if store == "zarr":
        made = zarr.create_array(
            folder / "x.zarr", shape=x.shape, chunks=tuple(-(-n // 2) for n in x.shape), dtype=x.dtype, overwrite=True
        )
        made[...] = x
        return folder / "x.zarr"
    return x


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(1, 14), min_size=1, max_size=3).map(tuple),
    sides=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    which=st.sampled_from(REDUCTIONS),
    store=st.sampled_from(["memory", "npy", "zarr"]),
    way=st.sampled_from(["eager", "lazy", "expression"]),
    place=st.sampled_from([CPU, *CHECKING]),
    nbytes=st.sampled_from([500_000, 4_000_000]),
)
def test_boxes_are_reduced_as_numpy_does(
    shape: Any, sides: Any, which: Any, store: str, way: str, place: Place, nbytes: int, tmp_path_factory: Any
) -> None:
    x = np.random.default_rng(0).integers(-99, 99, shape) / 4
    boxes = {a: min(side, n) for a, (side, n) in enumerate(zip(sides, shape, strict=False)) if a != 1 or side > 2}
    trimmed = x[tuple(slice(0, n - n % boxes.get(a, 1)) for a, n in enumerate(shape))]
    split = [m for a, n in enumerate(trimmed.shape) for m in ((n // boxes[a], boxes[a]) if a in boxes else (n,))]
    within = tuple(sum(1 + (d in boxes) for d in range(a)) + 1 for a in sorted(boxes))
    expected = (np.mean if which is cf.mean else which)(trimmed.reshape(split), axis=within)
    source = opened(x, store, tmp_path_factory.mktemp("coarsen"))
    run = {"device": place.device(), "budget": place.budget(nbytes)}
    if way == "eager":
        got = cf.coarsen(which, source, boxes, trim_excess=True, **run)
    else:
        lazy = cf.open(source) * 1 if way == "expression" else cf.open(source)
        got = cf.coarsen(which, lazy, boxes, trim_excess=True).compute(**run)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=20)
@given(
    parts=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3),
    store=st.sampled_from(["memory", "npy", "zarr"]),
    place=st.sampled_from([CPU, *CHECKING]),
    chunks=st.sampled_from([None, 1, 2]),
)
def test_a_reshape_that_splits_axes_is_a_view(
    parts: Any, store: str, place: Place, chunks: Any, tmp_path_factory: Any
) -> None:
    x = np.random.default_rng(0).integers(-99, 99, [int(np.prod(part)) for part in parts])
    shape = [n for part in parts for n in part]
    lazy = cf.open(opened(x, store, tmp_path_factory.mktemp("split")))
    run = {"device": place.device(), "budget": place.budget(2_000_000)}
    got = (lazy * 2 + np.arange(x.shape[-1])).reshape(shape)
    assert len(cf.explain(got, device="cpu").passes) == 1
    right = (x * 2 + np.arange(x.shape[-1])).reshape(shape)
    np.testing.assert_array_equal(got.compute(**run), right)
    np.testing.assert_array_equal(
        cf.map(np.negative, lazy.reshape(shape), chunks=chunks).compute(**run), -x.reshape(shape)
    )


def test_a_reshape_that_leaves_an_axis_out() -> None:
    x = np.arange(24.0).reshape(4, 6, 1)
    for shape in ((4, 6), (2, 2, 6), (4, 6, 1, 1)):
        parts = split_axes(x.shape, shape)
        assert parts is not None
        got = np.empty(shape)
        SplitSource(open_source(CountingSource(x)), parts).read(whole(shape), got)
        np.testing.assert_array_equal(got, x.reshape(shape))


@on_cpu_and_gpu
def test_an_expression_is_coarsened_in_the_pass_that_reads_it(place: Place) -> None:
    x = np.random.default_rng(0).random((600, 40, 40))
    source = CountingSource(x)
    got = cf.coarsen(np.mean, np.sqrt(cf.open(source)), {0: 6, 2: 4})
    found = got.compute(budget=place.budget(8_000_000), device=place.device())
    assert source.bytes_read <= 1.05 * x.nbytes + (STAGED_BYTES if place.is_gpu else 0)  # of the trial
    np.testing.assert_allclose(place.host(found), np.sqrt(x).reshape(100, 6, 40, 10, 4).mean(axis=(1, 4)))


def test_what_boxes_do_not_fill_is_refused() -> None:
    x = cf.open(np.ones((4, 6)))
    with pytest.raises(ArgumentError, match="leaves 1 out"):
        cf.coarsen(np.mean, x, {0: 3})
    with pytest.raises(ArgumentError, match="at least 1"):
        cf.coarsen(np.mean, x, {0: 0})
    with pytest.raises(ArgumentError, match="twice"):
        cf.coarsen(np.mean, x, {0: 2, -2: 2})
    with pytest.raises(ArgumentTypeError, match="a dict"):
        cf.coarsen(np.mean, x, 2)
    with pytest.raises(ArgumentTypeError, match="callable"):
        cf.coarsen("mean", x, {0: 2})

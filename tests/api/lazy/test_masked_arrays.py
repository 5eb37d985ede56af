"""Masked expressions: one pass over elements and mask, sources, results, and refusals of what would lose a mask."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.devices import Place, on_cpu_and_gpu
from support.masked import as_ma

import chunkflow as cf
from chunkflow import errors
from chunkflow.testing import CountingSource

# -- Passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "mean", "std", "min", "all", "count", "argmax"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_reduction_reads_elements_and_mask_once(name: str, axis: int | None) -> None:
    parts = [CountingSource(np.ones((64, 1000))), CountingSource(np.arange(64000).reshape(64, 1000) % 3 == 0)]
    x = cf.masked_array(*parts)
    result = getattr(np.sqrt(x) / 2, name)(axis=axis)
    plan = cf.explain(result, device="cpu", budget="600kB")
    assert len(plan) == 1
    assert plan.bytes_in == 64000 * 9
    before = sum(part.bytes_read for part in parts)
    cf.compute(result, device="cpu", budget="600kB")
    assert sum(part.bytes_read for part in parts) - before <= 1.1 * plan.bytes_in  # and a trial's block


def test_elements_and_mask_are_computed_in_one_pass() -> None:
    x = cf.masked_array(np.ones((64, 1000)), np.ones((64, 1000), bool))
    plan = cf.explain(np.log(x) * 2, x.mean(axis=0), x.std(), device="cpu")
    assert len(plan) == 1
    assert plan.bytes_in == 64000 * 9


# -- Sources, results and refusals -------------------------------------------------------------------------------------

X = np.ma.array(np.arange(12.0).reshape(3, 4), mask=np.eye(3, 4, dtype=bool))


@on_cpu_and_gpu
def test_devices(place: Place) -> None:
    device, lazy = place.device(), cf.open(X)
    as_ma((np.log(lazy) / 2).compute(device=device), np.ma.log(X) / 2)
    as_ma(np.sort(lazy, axis=0).compute(device=device), np.sort(X, axis=0))
    as_ma(np.median(lazy, axis=1).compute(device=device), np.ma.median(X, axis=1))
    for name in ("sum", "mean", "var", "min", "max"):
        as_ma(getattr(lazy, name)(axis=0).compute(device=device), getattr(X, name)(axis=0))
    assert lazy.max().compute(device=device) == X.max()
    assert (lazy * np.ma.masked).sum().compute(device=device) is np.ma.masked


def test_a_mapped_file_is_read_when_it_is_computed(tmp_path: Path) -> None:
    file = np.memmap(tmp_path / "x", mode="w+", dtype="f4", shape=(3, 4))
    x = cf.open(np.ma.array(file, mask=np.eye(3, 4, dtype=bool)))
    file[...] = 2
    assert x.sum().compute(device="cpu") == 18
    assert "x" in repr(x)


def test_dask_arrays_with_masked_blocks() -> None:
    da = pytest.importorskip("dask.array")
    d = da.from_array(X, chunks=2, asarray=False)
    for x in (cf.open(d), cf.from_dask(d)):
        as_ma((x + 1).compute(device="cpu"), X + 1)
        as_ma(x.mean(axis=0).compute(device="cpu"), X.mean(axis=0))
    made = (x * 2).to_dask(partition="64B", device="cpu")
    assert isinstance(made._meta, np.ma.MaskedArray)
    assert made.npartitions > 1
    as_ma(made.compute(scheduler="sync"), X * 2)
    assert made.sum().compute(scheduler="sync") == (X * 2).sum()


def test_what_makes_masked_expressions() -> None:
    x = np.array([1.0, np.nan, -999, 4])
    as_ma(cf.masked_invalid(x).compute(device="cpu"), np.ma.masked_invalid(x))
    as_ma(cf.masked_equal(x, -999).compute(device="cpu"), np.ma.masked_equal(x, -999))
    assert cf.masked_equal(x, -999).compute(device="cpu").fill_value == -999
    condition = np.ma.masked_greater(x, 3) > 0
    as_ma(cf.masked_where(condition, cf.open(x)).compute(device="cpu"), np.ma.masked_where(condition, x))
    as_ma(cf.masked_where([0, 2, 0, 0], x).compute(device="cpu"), np.ma.masked_where([0, 2, 0, 0], x))
    both = cf.masked_array(np.ma.masked_invalid(x), x == 4, -1)
    as_ma(both.compute(device="cpu"), np.ma.array(x, mask=[0, 1, 0, 1]))
    assert both.fill_value == -1
    row = cf.masked_array(np.ones((2, 2)), [True, False])
    as_ma(row.compute(device="cpu"), np.ma.array(np.ones((2, 2)), mask=[[True, False]] * 2))


@pytest.mark.parametrize(
    ("dtype", "fill", "expected"),
    [
        ("i8", 7.0, 7), ("f4", 0.1, np.float32(0.1)), ("c16", 7.0, 7), ("f8", 7.0, 7),
        ("i8", 0.5, None), ("u1", -7.0, None), ("f4", 1e300, None), ("?", 7.0, None),
    ],
)  # fmt: skip
def test_the_fill_value_stays_where_the_dtype_has_it(dtype: str, fill: float, expected: Any) -> None:
    x, mask = np.array([1.0, 2, 3]), np.array([True, False, False])
    found = cf.masked_array(x, mask, fill_value=fill).astype(dtype)
    assert found.fill_value.dtype == dtype
    assert found.fill_value == (cf.masked_array(x.astype(dtype), mask).fill_value if expected is None else expected)
    assert found.filled().compute(device="cpu")[0] == found.fill_value
    assert expected is None or found.compute(device="cpu").fill_value == expected


def test_the_fill_value_stays_in_results_of_numbers() -> None:
    x = cf.masked_array(np.arange(3), [True, False, False], -1)
    assert x.fill_value == (x * 2)[::-1].fill_value == (x + 1).compute(device="cpu").fill_value == -1
    assert (x / 2).fill_value == np.sqrt(x).fill_value == -1
    assert (x > 2).fill_value
    np.testing.assert_array_equal(x.filled().compute(device="cpu"), [-1, 1, 2])
    for value in (np.nan, "a", [1, 2]):
        with pytest.raises(errors.ArgumentTypeError, match="fill_value"):
            x.filled(value)


def test_stored_as_xarray_has_missing_values(tmp_path: Path) -> None:
    cf.open(X).to_zarr(tmp_path / "x.zarr", device="cpu")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], X.filled(np.nan))
    whole = cf.open(X.astype("i2"))
    whole.to_zarr(
        cf.NewArray(tmp_path / "i.zarr", attributes={"units": "m"}), fill_value=-1, chunks=(2, 2), device="cpu"
    )
    stored = zarr.open_array(tmp_path / "i.zarr")
    assert dict(stored.attrs) == {"units": "m", "_FillValue": -1}
    assert stored.chunks == (2, 2)
    read = cf.open(tmp_path / "i.zarr", decode="cf").compute(device="cpu")
    np.testing.assert_array_equal(read, X.astype("i2").astype("f4").filled(np.nan))
    with pytest.raises(errors.ArgumentTypeError, match="have no NaN: give fill_value="):
        whole.to_zarr(tmp_path / "j.zarr", device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="stored as NaN"):
        cf.open(X).to_zarr(tmp_path / "j.zarr", fill_value=7, device="cpu")


@pytest.mark.parametrize("chunks", [(10_000,), (50_000,)])
def test_an_element_that_would_be_read_as_missing_is_refused(chunks: Any, tmp_path: Path) -> None:
    """Also one that the trial does not see: nothing is left of the output."""
    x = np.arange(1, 100_001).astype("i4")
    x[99_990] = -1
    masked = cf.masked_where(np.arange(100_000) % 3 == 1, x)
    kept = cf.masked_where(np.arange(100_000) % 3 == 99_990 % 3, x)
    with pytest.raises(errors.ValueRangeError, match="fill_value=-1: an element that is not masked is equal to it"):
        masked.to_zarr(tmp_path / "x.zarr", fill_value=-1, chunks=chunks, budget="2MB", device="cpu")
    assert not (tmp_path / "x.zarr").exists()
    stored = kept.to_zarr(tmp_path / "x.zarr", fill_value=-1, device="cpu")
    np.testing.assert_array_equal(stored[...], np.where(np.arange(100_000) % 3 == 99_990 % 3, -1, x))


def test_messages_and_copies() -> None:
    x = cf.open(X) + 1
    as_ma(pickle.loads(pickle.dumps(x)).compute(device="cpu"), X + 1)
    assert copy.copy(x) is copy.deepcopy(x) is x
    assert (x.shape, x.ndim, x.size, x.nbytes, len(x), x.itemsize, str(x.dtype)) == ((3, 4), 2, 12, 96, 3, 8, "float64")
    assert repr(x) == "<chunkflow.MaskedArray add: (3, 4), float64>"
    for one, other in zip(x, X + 1, strict=True):
        as_ma(one.compute(device="cpu"), other)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "map": lambda x, p: cf.map(np.sqrt, x),
    "a method's map": lambda x, p: p.map(np.add, x),
    "map_overlap": lambda x, p: cf.map_overlap(np.sqrt, x, depth=1),
    "tensordot": lambda x, p: cf.tensordot(x, p),
    "chunks": lambda x, p: cf.chunks(x),
    "accumulate": lambda x, p: np.add.accumulate(x),
    "asarray": lambda x, p: np.asarray(x),
    "array": lambda x, p: np.array(x),
    "index": lambda x, p: p[x > 3],
    "where": lambda x, p: np.sum(p, where=x > 3),
    "indices": lambda x, p: np.take(np.arange(20), x.astype(int)),
    "store": lambda x, p: cf.store(x, np.empty((3, 4))),
    "put": lambda x, p: cf.put(x, 0, 1),
    "condition": lambda x, p: np.compress(x[0] > 0, p, axis=1),
    "eager": lambda x, p: cf.sum(X),
    "beside numpy.ma": lambda x, p: p + X,
    "numpy.ma's function": lambda x, p: np.ma.sum(x),
    "numpy.ma's operator": lambda x, p: X + x,
    "prepend": lambda x, p: np.diff(x, prepend=0),
    "return_counts": lambda x, p: cf.unique(x, return_counts=True, device="cpu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_the_mask_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises((errors.ArgumentTypeError, errors.UnsupportedError), match="filled"):
        REFUSED[name](cf.open(X), cf.open(np.ones((3, 4))))


def test_other_refusals() -> None:
    x = cf.open(X)
    with pytest.raises(errors.ArgumentTypeError, match="a mask is of bools"):
        cf.masked_array(np.ones(3), [0, 1, 1])
    with pytest.raises(errors.ArgumentError, match="broadcast"):
        cf.masked_array(np.ones(3), [True, False])
    with pytest.raises(AttributeError, match=r"no to_npy: x\.filled"):
        _ = x.to_npy
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = x.nonsense
    with pytest.raises(errors.UnsupportedError, match="masked_where"):
        x[0] = 1
    for ask in (bool, float, int):
        with pytest.raises(errors.ArgumentError, match="one is asked for"):
            ask(x)
        with pytest.raises(errors.ArgumentError, match="is masked: filled"):
            ask(cf.masked_array([3.0], [True])[0])
        assert ask(cf.masked_array([3.5, 4], [False, True]).sum()) == ask(3.5)
    with pytest.raises(errors.ArgumentError, match="give that to compute"):
        cf.sum(x, budget="1MB")
    with pytest.raises(errors.UnsupportedError, match="out="):
        np.add(x, 1, out=x)
    with pytest.raises(errors.ArgumentError, match="axis"):
        x.sum(axis=5)

"""One rule for all operations: of an expression it is an expression, and refuses keywords that say how to run it.

An opened array, or a part of one, is no expression yet: with an output it is as the array. What has a length that only
the values tell (`unique`, `bincount`, `label_statistics`) runs at once, as of an array, and takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.api.operation import is_operation

X = np.arange(1.0, 13.0).reshape(3, 4)
LABELS = np.arange(12).reshape(3, 4) % 5
WEIGHTS = np.ones((3, 3))


def total(block: Any, axis: Any, keepdims: bool) -> Any:
    return block.sum(axis=axis, keepdims=keepdims)


def two(block: Any) -> tuple[Any, Any]:
    return block + 1, block < 3


ARGUMENTS: dict[str, Callable[..., Any]] = {
    "map": lambda x, **o: cf.map(two, x, **o),
    "blockwise": lambda x, **o: cf.blockwise(np.negative, "ij", x, "ij", **o),
    "map_overlap": lambda x, **o: cf.map_overlap(np.negative, x, depth=1, **o),
    "reduction": lambda x, **o: cf.reduction(x, total, total, **o),
    "concatenate": lambda x, **o: cf.concatenate([x, X], **o),
    "stack": lambda x, **o: cf.stack([x, X], **o),
    "matmul": lambda x, **o: cf.matmul(x, X.T, **o),
    "dot": lambda x, **o: cf.dot(x, X.T, **o),
    "vecdot": lambda x, **o: cf.vecdot(x, X, **o),
    "outer": lambda x, **o: cf.outer(x[0], X[1], **o),
    "tensordot": lambda x, **o: cf.tensordot(x, X.T, 1, **o),
    "einsum": lambda x, **o: cf.einsum("ij,kj->ik", x, X, **o),
    "quantile": lambda x, **o: cf.quantile(x, 0.5, **o),
    "percentile": lambda x, **o: cf.percentile(x, 50, axis=0, **o),
    "nanquantile": lambda x, **o: cf.nanquantile(x, 0.5, **o),
    "nanpercentile": lambda x, **o: cf.nanpercentile(x, 50, axis=0, **o),
    "rechunk": lambda x, **o: cf.rechunk(x, (2, 2), **{"out": "y.zarr", **o}),
    "roll": lambda x, **o: cf.roll(x, 1, 0, **o),
    "pad": lambda x, **o: cf.pad(x, 1, **o),
    "sliding_window_view": lambda x, **o: cf.sliding_window_view(x, 2, 0, **o),
    "gradient": lambda x, **o: cf.gradient(x, axis=0, **o),
    "coarsen": lambda x, **o: cf.coarsen(np.sum, x, {1: 2}, **o),
    "take": lambda x, **o: cf.take(x, [1, 0], 0, **o),
    "compress": lambda x, **o: cf.compress([True], x, 0, **o),
    "take_along_axis": lambda x, **o: cf.take_along_axis(x, np.array([[1], [0], [2]]), 1, **o),
    "put": lambda x, **o: cf.put(x, [0, 2], 9.0, **o),
    "extract": lambda x, **o: cf.extract(X > 3, x, **o),
    "where": lambda x, **o: cf.where(X > 3, x, 0.0, **o),
    "repeat": lambda x, **o: cf.repeat(x, 2, 0, **o),
    "topk": lambda x, **o: cf.topk(x, 2, **o),
    "argtopk": lambda x, **o: cf.argtopk(x, 2, **o),
    "histogram": lambda x, **o: cf.histogram(x, 3, (0, 12), **o),
    "histogram2d": lambda x, **o: cf.histogram2d(x, X, 2, [(0, 9), (0, 9)], **o),
    "histogramdd": lambda x, **o: cf.histogramdd(x, 2, [(0, 9)] * 4, **o),
    "bincount": lambda x, **o: cf.bincount(cf.open(LABELS.ravel()) if isinstance(x, cf.Array) else LABELS.ravel(), **o),
    "unique": lambda x, **o: cf.unique(cf.open(LABELS) if isinstance(x, cf.Array) else LABELS, **o),
    "label_statistics": lambda x, **o: cf.label_statistics(x, LABELS, **o).sum,
    "groupby_reduce": lambda x, **o: cf.groupby_reduce(x, [0, 1, 0, 1], func="sum", **o)[0],
    "convolve": lambda x, **o: cf.convolve(x, WEIGHTS, **o),
    "fft.convolve": lambda x, **o: cf.fft.convolve(x, WEIGHTS, **o),
}
"""How an operation is called that takes more than an array."""

NAMES = [n for n in cf.__all__ if is_operation(getattr(cf, n))]
NAMES += [f"fft.{n}" for n in dir(cf.fft) if is_operation(getattr(cf.fft, n))]
AT_ONCE = ("bincount", "unique", "label_statistics")
RUNNING: dict[str, Any] = {"budget": "1MB", "device": "cpu", "progress": True, "out": "y.npy", "overwrite": True}


def called(name: str, x: Any, **options: Any) -> Any:
    fn = getattr(cf.fft, name[4:]) if name.startswith("fft.") else getattr(cf, name)
    return ARGUMENTS.get(name, fn)(x, **options)


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True):
        assert type(one) is type(other)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in AT_ONCE])
def test_an_expression_is_told_nothing_of_its_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = cf.open(X) * 1
    if name != "rechunk":
        found = called(name, x)
        assert isinstance(found[0] if isinstance(found, tuple) else found, cf.Array)
    for keyword, value in RUNNING.items():
        with pytest.raises(cf.errors.ArgumentError, match=rf"was given .*{keyword}.*: give that to"):
            called(name, x, **{keyword: value})
    assert not list(tmp_path.iterdir())


def stored(name: str, x: Any, folder: Path) -> list[np.ndarray]:
    """What an operation writes, in as many files as there are results."""
    folder.mkdir()
    single, several = str(folder / "y.zarr"), tuple(str(folder / f"{i}.zarr") for i in range(2))
    try:
        called(name, x, out=single)
    except cf.errors.ArgumentError:  # it has two results
        called(name, x, out=several)
    return [cf.open(path).compute(device="cpu") for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*AT_ONCE, "outer")])  # of a row
def test_an_opened_array_is_as_the_array_for_what_writes(name: str, tmp_path: Path) -> None:
    expected = stored(name, X, tmp_path / "expected")
    cf.copy(np.concatenate([X, X]), tmp_path / "x.zarr", device="cpu")
    for number, x in enumerate((cf.open(X), cf.open(tmp_path / "x.zarr")[3:])):
        for found, wanted in zip(stored(name, x, tmp_path / str(number)), expected, strict=True):
            same(found, wanted)


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_runs_at_once_takes_them(name: str) -> None:
    for keyword in ("budget", "device", "progress"):
        same(called(name, cf.open(X) * 1, **{keyword: RUNNING[keyword]}), called(name, X))


@pytest.mark.parametrize("name", NAMES)
def test_other_keywords_are_refused_alike(name: str) -> None:
    for x in (X, cf.open(X) * 1):
        with pytest.raises((cf.errors.ArgumentTypeError, TypeError), match="bugdet"):
            called(name, x, bugdet="1MB")


def test_several_results_that_nothing_has_told_of() -> None:
    x = cf.open(X)
    for lazy in (cf.map(two, x), cf.map(two, x, chunks=(1, -1)), cf.map_overlap(two, x, depth=1)):
        for ask in (lambda y: y.compute(device="cpu"), lambda y: y + 1, lambda y: y.dtype):
            with pytest.raises(cf.errors.ResultError, match="a tuple of 2 arrays: in an expression dtype= must say so"):
                ask(lazy).compute(device="cpu")
    low, high = cf.map(two, x, dtype=("f4", "?"))
    same(cf.compute(low, high, device="cpu"), two(X.astype("f4")))


def test_reductions_of_ones_own() -> None:
    x = cf.open(X)
    rows, rest = cf.reduction(x, total, total, axis=1), cf.reduction(x - x.mean(), total, total)
    same(cf.compute(rows * 2, rest, x.max(), device="cpu"), (X.sum(1) * 2, np.float64(0), np.float64(12)))
    folded = cf.blockwise(lambda b: b.sum(axis=0), "j", x, "ij", combine=np.add)
    same(folded.compute(device="cpu"), X.sum(0))
    both = cf.blockwise(lambda b: (b[0], b[-1]), "j", x, "ij", combine=np.add, dtype=("f8", "f4"))
    found = cf.compute(*both, device="cpu", budget="1MB")
    assert [each.dtype for each in found] == ["f8", "f4"]


def test_the_line_that_runs_several_results_is_right() -> None:
    """An operation that gives several values gives a tuple, which has no compute()."""
    x = cf.open(X)
    with pytest.raises(cf.errors.ArgumentError, match=r"as chunkflow.compute\(groupby_reduce\(...\), budget='4MB'\)"):
        cf.groupby_reduce(x, LABELS[0], func="sum", axis=1, budget="4MB")
    with pytest.raises(cf.errors.ArgumentError, match=r"as chunkflow.compute\(histogram\(...\), budget='4MB'\)"):
        cf.histogram(x, 4, budget="4MB")
    with pytest.raises(cf.errors.ArgumentError, match=r"result, \*_ = .*; chunkflow.store\(result, 'y.npy'\)"):
        cf.groupby_reduce(x * 1, LABELS[0], func="sum", axis=1, out="y.npy")
    with pytest.raises(cf.errors.ArgumentError, match=r"as mean\(...\).compute\(budget='4MB'\)"):
        cf.mean(x, budget="4MB")
    sums, groups = cf.compute(cf.groupby_reduce(x, LABELS[0], func="sum", axis=1), budget="4MB", device="cpu")
    np.testing.assert_array_equal(sums, X)
    assert groups.tolist() == [0, 1, 2, 3]

"""Sorting along an axis is NumPy's, of arrays in any store and of expressions, within the budget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.budgets import MB, SLACK, traced
from support.devices import CHECKING, CUDA, Place, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.statistics import merged_lines
from chunkflow.core.grid import Region
from chunkflow.errors import ArgumentError
from chunkflow.graph.evaluate import FEW
from chunkflow.stores.paths import scratch_place

DTYPES = ("?", "i1", "u2", "i8", "f2", "f4", "f8", "c16", ">f8")
HOLES = np.random.default_rng(0).integers(-9, 9, (6, 5, 70)) / 4
HOLES[1, 2, 3::9] = np.nan


@given(
    npst.arrays(st.sampled_from(DTYPES), npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)), st.data()
)
@settings(max_examples=examples(1), deadline=None)
def test_as_numpy(x: np.ndarray, data: Any) -> None:
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    stable, budget = data.draw(st.sampled_from([None, True])), data.draw(st.sampled_from(["16kB", "64MB"]))
    run = {"budget": budget, "device": "cpu"}
    right = x.astype(x.dtype.newbyteorder("="))
    same(cf.sort(x, axis, stable=stable, **run), np.sort(right, axis, stable=stable))
    same(cf.argsort(x, axis, kind="stable", **run), np.argsort(right, axis, kind="stable"))
    lazy = cf.open(x)[...]
    same(np.sort(lazy, axis).compute(**run), np.sort(right, axis))
    length = x.size if axis is None else x.shape[axis]
    kth = data.draw(st.lists(st.integers(-length, length - 1), min_size=1, max_size=3)) if length else [0]
    parted = np.partition(lazy, kth, axis).compute(**run)
    same(np.sort(parted, axis), np.sort(right, axis))
    same(np.take(parted, kth, axis if length else 0), np.take(np.sort(right, axis), kth, axis)) if length else None
    places = np.argpartition(lazy, kth, axis).compute(**run)
    flat = right.reshape(-1) if axis is None else right
    along = 0 if axis is None else axis
    same(np.sort(np.take_along_axis(flat, places, along), along), np.sort(right, axis))


@on_cpu_and_gpu
def test_stores_and_devices(place: Place, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", HOLES)
    zarr.create_array(tmp_path / "x.zarr", shape=HOLES.shape, dtype="f8", chunks=(2, 5, 16))[...] = HOLES
    device = place.device()
    for source in (HOLES, tmp_path / "x.npy", tmp_path / "x.zarr"):
        for axis in (0, 2):
            same(cf.sort(source, axis, device=device), np.sort(HOLES, axis))
            lazy = np.argsort(cf.open(source) * 2, axis, stable=True)
            same(lazy.compute(device=device), np.argsort(HOLES, axis, stable=True))
        same(cf.sort(source, None, device=device), np.sort(HOLES, None))
        same(np.sort(np.partition(cf.open(source), 3).compute(device=device)), np.sort(HOLES))
    cf.sort(tmp_path / "x.zarr", 1, out=tmp_path / "y.zarr", device=device)
    same(zarr.open_array(tmp_path / "y.zarr")[...], np.sort(HOLES, 1))


@pytest.mark.parametrize("place", [CHECKING[0], CHECKING[-1]])
def test_long_lines_of_an_expression_are_sorted_in_pieces(place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(2).integers(-500, 500, (3, 20_001)) / 4
    x[:, ::7] = np.nan
    run: dict[str, Any] = {"budget": place.budget(300_000), "device": place.device()}
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(1, 3000))
    halves = cf.open(tmp_path / "x.zarr") / 2
    profile = cf.Profile()
    with cf.observing(profile):
        same(np.sort(cf.open(x) / 2, axis=1).compute(**run), np.sort(x / 2, axis=1))
    assert [read.plan.traffic.read for read in profile.passes] == [x.nbytes, x.nbytes]
    same(np.argsort(halves.T, axis=0, stable=True).compute(**run), np.argsort(x.T / 2, axis=0, stable=True))
    same(np.sort(halves, axis=None).compute(**run), np.sort(x / 2, axis=None))
    # Others read it, and are computed beside it.
    ranks, total = cf.compute(np.sort(halves, axis=1) + 1, halves.sum(axis=1), **run)
    same(ranks, np.sort(x / 2, axis=1) + 1)
    same(total, (x / 2).sum(axis=1))
    np.sort(halves, axis=1).to_npy(tmp_path / "y.npy", **run)
    same(np.load(tmp_path / "y.npy"), np.sort(x / 2, axis=1))
    explained = cf.explain(np.sort(halves, axis=1), **run)
    assert (len(explained), len(explained.plans)) == (2, 1)
    assert "merges the sorted runs" in str(explained)
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "y.npy"}


@pytest.mark.parametrize("n", [4000, 9000, 10_000, 10_700, 10_800, 20_000])
def test_lines_that_nearly_fit(n: int, tmp_path: Path) -> None:
    x = np.random.default_rng(5).integers(0, 99, (4, 20_000)).astype("i4")
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(2, 900))
    found = np.sort(cf.open(tmp_path / "x.zarr")[:, :n] + 1, axis=1).compute(budget="300kB", device="cpu")
    same(found, np.sort(x[:, :n] + 1, axis=1))


def test_runs_are_as_short_as_an_expression_needs(tmp_path: Path) -> None:
    """Its temporaries are of eight bytes, and its elements of one."""
    x = np.random.default_rng(4).integers(0, 200, (3, 40_000)).astype("u1")
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(1, 1000))

    def wider(x: Any) -> Any:
        return np.sqrt(np.exp(x.astype("f8") / 100) * 2 + np.sin(x.astype("f8")) + 3).astype("u1")

    expected, expression = np.sort(wider(x), axis=1), wider(cf.open(tmp_path / "x.zarr"))
    profile = cf.Profile()
    with cf.observing(profile):
        same(np.sort(expression, axis=1).compute(budget=60_000, device="cpu"), expected)
    first, _ = [run.plan for run in profile.passes]
    assert (first.traffic.read, first.block[1] % 1000) == (x.nbytes, 0), "no chunk is read twice"
    with pytest.raises(cf.BudgetError, match="raise budget= to at least") as caught:
        np.sort(expression, axis=1).compute(budget=10_000, device="cpu")
    same(np.sort(expression, axis=1).compute(budget=caught.value.smallest, device="cpu"), expected)


def test_long_lines_of_an_expression_are_refused_where_no_passes_do(tmp_path: Path) -> None:
    x = np.random.default_rng(2).random((3, 20_001))
    halves, before = np.sort(cf.open(x) / 2, axis=1), x.copy()
    run: dict[str, Any] = {"budget": 300_000, "device": "cpu"}
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.store(halves, x, **run)
    with pytest.raises(errors.UnsupportedError, match="makes several passes of its own"):
        halves.to_zarr(tmp_path / "y.zarr", chunks=(1, 500), **run)
    with pytest.raises(cf.BudgetError, match="raise budget= to at least") as caught:
        halves.compute(budget=1000, device="cpu")
    same(halves.compute(budget=caught.value.smallest, device="cpu"), np.sort(x / 2, axis=1))
    np.testing.assert_array_equal(x, before)
    assert not [*tmp_path.iterdir()]
    cf.store(halves, tmp_path / "y.npy", resume=True, **run)
    same(np.load(tmp_path / "y.npy"), np.sort(x / 2, axis=1))
    assert [path.name for path in tmp_path.iterdir()] == ["y.npy"]


@pytest.mark.parametrize("rows", [FEW, int(FEW**0.5), 3])
def test_shapes_of_as_many_lines_as_a_trial_has_elements(rows: int) -> None:
    x = np.random.default_rng(3).random((rows, 2 * FEW))
    for make in (np.sort, np.argsort):
        same(make(cf.open(x), axis=1).compute(device="cpu"), make(x, axis=1))
    same(np.partition(cf.open(x), 3, axis=1)[:, 3].compute(device="cpu"), np.sort(x, axis=1)[:, 3])
    same(np.median(cf.open(x), axis=1).compute(device="cpu"), np.median(x, axis=1))


@pytest.mark.parametrize("place", [CHECKING[0], CHECKING[-1]])
def test_one_long_line_is_sorted_in_pieces(place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(-500, 500, 30_001) / 4
    x[::7] = np.nan
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(3000,))
    run: dict[str, Any] = {"budget": place.budget(1_000_000), "device": place.device()}
    for number, (source, out) in enumerate(((x, None), (tmp_path / "x.zarr", "y.npy"), (x[::-1], "y.zarr"))):
        outs = [tmp_path / f"{number}{name}{out}" if out else None for name in "ab"]
        right = x[::-1] if number == 2 else x
        same(np.asarray(cf.sort(source, out=outs[0], stable=True, **run)[...]), np.sort(right, stable=True))
        same(np.asarray(cf.argsort(source, out=outs[1], **run)[...]), np.argsort(right, stable=True))
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "1ay.npy", "1by.npy", "2ay.zarr", "2by.zarr"}
    cube = x[:24].reshape(2, 3, 4)
    for make, right in ((cf.sort, np.sort), (cf.argsort, np.argsort)):
        with pytest.raises(cf.BudgetError, match="raise budget= to at least") as caught:
            make(cube, None, stable=True, budget=1, device="cpu")
        found = make(cube, None, stable=True, budget=caught.value.smallest, device="cpu")
        same(found, right(cube, None, stable=True))


@pytest.mark.parametrize("place", [CHECKING[0], CHECKING[-1]])
@pytest.mark.parametrize(
    ("shape", "axis", "chunks"),
    [
        ((3, 9001), 1, (2, 700)),
        ((9001, 3), 0, (700, 2)),
        ((2, 9001, 3), 1, (1, 9001, 3)),
        ((9001, 2, 3), -3, (500, 1, 1)),
    ],
)
def test_long_lines_are_sorted_in_pieces(shape: Any, axis: int, chunks: Any, place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(-500, 500, shape) / 4
    x[..., 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=chunks)
    there = zarr.create_array(tmp_path / "there.zarr", shape=shape, dtype="f8", chunks=chunks)
    run: dict[str, Any] = {"budget": place.budget(200_000), "device": place.device()}
    outs = (None, tmp_path / "y.npy", tmp_path / "y.zarr", there)
    sources = (tmp_path / "x.npy", x, tmp_path / "x.zarr", tmp_path / "x.zarr")
    for number, (source, out) in enumerate(zip(sources, outs, strict=True)):
        if number == 3 and math.prod(chunks) > 9000:
            with pytest.raises(cf.BudgetError, match="merged into chunks"):
                cf.sort(source, axis, out=out, **run)
            continue
        same(np.asarray(cf.sort(source, axis, out=out, overwrite=number < 3, **run)[...]), np.sort(x, axis))
    same(np.asarray(cf.argsort(tmp_path / "x.zarr", axis, **run)), np.argsort(x, axis, stable=True))


@pytest.mark.parametrize("place", [*(p for p in CHECKING if p.name.startswith("compiled")), CUDA[0]], ids=str)
def test_long_pieces_of_runs_are_gathered_by_the_compiled_loops(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_lines, "LEAST_RUN", 1)
    read: list[Region] = []
    plain = merged_lines.MergedLines.read
    monkeypatch.setattr(
        merged_lines.MergedLines, "read", lambda self, *args: (read.append(args[0]), plain(self, *args))
    )
    x = np.random.default_rng(1).integers(-500, 500, 500_001) / 4
    x[::7] = np.nan
    run: dict[str, Any] = {"budget": place.budget(1_000_000), "device": place.device()}
    same(cf.sort(x, stable=True, **run), np.sort(x, stable=True))
    cf.sort(x.reshape(-1, 3), axis=0, out=tmp_path / "y.npy", **run)
    same(np.load(tmp_path / "y.npy"), np.sort(x.reshape(-1, 3), axis=0))
    assert all(len(region) == 2 for region in read)  # of the three lines, whose parts are not one run each


@pytest.mark.parametrize(("shape", "axis"), [((300_000,), 0), ((3, 100_000), 1), ((100_000, 3), 0)])
def test_sorting_in_pieces_keeps_to_the_budget(shape: Any, axis: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal(shape))
    with traced() as most:
        cf.argsort(tmp_path / "x.npy", axis, out=tmp_path / "y.npy", budget=2 * MB, device="cpu")
        assert most() < 2 * MB + SLACK
    with traced() as most:
        halves = np.argsort(cf.open(tmp_path / "x.npy") / 2, axis)
        halves.to_npy(tmp_path / "y.npy", overwrite=True, budget=2 * MB, device="cpu")
        assert most() < 2 * MB + SLACK
    for partition in (np.partition, np.argpartition):
        with traced() as most:
            halves = partition(cf.open(tmp_path / "x.npy") / 2, 9, axis)
            halves.to_npy(tmp_path / "y.npy", overwrite=True, budget=2 * MB, device="cpu")
            assert most() < 2 * MB + SLACK


def test_a_line_that_does_not_fit() -> None:
    x = np.ones((3, 9999))
    assert cf.sort(x, 0, budget="16kB", device="cpu").shape == x.shape
    assert cf.sort(np.arange(3000.0), budget="64kB", device="cpu").size == 3000, "by runs of some hundred elements"
    for make in (cf.sort, cf.argsort):
        with pytest.raises(cf.BudgetError, match=r"in runs.*raise budget= to at least") as caught:
            make(x, budget="16kB", device="cpu")
        assert make(x, budget=caught.value.smallest, device="cpu").shape == x.shape
    for axis in (None, 1):
        with pytest.raises(cf.BudgetError, match=r"in runs.*raise budget= to at least"):
            np.sort(cf.open(x) + 0, axis).compute(budget="16kB", device="cpu")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: cf.sort(x, 3), errors.ArgumentError, "axis=3"),
        (lambda x: cf.sort(x, kind="odd"), errors.ArgumentError, "odd"),
        (lambda x: cf.argsort(x, kind="stable", stable=True), errors.ArgumentError, "same time"),
        (lambda x: cf.sort(x, order="a"), errors.ArgumentError, "fields"),
        (lambda x: np.partition(cf.open(x), 70), errors.ArgumentError, "kth=70"),
        (lambda x: np.argpartition(cf.open(x), [[1]]), errors.ArgumentTypeError, "kth"),
    ],
)
def test_refusals(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(HOLES)


def halves() -> np.ndarray:
    """Numbers whose float16 NumPy 2.4's quick sort misplaces."""
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 2, 5000) * 1.0
    for value, share in ((np.nan, 3), (-0.0, 5), (0.0, 5)):
        x[rng.integers(0, len(x), len(x) // share)] = value
    return x


@pytest.mark.parametrize("budget", [60_000, 10_000_000])
def test_halves_with_nan_and_zeros_are_in_order(budget: int) -> None:
    x, right = halves(), np.sort(halves())
    np.testing.assert_array_equal(cf.sort(x.astype("f2"), budget=budget, device="cpu"), right.astype("f2"))
    order = cf.argsort(x.astype("f2"), budget=budget, device="cpu")
    np.testing.assert_array_equal(x[order], right)


def test_what_is_made_by_sorting_halves_is_right() -> None:
    x, half = halves(), halves().astype("f2")
    for q in (0.1, 0.5):
        assert cf.nanquantile(half[:, None], q, axis=0, device="cpu") == np.nanquantile(x, q).astype("f2")
    np.testing.assert_array_equal(cf.topk(half, 4000, device="cpu"), np.sort(x)[:-4001:-1].astype("f2"))
    numbers = np.where(np.isnan(x), 0, x)
    found, names = cf.groupby_reduce(numbers, numbers.astype("f2"), func="count", axis=0, device="cpu")[:2]
    values, counts = np.unique(numbers, return_counts=True)
    np.testing.assert_array_equal(names, values)
    np.testing.assert_array_equal(found, counts)
    table = np.tile(half, 8)
    for wanted in (-2, 0, 1, 5):
        got = np.isin(cf.open(np.full(3, wanted, "f2")), table).compute(device="cpu")
        assert got.all() == (wanted in x)


def test_outputs_of_one_name_in_two_files_have_places_of_their_own(tmp_path: Path) -> None:
    names = ("a.h5:/data", "b.h5:/data", "a.zarr/x", "b.zarr/x")
    places = {scratch_place(str(tmp_path / name), "sort") for name in names}
    assert len(places) == 4
    assert {Path(place).parent for place in places} == {tmp_path}


@pytest.mark.parametrize("budget", [100_000, None])
@pytest.mark.parametrize(("shape", "axis"), [((9000,), 0), ((90, 100), 0), ((90, 100), 1), ((9, 100, 10), 1)])
def test_lines_are_sorted_in_place(shape: Any, axis: int, budget: int | None, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    chunks = tuple(n if a == axis and len(shape) > 1 else 500 if len(shape) == 1 else 5 for a, n in enumerate(shape))
    for y in (x.copy(), zarr.create_array(tmp_path / "y.zarr", data=x, chunks=chunks, compressors=None)):
        cf.sort(y, axis, out=y, budget=budget, device="cpu")
        same(np.asarray(y[...]), np.sort(x, axis))
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cf.sort(x, axis, out=x[::-1], budget=budget, device="cpu")


@pytest.mark.parametrize("budget", [600_000, 1_200_000])
def test_runs_are_shorter_than_chunks_where_the_budget_asks_for_it(budget: int, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((50, 40, 60))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(10, 9, 20))
    same(cf.sort(tmp_path / "x.zarr", axis=None, budget=budget, device="cpu"), np.sort(x, axis=None))


@pytest.mark.parametrize("kth", [7, (3, -2)])
def test_long_lines_are_partitioned_by_sorting_them(kth: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(100_000)
    x[[5, 77]] = np.nan
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(3000,))
    a = cf.open(tmp_path / "x.zarr")
    run: dict[str, Any] = {"budget": 400_000, "device": "cpu"}
    for found in (np.partition(a, kth).compute(**run), x[np.argpartition(a, kth).compute(**run)]):
        same(np.sort(found), np.sort(x))
        same(found[np.array(kth)], np.sort(x)[np.array(kth)])

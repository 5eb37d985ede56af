"""Running results are NumPy's, whatever the array, the axis, the cut and the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.budgets import MB, SLACK, traced
from support.devices import CHECKING, Place, everywhere, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.scan import cumprod, cumsum, diff, ffill, maximum_accumulate, minimum_accumulate
from chunkflow.testing import CountingSource, filled

REFERENCE: dict[Any, Any] = {
    cumsum: np.cumsum,
    cumprod: np.cumprod,
    maximum_accumulate: np.maximum.accumulate,
    minimum_accumulate: np.minimum.accumulate,
}
DTYPES = ("?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", ">f4")
CASTS = (None, "i2", "i8", "f4", "f8", "c16")

scans = pytest.mark.parametrize("scan", REFERENCE, ids=lambda f: f.__name__)


def noise(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, shape) + rng.random(shape).round(1)
    array = np.asarray(values + 1j * values[::-1] if np.dtype(dtype).kind == "c" else values)
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def close(got: Any, expected: np.ndarray, exact: np.ndarray) -> None:
    """NumPy's dtype and shape; and no further from what is right than NumPy, but for a rounding."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    eps = np.finfo(expected.dtype).eps
    ours, theirs = (np.abs(np.asarray(a).astype(exact.dtype) - exact) for a in (got, expected))
    finite = np.isfinite(expected)
    assert (ours <= theirs.max(initial=0, where=finite) + eps * np.abs(exact))[finite].all()


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 14), min_size=1, max_size=3)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    side = st.one_of(st.none(), st.just(-1), st.integers(1, 6))
    chunks = draw(st.one_of(st.none(), st.integers(1, 6), st.tuples(*[side] * len(shape))))
    return {
        "x": noise(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99))),
        "axis": axis,
        "chunks": chunks,
        "place": draw(st.sampled_from(CHECKING)),
        "order": draw(st.sampled_from("CF")),
    }


@scans
@given(case=cases(), cast=st.sampled_from(CASTS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_as_numpy(scan: Any, case: dict[str, Any], cast: str | None) -> None:
    x, axis = np.asarray(case["x"], order=case["order"]), case["axis"]
    if x.dtype.kind == "c" and cast != "c16":
        cast = None
    got = scan(x, axis, cast, chunks=case["chunks"], budget=2_000_000, device=case["place"].device())
    expected = REFERENCE[scan](x, axis=axis, dtype=cast)
    adds = scan in (cumsum, cumprod)
    if scan is cumprod and expected.dtype.kind == "c":  # the compiler's complex products are not all rounded alike
        exact = np.cumprod(x.astype("c16"), axis=axis)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert (np.abs(got - exact) <= 8 * np.finfo(expected.dtype).eps * np.abs(exact)).all()
    elif adds and expected.dtype.kind in "fc" and expected.dtype.itemsize < (16 if expected.dtype.kind == "c" else 8):
        wide = "c16" if expected.dtype.kind == "c" else "f8"
        exact = REFERENCE[scan](x.astype(wide), axis=axis)
        same(got, exact.astype(expected.dtype))
        close(got, expected, exact)
    else:
        assert got.dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got, expected)


@given(case=cases())
def test_the_flattened_array_is_scanned_in_its_order(case: dict[str, Any]) -> None:
    x = np.asarray(case["x"].real.astype("f8"), order=case["order"])
    chunks = case["chunks"] if isinstance(case["chunks"], int) else 3
    if x.ndim > 1:
        chunks = (chunks, *[None] * (x.ndim - 1))  # type: ignore[assignment]
    same(cumsum(x, chunks=chunks, budget=2_000_000, device=case["place"].device()), np.cumsum(x))
    same(cumprod(x, chunks=chunks, budget=2_000_000, device=case["place"].device()), np.cumprod(x))


@everywhere
@scans
def test_lines_of_many_blocks(place: Place, scan: Any) -> None:
    x = filled((60, 70), "i4") - 63
    for axis in (0, 1):
        options = {"budget": place.budget(100_000), "device": place.device()}
        same(scan(CountingSource(x), axis=axis, chunks=(7, 11), **options), REFERENCE[scan](x, axis=axis))


@scans
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2"])
def test_long_slices(scan: Any, dtype: str) -> None:
    x = (np.random.default_rng(3).random((20, 3, 600)) * 3 - 1).astype(dtype)
    for axis in (0, 1):
        wide = "f8" if dtype == "f4" and scan in (cumsum, cumprod) else dtype
        expected = REFERENCE[scan](x.astype(wide), axis=axis)
        expected = expected.astype("f4") if dtype == "f4" else expected
        for array in (x, np.asfortranarray(x)):
            same(scan(array, axis, chunks=(7, -1, -1), device="cpu"), expected)


@everywhere
def test_sums_of_floats(place: Place) -> None:
    x = np.random.default_rng(0).standard_normal((50, 300)).astype("f4")
    got = cumsum(x, axis=1, chunks=("auto", 40), budget=place.budget(200_000), device=place.device())
    close(got, np.cumsum(x, axis=1), np.cumsum(x.astype("f8"), axis=1))


@everywhere
@scans
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_spread_as_in_numpy(place: Place, scan: Any) -> None:
    x = np.ones((6, 40))
    x[0, 3], x[1, 30], x[2, 12], x[3, 2:30:9] = np.nan, np.inf, -np.inf, (np.inf, -np.inf, np.nan, 0)
    x[4], x[5, 7] = -0.0, 0.0
    expected = REFERENCE[scan](x, axis=1)
    got = scan(x, axis=1, chunks=(3, 8), budget=place.budget(100_000), device=place.device())
    np.testing.assert_array_equal(got, expected)


def test_doubles_do_not_depend_on_the_cut() -> None:
    x = np.random.default_rng(1).standard_normal((40, 50))
    for chunks in (None, 1, 7, (40, 3), (3, 50)):
        same(cumsum(x, axis=0, chunks=chunks, device="cpu"), np.cumsum(x, axis=0))
        same(cumprod(x, axis=1, chunks=chunks, device="cpu"), np.cumprod(x, axis=1))


@everywhere
def test_from_zarr_to_a_path_and_in_place(place: Place, tmp_path: Path) -> None:
    x = filled((40, 33), "f8")
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(7, 10), dtype="f8")[...] = x
    options = {"budget": place.budget(300_000), "device": place.device()}
    got = cumsum(tmp_path / "x.zarr", axis=0, out=tmp_path / "y.zarr", **options)
    same(got[...], np.cumsum(x, axis=0))
    same(np.asarray(cumsum(tmp_path / "x.zarr", out=tmp_path / "y.npy", **options)), np.cumsum(x))
    with pytest.raises(errors.OutputExistsError):
        cumsum(tmp_path / "x.zarr", axis=0, out=tmp_path / "y.npy", **options)
    expected = np.cumsum(x, axis=1)
    assert cumsum(x, axis=1, out=x, chunks=(10, 4), **options) is x
    same(x, expected)


def test_arrays_without_elements_or_dimensions() -> None:
    same(cumsum(np.zeros((0, 3), "i1"), device="cpu"), np.cumsum(np.zeros((0, 3), "i1")))
    same(cumsum(np.zeros((0, 3)), axis=0, device="cpu"), np.zeros((0, 3)))
    same(cumsum(np.array(3.0), device="cpu"), np.cumsum(np.array(3.0)))


def test_memory_that_runs_out_halves_along_the_scanned_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(400.0).reshape(4, 100)
    cumulate, largest = np.cumsum, []

    def greedy(block: Any, *args: Any, **options: Any) -> Any:
        if block.shape[1] > 9:
            raise MemoryError("too long")
        largest.append(block.shape[1])
        return cumulate(block, *args, **options)

    expected = np.cumsum(x, axis=1)
    monkeypatch.setattr(np, "cumsum", greedy)
    got = cumsum(x, axis=1, chunks=(2, 50), budget="1MB", device="cpu")
    monkeypatch.undo()
    same(got, expected)
    assert max(largest) <= 9


# -- Differences ---------------------------------------------------------------------------------------------


@given(case=cases(), n=st.integers(0, 5))
def test_differences_as_numpy(case: dict[str, Any], n: int) -> None:
    x, axis = np.asarray(case["x"], order=case["order"]), case["axis"]
    got = diff(x, n, axis, chunks=case["chunks"], budget=2_000_000, device=case["place"].device())
    expected = np.diff(x, n, axis)
    assert got.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_differences_of_what_is_added(n: int) -> None:
    x = np.arange(6).reshape(2, 3) ** 2
    same(diff(x, n, 0, prepend=1, append=[[1, 2, 3]], device="cpu"), np.diff(x, n, 0, prepend=1, append=[[1, 2, 3]]))
    lazy = np.diff(cf.open(x), n, prepend=1.5)
    same(lazy.compute(device="cpu"), np.diff(x, n, prepend=1.5))


@everywhere
def test_differences_of_a_store(place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 70))
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(8, 16), dtype="f8")[...] = x
    options = {"budget": place.budget(200_000), "device": place.device()}
    same(diff(tmp_path / "x.zarr", 3, 0, out=tmp_path / "y.npy", **options)[...], np.diff(x, 3, 0))
    same(diff(tmp_path / "x.zarr", chunks=(7, 11), **options), np.diff(x))
    with pytest.raises(errors.ArgumentError, match="n=-1"):
        diff(tmp_path / "x.zarr", -1, **options)
    with pytest.raises(errors.ArgumentTypeError, match="n must be an int"):
        diff(tmp_path / "x.zarr", 1.5, **options)  # type: ignore[arg-type]


class Untouchable:
    """An array that must not be read."""

    shape, dtype = (4, 5), np.dtype("c16")

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"axis": 2}, errors.ArgumentError, "axis=2 is out of bounds for 2 dimensions"),
        ({"axis": "x"}, errors.ArgumentTypeError, "'x'"),
        ({"axis": True}, errors.ArgumentTypeError, "True"),
        ({"axis": 0, "dtype": "f8"}, errors.ArgumentTypeError, "imaginary"),
        ({"axis": 0, "dtype": "U3"}, errors.ArgumentTypeError, "not numeric"),
        ({"axis": 0, "dtype": "what"}, errors.ArgumentTypeError, "'what'"),
        ({"axis": 0, "chunks": (1, 2, 3)}, errors.ArgumentError, "3 entries and the array has 2"),
        ({"axis": 0, "chunks": 0}, errors.ArgumentError, "not 0"),
        ({"chunks": (-1, 2)}, errors.ArgumentError, "first axis"),
        ({"axis": 0, "out": np.zeros((4, 4), "c16")}, errors.ArgumentError, "shape"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cumsum(Untouchable(), device="cpu", **options)


def test_what_has_no_axis_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="at least one array"):
        cumsum(3.0, axis=0, device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="not None"):
        maximum_accumulate(np.ones((2, 2)), None, device="cpu")  # type: ignore[arg-type]


def test_a_budget_without_room_for_a_row_is_refused_within_it(tmp_path: Path) -> None:
    """A scan of all elements is cut along the first axis alone: its trial takes a part of a row."""
    x = np.random.default_rng(0).random((6, 500, 818), "f4")
    np.save(tmp_path / "x.npy", x)
    for budget in (2 * MB, 5 * MB):
        with traced() as peak, pytest.raises(errors.BudgetError) as refused:
            cumsum(tmp_path / "x.npy", budget=budget, device="cpu")
        assert refused.value.smallest is not None
        assert peak() <= budget + SLACK
    found = cumsum(tmp_path / "x.npy", budget=refused.value.smallest, device="cpu")
    np.testing.assert_allclose(found, np.cumsum(x, dtype="f8"), rtol=1e-6)


def filled_forward(x: np.ndarray, axis: int, limit: int | None) -> np.ndarray:
    """Line by line, and number by number."""
    found = x.copy()
    for place in np.ndindex(*x.shape[:axis], 1, *x.shape[axis + 1 :]):
        line = found[(*place[:axis], slice(None), *place[axis + 1 :])]
        last, ago = np.nan, 0
        for i, number in enumerate(line):
            last, ago = (last, ago + 1) if np.isnan(number) else (number, 0)
            line[i] = last if limit is None or ago <= limit else np.nan
    return found


@given(case=cases(), limit=st.none() | st.integers(1, 4), missing=st.floats(0, 1))
def test_numbers_are_carried_on_over_those_that_are_missing(case: Any, limit: int | None, missing: float) -> None:
    x = np.asarray(case["x"], order=case["order"])
    if x.dtype.kind in "fc":
        x[np.random.default_rng(1).random(x.shape) < missing] = np.nan
    axis = case["axis"] % x.ndim
    got = ffill(x, axis, limit, chunks=case["chunks"], budget=2_000_000, device=case["place"].device())
    expected = filled_forward(x, axis, limit) if x.dtype.kind in "fc" else x
    same(got, expected.astype(x.dtype.newbyteorder("=")))


@everywhere
def test_numbers_are_carried_on_from_block_to_block(place: Place) -> None:
    x = filled((60, 70), "f8")
    x[5:50] = np.nan
    for limit in (None, 20):
        got = ffill(CountingSource(x), 0, limit, chunks=(7, 11), budget=place.budget(200_000), device=place.device())
        expected = x.copy()
        expected[5 : 50 if limit is None else 25] = x[4]
        same(got, expected)


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_a_limit_is_at_least_one(limit: Any) -> None:
    with pytest.raises(errors.ChunkflowError, match="limit"):
        ffill(np.ones(3), limit=limit)

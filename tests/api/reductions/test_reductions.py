"""Reductions give what NumPy gives on the whole array, whatever the array, the cut and the device."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.devices import CHECKING, CPU, CUDA, Place, checked, everywhere, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.reductions import nan as nanreductions
from chunkflow.testing import CountingSource, filled

INEXACT = ("sum", "prod", "mean", "var", "std", "nansum", "nanprod", "nanmean", "nanvar", "nanstd")
CHOOSING = ("min", "max", "ptp", "any", "all", "count_nonzero", "argmin", "argmax", "nanmin", "nanmax")
NAN_POSITIONS = ("nanargmin", "nanargmax")
NAMES = (*INEXACT, *CHOOSING, *NAN_POSITIONS)
DTYPES = ("?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", ">f4")

some = settings(
    max_examples=examples(1 / 4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def ours(name: str) -> Callable[..., Any]:
    """The reduction of that name."""
    for module in (sums, extremes, nanreductions):
        if hasattr(module, name):
            return getattr(module, name)  # type: ignore[no-any-return]
    raise AttributeError(name)


def by_numpy(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What NumPy gives, without its warnings."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return fn(*args, **options)


def run(place: Place, fn: Callable[..., Any], *arrays: Any, budget: int = 1 << 20, **options: Any) -> Any:
    """A reduction with the budget, or the smallest that will do if that is more."""
    least = place.budget(budget)
    for _ in range(9):
        try:
            return fn(*arrays, budget=least, device=place.device(), **options)
        except cf.BudgetError as error:
            # A trial on few elements also measures what Python itself allocates, which varies a little.
            least, before = error.smallest or 0, least
        assert least > before, "the error names a budget that is enough"
    raise AssertionError(f"no budget is enough: {least} bytes were promised to be")


def noise(shape: tuple[int, ...], dtype: str, seed: int, *, nan: bool = False) -> np.ndarray:
    """Random values; with `nan`, some of them NaN where the dtype has it."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    values: Any = rng.integers(0 if kind in "bu" else -9, 9, shape)
    if kind in "fc":
        values = values * 0.37 + rng.standard_normal(shape)
    if kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    array = np.array(np.asarray(values).astype(dtype))
    if nan and kind in "fc" and array.size:
        array[rng.random(shape) < 0.2] = np.nan
    return array


def close(got: Any, expected: Any, scale: float = 1.0) -> None:
    """Same type, dtype and shape; equal but for the rounding of the result and of NumPy's own sums."""
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(got, expected)
        return
    eps = float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=64 * eps, atol=64 * eps * scale)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, bool, Any, int]:
    """Shape, axis, keepdims, chunks and budget."""
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, (0, 300, 30, 12, 6)[ndim])) for _ in range(ndim))
    axes = draw(st.lists(st.integers(-ndim, ndim - 1), unique_by=lambda a: a % ndim, max_size=ndim))
    axis = draw(st.sampled_from([None, axes[0] if axes else None, tuple(axes)]))
    chunks = draw(st.one_of(st.none(), st.tuples(*(st.sampled_from([None, -1, max(1, n // 3), n]) for n in shape))))
    return shape, axis, draw(st.booleans()), chunks, draw(st.sampled_from([200, 2000, 1 << 20]))


# -- Random runs ---------------------------------------------------------------------------------------------


@everywhere
@given(case=cases(), name=st.sampled_from(NAMES), dtype=st.sampled_from(DTYPES), nan=st.booleans())
@some
def test_random_runs_equal_numpy(place: Place, case: Any, name: str, dtype: str, nan: bool) -> None:
    shape, axis, keepdims, chunks, budget = case
    x = noise(shape, dtype, len(shape), nan=nan or name.startswith("nan"))
    native = x.astype(x.dtype.newbyteorder("="))
    if "arg" in name and isinstance(axis, tuple):
        axis = axis[0] if axis else None
    if name == "ptp" and dtype == "?":
        name = "max"
    if "prod" in name:  # of few factors near one, or it leaves the range
        native = x = np.clip(native, 0, 1).astype(native.dtype) if x.dtype.kind not in "c" else x[:1] * 0 + 1
    options = {"axis": axis, "keepdims": keepdims}
    try:
        expected = by_numpy(getattr(np, name), native, **options)
    except ValueError:
        with pytest.raises(errors.ArgumentError, match="NaN"):
            run(place, ours(name), x, chunks=chunks, budget=budget, **options)
        return
    got = run(place, ours(name), x, chunks=chunks, budget=budget, **options)
    close(got, expected, scale=100.0 if name in INEXACT else 0.0)


@everywhere
@given(case=cases(), dtype=st.sampled_from(["i4", "f4", "f8", "c8"]), spread=st.sampled_from(["same", "along"]))
@some
def test_random_averages_equal_numpys(place: Place, case: Any, dtype: str, spread: str) -> None:
    shape, axis, keepdims, chunks, budget = case
    x = noise(shape, dtype, 1)
    along = tuple(range(len(shape))) if axis is None else (axis,) if isinstance(axis, int) else axis
    weights = np.random.default_rng(2).random(shape if spread == "same" else tuple(shape[a] for a in along)) + 0.5
    if not along:
        return
    expected = by_numpy(np.average, x, axis=along if axis is not None else None, weights=weights, keepdims=keepdims)
    got = run(place, sums.average, x, axis=axis, weights=weights, keepdims=keepdims, chunks=chunks, budget=budget)
    close(got, expected, scale=10.0)


MASKED = ("sum", "mean", "var", "std", "min", "max", "any", "all", "nansum", "nanmean", "nanvar", "nanmin", "nanmax")
BEGUN = ("sum", "min", "max", "nansum", "nanmin", "nanmax")


@everywhere
@given(
    case=cases(), name=st.sampled_from(MASKED), dtype=st.sampled_from(DTYPES), rows=st.booleans(), begun=st.booleans()
)
@some
def test_random_masks_and_beginnings_equal_numpys(
    place: Place, case: Any, name: str, dtype: str, rows: bool, begun: bool
) -> None:
    shape, axis, keepdims, chunks, budget = case
    x = noise(shape, dtype, len(shape), nan=name.startswith("nan"))
    mask = np.random.default_rng(3).random(shape[1:] if rows else shape) < 0.6
    options: dict[str, Any] = {"axis": axis, "keepdims": keepdims, "where": mask}
    if name in BEGUN and (begun or name[-3:] in ("min", "max")):
        options["initial"] = 2
    expected = by_numpy(getattr(np, name), x.astype(x.dtype.newbyteorder("=")), **options)
    got = run(place, ours(name), x, chunks=chunks, budget=budget, **options)
    close(got, expected, scale=100.0 if name in INEXACT else 0.0)


@everywhere
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c8"])
def test_norms_equal_numpys(place: Place, dtype: str) -> None:
    x = noise((7, 30, 11), dtype, 3)
    for i, ord in enumerate((None, 1, 2, 3, 0.5, -1, 0, np.inf, -np.inf)):
        axis = i % 3
        expected = by_numpy(np.linalg.norm, x, ord=ord, axis=axis)
        close(run(place, extremes.norm, x, ord=ord, axis=axis, chunks=(3, 11, 11)), expected, scale=10)
    for options in ({}, {"axis": (0, 2)}, {"axis": (-1, 1), "ord": "fro", "keepdims": True}):
        close(run(place, extremes.norm, x, chunks=(3, 11, 11), **options), np.linalg.norm(x, **options), scale=100)
    close(run(place, extremes.norm, x[0], chunks=(11, 11), ord="fro"), np.linalg.norm(x[0], ord="fro"), scale=100)
    for ord in (1, -1, np.inf, -np.inf):
        for axis in ((0, 1), (2, 0), (-1, 1)):
            for keepdims in (False, True):
                expected = np.linalg.norm(x, ord=ord, axis=axis, keepdims=keepdims)
                close(run(place, extremes.norm, x, ord=ord, axis=axis, keepdims=keepdims), expected, scale=10)
        close(run(place, extremes.norm, x[0], ord=ord), np.linalg.norm(x[0], ord=ord), scale=10)


@pytest.mark.parametrize("place", [CPU, CHECKING[0], CUDA[0]], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "var", "std", "nansum", "nanmean", "nanvar"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16"])
def test_a_dtype_may_be_asked_for(place: Place, name: str, dtype: str) -> None:
    x = noise((9, 20), "f8" if dtype[0] == "f" else "c16", 4) / 4
    expected = by_numpy(getattr(np, name), x, axis=1, dtype=dtype)
    got = run(place, ours(name), x, axis=1, dtype=dtype, budget=500)
    if dtype == "f2":  # NumPy sums in that precision, or in a little more; here only the result has it
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.02)
    else:
        close(got, expected, scale=10)


@checked
def test_an_integer_dtype_takes_whole_numbers(place: Place) -> None:
    x = np.array([[0.6, 1.7], [2.9, -3.2]])
    same(run(place, sums.sum, x, axis=0, dtype="i4"), np.sum(x, axis=0, dtype="i4"))
    same(run(place, sums.mean, x, axis=0, dtype="i4"), np.mean(x, axis=0, dtype="i4"))


@everywhere
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8"])
def test_integers_wrap_as_in_numpy(place: Place, dtype: str) -> None:
    x = np.full((40, 50), np.iinfo(dtype).max, dtype)
    for name in ("sum", "prod"):
        for given_dtype in (None, dtype):
            expected = getattr(np, name)(x, axis=0, dtype=given_dtype)
            same(run(place, ours(name), x, axis=0, dtype=given_dtype, budget=1000), expected)
    same(run(place, extremes.ptp, np.array([-100, 100], "i1")), np.ptp(np.array([-100, 100], "i1")))


@everywhere
@pytest.mark.parametrize("ddof", [0, 1, 2.5, 30, 31])
def test_ddof(place: Place, ddof: float) -> None:
    x = noise((30, 7), "f8", 5, nan=True)
    for name, values in (("var", np.nan_to_num(x)), ("std", np.nan_to_num(x)), ("nanvar", x), ("nanstd", x)):
        expected = by_numpy(getattr(np, name), values, axis=0, ddof=ddof)
        close(run(place, ours(name), values, axis=0, ddof=ddof, chunks=(4, 7)), expected)


# -- Special values ------------------------------------------------------------------------------------------

SPECIAL = [
    [np.nan, 1, 2, 3],
    [3, np.nan, np.nan, -np.inf],
    [np.inf, np.inf, 1, 0],
    [np.inf, -np.inf, 1, 0],
    [-0.0, -0.0, -0.0, -0.0],
    [-0.0, 0.0, -0.0, 0.0],
    [5, 5, 5, 5],
    [2, 1, 1, 2],
    [np.nan, np.inf, np.inf, np.nan],
    [1e300, 1e300, -1e300, 2],
]


@everywhere
@pytest.mark.parametrize("name", [*INEXACT, *CHOOSING, *NAN_POSITIONS])
def test_special_values_block_by_block(place: Place, name: str) -> None:
    for values in SPECIAL:
        x = np.array(values)[:, None] * np.ones((1, 3))
        expected = by_numpy(getattr(np, name), x, axis=0)
        got = run(place, ours(name), x, axis=0, chunks=(1, 3))
        if name in ("std", "nanstd", "var", "nanvar") and 1e300 in values:
            assert not np.isfinite(got).any()  # the squares leave the range, in one order or another
        else:
            close(got, expected)


@everywhere
@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_the_first_of_equals_is_found_in_any_block(place: Place, name: str) -> None:
    rng = np.random.default_rng(0)
    for x in (rng.integers(0, 3, (6, 7, 8)), np.zeros((6, 7, 8), "f4"), rng.integers(0, 2, (6, 7, 8)) > 0):
        for chunks in ((1, 7, 8), (6, 2, 3), (2, 2, 2), (6, 7, 1)):
            same(run(place, ours(name), x, chunks=chunks), getattr(np, name)(x))
            for axis in (0, 1, 2) if chunks[0] == 2 else ():
                expected = getattr(np, name)(x, axis=axis, keepdims=True)
                same(run(place, ours(name), x, axis=axis, chunks=chunks, keepdims=True), expected)
    holes = np.where(rng.random((5, 9)) < 0.2, np.nan, rng.random((5, 9)))
    same(run(place, ours(name), holes, chunks=(2, 2)), getattr(np, name)(holes))


@checked
def test_fortran_order_and_strides(place: Place) -> None:
    x = noise((20, 21, 8), "f4", 6)
    for laid, axis in ((np.asfortranarray(x), 0), (x.transpose(1, 2, 0), 1), (x[::2, :, ::-1], 2), (x.T, None)):
        for name in ("sum", "var", "max", "argmax"):
            expected = getattr(np, name)(laid, axis=axis)
            close(run(place, ours(name), laid, axis=axis, budget=9000), expected, scale=100)


@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "min", "max", "prod"])
def test_extended_precision_where_numpy_has_it(name: str) -> None:
    x = np.linspace(1, 1.5, 300, dtype="g").reshape(10, 30) / np.longdouble(3)
    got = run(CPU, ours(name), x, axis=0, chunks=(3, 30))
    close(got, getattr(np, name)(x, axis=0))


@checked
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0), ()])
def test_no_elements_or_a_single_one(place: Place, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, "f4")
    for name in NAMES:
        for axis in (None, *range(len(shape))):
            try:
                expected = by_numpy(getattr(np, name), x, axis=axis)
            except ValueError:
                with pytest.raises(errors.ArgumentError, match="no elements"):
                    run(place, ours(name), x, axis=axis)
            else:
                close(run(place, ours(name), x, axis=axis), expected)


@checked
def test_no_axis_at_all_reduces_nothing(place: Place) -> None:
    x = noise((5, 6), "f4", 7)
    for name in ("sum", "mean", "var", "max", "any", "nansum", "nanvar"):
        close(run(place, ours(name), x, axis=()), by_numpy(getattr(np, name), x, axis=()))


# -- Rounding ------------------------------------------------------------------------------------------------


def exactly(x: np.ndarray) -> tuple[Fraction, Fraction]:
    """Mean and variance without rounding: the sums of products of two singles are exact in parts."""
    values = x.astype("f8").ravel()
    mean = Fraction(math.fsum(values)) / values.size
    near = float(mean)
    off = Fraction(math.fsum(values - near)) / values.size  # values - near rounds by less than 1e-16 of its size
    return mean, Fraction(math.fsum((values - near) ** 2)) / values.size - off**2


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_are_as_good_as_numpys(offset: float, dtype: str) -> None:
    x = (np.random.default_rng(1).standard_normal((1000, 1000)) + offset).astype(dtype)
    mean, var = exactly(x)
    for name, exact in (("sum", mean * x.size), ("mean", mean), ("var", var)):
        got, numpys = ours(name)(x, device="cpu", chunks=(100, -1)), getattr(np, name)(x)
        error = abs(Fraction(float(got)) - exact)
        allowed = max(abs(Fraction(float(numpys)) - exact), 2 * Fraction(float(np.spacing(got.dtype.type(exact)))))
        if name != "var" and not offset:  # the sum is small beside what is added up: NumPy's error is a matter of luck
            allowed += Fraction(4 * float(np.finfo(dtype).eps) * math.sqrt(x.size)) / (1 if name == "sum" else x.size)
        assert error <= allowed, (name, float(error), float(allowed))


def test_a_mean_along_an_axis_is_the_nearest_number() -> None:
    x = (np.random.default_rng(1).standard_normal((400, 50, 60)) + 1e4).astype("f4")
    for axis in (0, 1, 2):
        exact = np.mean(x.astype("g"), axis=axis).astype("f4")
        same(sums.mean(x, axis=axis, device="cpu", budget="400kB"), exact)


@given(
    st.sampled_from(["f4", "f8", ">f4", "f2", "i4"]),
    st.sampled_from([3, 2.7, np.float32(2.7), np.float64(2.7), np.inf]),
    st.sampled_from([0, 1, 2, (0, 2), (1, 2), (), None]),
    st.sampled_from([0, 1, 1.5, 10**6]),
    st.sampled_from(["200kB", "64MB"]),
    st.booleans(),
)
@some
def test_spreads_about_a_number(dtype: str, mean: Any, axis: Any, ddof: float, budget: str, keepdims: bool) -> None:
    x = (np.random.default_rng(2).standard_normal((33, 4, 300)) * 4 + 3).astype(dtype)
    how = {"axis": axis, "mean": mean, "ddof": ddof, "keepdims": keepdims}
    for fn in (np.std, np.var):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = fn(x.astype("f8") if dtype in ("f4", ">f4") else x, **how)
        got = fn(cf.open(x), **how).compute(device="cpu", budget=budget)
        assert got.shape == expected.shape
        assert got.dtype == fn(x[:2], **how).dtype
        np.testing.assert_allclose(got, expected, rtol=4e-3 if dtype == "f2" else 1e-12 if got.itemsize > 4 else 1e-6)


def test_squares_about_a_number_do_not_overflow() -> None:
    x = np.full((40, 600), 1e30, "f4")
    for axis in (0, 1, None):
        got = np.std(cf.open(x), axis=axis, mean=0.0).compute(device="cpu")
        np.testing.assert_allclose(got, np.float32(1e30), rtol=1e-6)
        assert np.isinf(np.var(cf.open(x), axis=axis, mean=0.0).compute(device="cpu")).all()


@everywhere
@pytest.mark.parametrize("name", ["sum", "mean", "std", "nanvar"])
def test_the_same_call_gives_the_same_bits(place: Place, name: str) -> None:
    x = noise((50, 40, 30), "f4", 8) * 1e3
    for axis in (None, 0, (1, 2)):
        first, second = (run(place, ours(name), x, axis=axis, chunks=(7, 9, 30)) for _ in range(2))
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


# -- Sources, outputs, traffic -------------------------------------------------------------------------------


class Landed:
    """Adds up what runs have read for their blocks; the trial call's small one is not among them."""

    wants_spans = False
    bytes = 0

    def started(self, plan: Any, run: Any) -> None: ...

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        self.bytes += nbytes_in

    def span(self, *args: Any) -> None: ...

    def noted(self, text: str) -> None: ...

    def finished(self, error: BaseException | None, peak: int) -> None: ...


@everywhere
def test_every_byte_is_read_once(place: Place) -> None:
    x = noise((24, 25, 26), "f4", 9)
    place.budget(0)  # a GPU is used first, which loads its libraries by a run
    for name, axis in (("sum", None), ("mean", 0), ("var", 1), ("nanmax", 2), ("std", (0, 2)), ("argmin", -1)):
        source, landed = CountingSource(x), Landed()
        with cf.observing(landed):
            run(place, ours(name), source, axis=axis, chunks=(6, 10, 26))
        assert landed.bytes == x.nbytes
        # The trial call's block: what a reduction takes may depend on where NaN are, else it is tried on zeros.
        trial = 0 if name in ("sum", "mean", "var", "std") else x.nbytes if place.is_gpu else 32 << 10
        assert 0 <= source.bytes_read - x.nbytes <= trial


@everywhere
@pytest.mark.parametrize("suffix", ["npy", "zarr"])
def test_from_a_zarr_array_into_a_path(place: Place, suffix: str, tmp_path: Path) -> None:
    x = noise((20, 30, 9), "f4", 10)
    source = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=(7, 10, 9))
    source[...] = x
    for name in ("mean", "max", "argmax"):
        out = tmp_path / f"{name}.{suffix}"
        got = run(place, ours(name), str(tmp_path / "x.zarr"), axis=1, out=str(out), budget=20_000)
        assert out.exists()
        close(np.asarray(got[...]), getattr(np, name)(x, axis=1), scale=10)
    memory = np.zeros((1, 30, 1), "f8")
    assert run(place, sums.sum, source, axis=(0, -1), keepdims=True, out=memory, budget=20_000) is memory
    np.testing.assert_allclose(memory, x.sum(axis=(0, 2), dtype="f8", keepdims=True), rtol=1e-6, atol=1e-4)


def test_explain_shows_the_plan() -> None:
    plan = cf.explain(sums.mean, np.ones((100, 100), "f4"), axis=0, budget="100kB", device="cpu")
    assert plan.bytes_in == 40_000
    assert plan.memory.total <= plan.budget


# -- Reductions of one's own ---------------------------------------------------------------------------------


@everywhere
def test_a_reduction_of_ones_own(place: Place) -> None:
    x = noise((12, 13, 14), "f8", 11)

    def chunk(block: Any, axis: Any, keepdims: bool) -> Any:
        return {"total": (block * block).sum(axis=axis, keepdims=keepdims), "most": block.max(axis=axis, keepdims=True)}

    def combine(parts: Any, axis: Any, keepdims: bool) -> Any:
        return {
            "total": parts["total"].sum(axis=axis, keepdims=keepdims),
            "most": parts["most"].max(axis=axis, keepdims=keepdims),
        }

    def aggregate(parts: Any, axis: Any, keepdims: bool) -> Any:
        both = combine(parts, axis, keepdims)
        return np.sqrt(both["total"]) + both["most"]

    for axis in (None, 0, (0, 2), (1,)):
        for keepdims in (False, True):
            options = {"axis": axis, "keepdims": keepdims}
            got = run(place, sums.reduction, x, chunk, aggregate, combine, chunks=(5, 4, 7), **options)
            expected = np.sqrt(np.sum(x * x, **options)) + np.max(x, **options)
            np.testing.assert_allclose(got, expected, rtol=1e-12)
            assert np.shape(got) == np.shape(expected)


@everywhere
def test_aggregate_also_combines(place: Place) -> None:
    x = noise((12, 13), "i4", 12)

    def total(x: Any, axis: Any, keepdims: bool) -> Any:
        return x.sum(axis=axis, keepdims=keepdims)

    same(run(place, sums.reduction, x, total, total, axis=1, chunks=(5, 4)), x.sum(axis=1))
    same(run(place, sums.reduction, x, total, total, axis=1, chunks=(5, 4), dtype="f4"), x.sum(axis=1).astype("f4"))
    same(run(place, sums.reduction, x, total, total, chunks=(5, 4)), x.sum())


# -- Refusals ------------------------------------------------------------------------------------------------


class Untouched:
    """An array whose elements nobody may read."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = "f4") -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)

    def __getitem__(self, region: Any) -> np.ndarray:
        raise AssertionError("read")


X = Untouched((4, 5))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: sums.sum(X, axis=2), errors.ArgumentError, "axis=2"),
        (lambda: sums.sum(X, axis=(0, -2)), errors.ArgumentError, "twice"),
        (lambda: sums.sum(X, axis=1.5), errors.ArgumentTypeError, "1.5"),
        (lambda: sums.sum(X, dtype="U3"), errors.ArgumentTypeError, "numeric"),
        (lambda: sums.sum(X, dtype="nonsense"), errors.ArgumentTypeError, "nonsense"),
        (lambda: sums.sum(Untouched((3,), "c8"), dtype="f4"), errors.ArgumentTypeError, "imaginary"),
        (lambda: sums.sum(X, chunks=(1, 2, 3)), errors.ArgumentError, "3 entries"),
        (lambda: sums.sum(X, chunks=(0, 1)), errors.ArgumentError, "at least one"),
        (lambda: sums.sum(X, chunk=3), TypeError, "chunk"),
        (lambda: sums.var(X, ddof="1"), errors.ArgumentTypeError, "ddof"),
        (lambda: sums.var(X, ddof=np.nan), errors.ArgumentError, "finite"),
        (lambda: sums.var(X, dtype="i4"), errors.ArgumentTypeError, "floating"),
        (lambda: extremes.max(Untouched((0, 5)), axis=0), errors.ArgumentError, r"\(0, 5\)"),
        (lambda: extremes.argmin(Untouched((4, 0))), errors.ArgumentError, "argmin of no elements"),
        (lambda: extremes.argmax(X, axis=(0, 1)), errors.ArgumentTypeError, "int or None"),
        (lambda: extremes.ptp(Untouched((3,), "?")), errors.ArgumentTypeError, "bools"),
        (lambda: sums.average(X, weights=Untouched((4,))), errors.ArgumentTypeError, "axis="),
        (lambda: sums.average(X, axis=1, weights=Untouched((4,))), errors.ArgumentError, r"\(5,\)"),
        (lambda: sums.average(X, weights=3), errors.ArgumentTypeError, "weights=3"),
        (lambda: extremes.norm(X, ord=2), errors.ArgumentError, "singular values"),
        (lambda: extremes.norm(X, ord="nuc"), errors.ArgumentError, "singular values"),
        (lambda: extremes.norm(X, ord=3), errors.ArgumentError, "has no meaning"),
        (lambda: extremes.norm(X, ord="fro", axis=0), errors.ArgumentError, "vectors"),
        (lambda: extremes.norm(Untouched((2, 3, 4)), ord=1), errors.ArgumentError, "one or two axes"),
        (lambda: sums.reduction(X, 3, np.sum), errors.ArgumentTypeError, "chunk"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(call: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        call()


@everywhere
@pytest.mark.parametrize("named", [False, True])
def test_partial_results_may_be_views_of_their_blocks_or_a_buffer(place: Place, named: bool) -> None:
    """The next block is read in the place of the one before; a function's buffer is its own again."""
    buffers: dict[int, Any] = {}

    def chunk(block: Any, axis: Any, keepdims: bool) -> Any:
        if named:
            return {"last": block[-1:]}
        buffer = buffers.setdefault(threading.get_ident(), block[-1:].copy())
        buffer[...] = block[-1:]
        return buffer

    def total(partial: Any, axis: Any, keepdims: bool) -> Any:
        found = (partial["last"] if named else partial).sum(axis=axis, keepdims=keepdims)
        return {"last": found} if named and keepdims else found

    x = filled((30, 5), "f8")
    got = run(place, sums.reduction, CountingSource(x), chunk, total, axis=0, chunks=(1, -1))
    same(place.host(got), x.sum(axis=0))


@checked
def test_weights_that_sum_to_zero(place: Place) -> None:
    x = np.ones((4, 6))
    balanced = np.array([1.0, -1, 1, -1, 1, -1])
    with pytest.raises(ZeroDivisionError, match="sum to zero"):
        run(place, sums.average, x, axis=1, weights=balanced, chunks=(4, 2))
    balanced[0] = 2  # a part of the weights may sum to zero
    np.testing.assert_allclose(run(place, sums.average, x, axis=1, weights=balanced, chunks=(4, 2)), 1)


@checked
def test_a_slice_of_nan_has_no_position(place: Place) -> None:
    x = np.full((4, 6), np.nan)
    with pytest.raises(errors.ArgumentError, match="NaN alone"):
        run(place, nanreductions.nanargmax, x, axis=1, chunks=(2, 3))
    x[:, 5] = 1
    same(run(place, nanreductions.nanargmax, x, axis=1, chunks=(2, 3)), np.full(4, 5))


@pytest.mark.parametrize("value", [2.5, np.nan, -0.0])
@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmin", "nanmax", "var", "std"])
def test_a_number_is_reduced_as_an_array_of_no_dimensions(name: str, value: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of what has no number
        wanted = getattr(np, name)(np.array(value))
    for x in (np.array(value), cf.open(np.array(value))):
        np.testing.assert_array_equal(cf.compute(getattr(cf, name)(x), device="cpu"), wanted)


@pytest.mark.parametrize("dtype", ["i4", "u1", "f4", "c8"])
@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_more_freedom_than_elements(name: str, dtype: str) -> None:
    x = np.array([[1, 1], [1, 5]], dtype)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for axis in (None, 0, 1):
            wanted = getattr(np, name)(x, axis=axis, ddof=4)
            np.testing.assert_array_equal(getattr(cf, name)(x, axis=axis, ddof=4, device="cpu"), wanted)


@pytest.mark.parametrize("axis", [0, 1, (0, 2), (1, 2), None])
@pytest.mark.parametrize("length", [1, 254, 255, 256, 511, 66_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_true_elements_are_counted_beyond_what_a_byte_holds(axis: Any, length: int, order: Any) -> None:
    x = np.asarray(np.random.default_rng(0).integers(0, 256, (length, 3, 2)).astype("u1"), order=order)
    masks = x.view("?")  # any byte but 0 is true
    expected = np.sum(x != 0, axis=axis)
    np.testing.assert_array_equal(cf.sum(masks, axis=axis, device="cpu"), expected)
    np.testing.assert_array_equal(cf.count_nonzero(x != 0, axis=axis, device="cpu"), expected)
    np.testing.assert_array_equal(cf.sum(masks.swapaxes(0, 2), axis=2, device="cpu"), np.sum(x != 0, axis=0).T)

"""Functions of masked expressions that numpy.ma has under another name or lacks: held to what the parts give."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.examples import examples
from support.masked import as_ma

import chunkflow as cf
from chunkflow import errors

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Mean of empty")


@st.composite
def masked(draw: Any, dims: int = 2, dtypes: tuple[str, ...] = ("f8", "i4"), least: int = 3) -> np.ma.MaskedArray:
    """An array of numbers, some masked: under the mask lie ones that would be noticed."""
    shape = draw(npst.array_shapes(min_dims=dims, max_dims=dims, min_side=least, max_side=6))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    values = draw(npst.arrays(np.int64, shape, elements=st.integers(0 if dtype.kind in "u?b" else -4, 6)))
    mask = draw(npst.arrays(bool, shape, elements=st.sampled_from([True, False, False])))
    hidden = np.nan if dtype.kind in "fc" else 99
    found: np.ma.MaskedArray = np.ma.array(np.where(mask, hidden, values).astype(dtype), mask=mask)
    return found


def parts(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What a function makes of elements and mask that it moves alike."""
    return lambda x: np.ma.array(fn(x.data), mask=fn(np.ma.getmaskarray(x)))


def lines(fn: Callable[[np.ndarray], Any]) -> Callable[[Any], Any]:
    """What a function gives of the elements of each line that are not masked: masked where there are none."""

    def call(x: Any) -> Any:
        found = [np.ma.masked if not len(line := each.compressed()) else fn(line) for each in x.T]
        like = fn(np.ones(1, x.dtype))
        shape = (len(found), *like.shape)
        made = np.ma.masked_all(shape, like.dtype)
        for place, value in enumerate(found):
            made[place] = value
        return made.T

    return call


def of_gradient(edge: int, *spacing: Any, three: bool = False) -> Callable[[Any], Any]:
    """numpy.gradient, masked where one of the elements is that it takes."""

    def call(x: Any) -> Any:
        n, mask = x.shape[0], np.ma.getmaskarray(x)
        hidden = np.zeros(x.shape, bool)
        for i in range(n):
            beside = range(edge + 1) if i == 0 else range(n - edge - 1, n) if i == n - 1 else [i - 1, i + 1]
            hidden[i] = mask[[*beside, *([i] if three else [])]].any(0)
        return np.ma.array(np.gradient(x.data, *spacing, axis=0, edge_order=edge), mask=hidden)

    return call


def with_nan(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of the array with NaN on its diagonal, and in its last column."""

    def call(x: Any) -> Any:
        lost = np.eye(*x.shape) > 0
        lost[:, -1] = True
        return fn(x * np.where(lost, np.nan, 1.0))

    return call


UNEVEN = np.array([0.0, 1, 3, 4, 8, 9])

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "diagonal": (lambda x: np.diagonal(x, 1), lambda x: np.ma.diagonal(x, 1)),
    "method": (lambda x: x.diagonal(-1), lambda x: x.diagonal(-1)),
    "linalg": (lambda x: np.linalg.diagonal(x), lambda x: x.diagonal()),
    "diag": (np.diag, np.ma.diag),
    "diag of a line": (lambda x: np.diag(x[0], -1), lambda x: np.ma.diag(x[0], -1)),
    "diagflat": (np.diagflat, np.ma.diagflat),
    "tril": (lambda x: np.tril(x, 1), parts(lambda x: np.tril(x, 1))),
    "triu": (np.triu, parts(np.triu)),
    "rollaxis": (lambda x: np.rollaxis(x, 1), parts(lambda x: np.rollaxis(x, 1))),
    "resize": (lambda x: np.resize(x, (4, 7)), lambda x: np.ma.resize(x, (4, 7))),
    "fftshift": (np.fft.fftshift, parts(np.fft.fftshift)),
    "trace": (lambda x: np.trace(x, dtype="f8"), lambda x: x.trace(dtype="f8")),
    "partition": (lambda x: np.partition(x, 1, axis=0)[1], lambda x: np.ma.sort(x, axis=0)[1]),
    "cumulative_sum": (lambda x: np.cumulative_sum(x, axis=1), lambda x: x.cumsum(axis=1)),
    "initial": (
        lambda x: np.cumulative_prod(x, axis=0, include_initial=True),
        lambda x: np.ma.concatenate([np.ones((1, x.shape[1]), x.dtype), x.cumprod(axis=0)]),
    ),
    "ediff1d": (np.ediff1d, np.ma.ediff1d),
    "ends": (
        lambda x: np.ediff1d(x, to_begin=x[0], to_end=[7]),
        lambda x: np.ma.ediff1d(x, to_begin=x[0], to_end=np.array([7])),
    ),
    "outer": (lambda x: np.outer(x[0], x[1]), lambda x: np.ma.outer(x[0], x[1])),
    "outer with a list": (lambda x: np.outer([1, 2], x), lambda x: np.ma.outer([1, 2], x)),
    "convolve": (lambda x: np.convolve(x[0], [1, 2]), lambda x: np.ma.convolve(x[0], [1, 2])),
    "a zero weight": (lambda x: np.convolve([1, 0], x[0], "same"), lambda x: np.ma.convolve([1, 0], x[0], "same")),
    "correlate": (lambda x: np.correlate(x[0], [1, 2, 3]), lambda x: np.ma.correlate(x[0], [1, 2, 3], "valid")),
    "insert": (
        lambda x: np.insert(x, 1, x[0] * 2, axis=0),
        lambda x: np.ma.concatenate([x[:1], x[:1] * 2, x[1:]]),
    ),
    "insert a number": (
        lambda x: np.insert(x, -1, 3, axis=1),
        lambda x: np.ma.concatenate([x[:, :-1], np.full((len(x), 1), 3, x.dtype), x[:, -1:]], axis=1),
    ),
    "insert in an array": (
        lambda x: np.insert(np.zeros((2, x.shape[1]), x.dtype), 1, x[0], axis=0),
        lambda x: np.ma.concatenate([np.zeros((1, x.shape[1]), x.dtype), x[:1], np.zeros((1, x.shape[1]), x.dtype)]),
    ),
    "pad": (lambda x: np.pad(x, 2), parts(lambda x: np.pad(x, 2))),
    "pad with a constant": (
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=5),
        lambda x: np.ma.array(
            np.pad(x.data, ((1, 0), (0, 2)), constant_values=5), mask=np.pad(x.mask, ((1, 0), (0, 2)))
        ),
    ),
    **{
        mode: (
            lambda x, mode=mode: np.pad(x, ((2, 1), (0, 3)), mode),
            parts(lambda x, mode=mode: np.pad(x, ((2, 1), (0, 3)), mode)),
        )
        for mode in ("edge", "reflect", "symmetric", "wrap")
    },
    "cf.pad": (lambda x: cf.pad(x, 1, mode="reflect"), parts(lambda x: np.pad(x, 1, "reflect"))),
    "gradient": (lambda x: np.gradient(x, axis=0), of_gradient(1)),
    "second order": (lambda x: np.gradient(x, 2.0, axis=0, edge_order=2), of_gradient(2, 2.0)),
    "uneven": (
        lambda x: np.gradient(x, UNEVEN[: len(x)], axis=0),
        lambda x: of_gradient(1, UNEVEN[: len(x)], three=len(x) > 2)(x),
    ),
    "even places": (
        lambda x: np.gradient(x, 3.0 * np.arange(len(x)), axis=0),
        lambda x: of_gradient(1, 3.0 * np.arange(len(x)))(x),
    ),
    "gradients": (lambda x: np.gradient(x)[1], lambda x: of_gradient(1)(x.T).T),
    "median": (lambda x: np.median(x, axis=0), lines(np.median)),
    "quantile": (lambda x: np.quantile(x, 0.3, axis=0), lines(lambda line: np.quantile(line, 0.3))),
    "quantiles": (lambda x: cf.quantile(x, [0.1, 0.5], axis=0), lines(lambda line: np.quantile(line, [0.1, 0.5]))),
    "percentile": (lambda x: np.percentile(x, 70, axis=0), lines(lambda line: np.percentile(line, 70))),
    **{
        method: (
            lambda x, method=method: np.quantile(x, [0.2, 1], axis=0, method=method),
            lines(lambda line, method=method: np.quantile(line, [0.2, 1], method=method)),
        )
        for method in ("lower", "nearest", "inverted_cdf", "hazen")
    },
    "quantile of all": (
        lambda x: np.quantile(x, 0.4, keepdims=True),
        lambda x: np.ma.array(np.quantile(x.compressed(), 0.4) if x.count() else 0.0, mask=not x.count()).reshape(1, 1),
    ),
    "searchsorted": (
        lambda x: np.searchsorted([-1, 2, 3], x, side="right"),
        lambda x: np.ma.array(np.searchsorted([-1, 2, 3], x.filled(0), side="right"), mask=x.mask),
    ),
    "isin": (
        lambda x: np.isin(x, [2, 3, 99]),
        lambda x: np.ma.array(np.isin(x.filled(0), [2, 3, 99]), mask=x.mask),
    ),
    "polyval": (lambda x: np.polyval([2, 1], x), lambda x: 2 * x + 1),
    "select": (
        lambda x: np.select([x > 3, np.asarray(np.eye(*x.shape)) > 0], [x, x * 2], -1),
        lambda x: np.ma.where(x > 3, x, np.ma.where(np.eye(*x.shape) > 0, x * 2, -1)),
    ),
    "choose": (
        lambda x: np.choose(np.astype(x > 2, int), [x, -1]),
        lambda x: np.ma.choose((x > 2).astype(int), [x, np.full(x.shape, -1)]),
    ),
    "histogram": (
        lambda x: np.histogram(x, 4, (-4.0, 4))[0],
        lambda x: np.histogram(x.compressed(), 4, (-4.0, 4))[0],
    ),
    "histogram without a range": (lambda x: np.histogram(x, 3)[1], lambda x: np.histogram(x.compressed(), 3)[1]),
    "edges": (lambda x: np.histogram_bin_edges(x, 3), lambda x: np.histogram_bin_edges(x.compressed(), 3)),
    "weights": (
        lambda x: np.histogram(x, [-4, 0, 9], weights=np.ma.masked_less(np.arange(x.size).reshape(x.shape), 2))[0],
        lambda x: np.histogram(
            x.data[(at := np.arange(x.size).reshape(x.shape)) >= 2][~x.mask[at >= 2]],
            [-4, 0, 9],
            weights=at[at >= 2][~x.mask[at >= 2]],
        )[0],
    ),
    "histogram2d": (
        lambda x: np.histogram2d(x[0], x[1], [[-4, 0, 9], 2], [[-4, 9], [-4.0, 9]])[0],
        lambda x: np.histogram2d(
            *(x.data[:2, ~x.mask[:2].any(0)]), [[-4, 0, 9], 2], [[-4, 9], [-4.0, 9]]
        )[0],
    ),
    "samples": (
        lambda x: np.histogramdd(x[:2].T, [[-4, 0, 9], [-4.0, 9]])[0],
        lambda x: np.histogramdd(x.data[:2, ~x.mask[:2].any(0)].T, [[-4, 0, 9], [-4.0, 9]])[0],
    ),
    "lists of samples": (
        lambda x: np.histogramdd([x[0], x[1]], 2, [(-4.0, 9)] * 2, weights=x[2])[0],
        lambda x: np.histogramdd(
            list(x.data[:2, ~x.mask[:3].any(0)]), 2, [(-4.0, 9)] * 2, weights=x.data[2, ~x.mask[:3].any(0)]
        )[0],
    ),
    "dot": (lambda x: np.dot(x, x.T), lambda x: np.ma.dot(x, x.T)),
    "dot with a plain one": (
        lambda x: np.dot(np.ones((2, x.shape[0])), x),
        lambda x: np.ma.dot(np.ones((2, x.shape[0])), x),
    ),
    "dot of lines": (lambda x: np.dot(x[0], x[1]), lambda x: np.ma.dot(x[0], x[1])[()]),
    "dot with a number": (lambda x: np.dot(2.5, x), lambda x: np.ma.dot(2.5, x)),
    "inner": (lambda x: np.inner(x, x + x), lambda x: np.ma.inner(x, x + x)),
    "inner with a plain one": (
        lambda x: np.inner(np.ones((2, x.shape[1])), x),
        lambda x: np.ma.inner(np.ones((2, x.shape[1])), x),
    ),
    "cov": (np.cov, np.ma.cov),
    "columns": (lambda x: np.cov(x, rowvar=False, bias=True), lambda x: np.ma.cov(x, rowvar=False, bias=True)),
    "ddof": (lambda x: np.cov(x, ddof=2), lambda x: np.ma.cov(x, ddof=2)),
    "further variables": (lambda x: np.cov(x, x[:2] * 2), lambda x: np.ma.cov(x, x[:2] * 2)),
    "two of one shape": (lambda x: np.cov(x[0], x[1]), lambda x: np.ma.cov(x[0], x[1])),
    "corrcoef": (np.corrcoef, np.ma.corrcoef),
    "corrcoef of one": (lambda x: np.corrcoef(x[0]), lambda x: np.ma.corrcoef(x[0])),
    "trapezoid": (np.trapezoid, np.trapezoid),
    "uneven trapezoid": (
        lambda x: np.trapezoid(x, UNEVEN[: len(x)], axis=0),
        lambda x: np.trapezoid(x, UNEVEN[: len(x)], axis=0),
    ),
    "masked places": (lambda x: np.trapezoid(x[0], x[1]), lambda x: np.trapezoid(x[0], x[1])),
    **{
        fn.__name__: (with_nan(lambda x, fn=fn: fn(x, axis=0)), with_nan(lines(fn)))
        for fn in (np.nansum, np.nanprod, np.nanmean, np.nanvar, np.nanstd, np.nanmin, np.nanmax, np.nanmedian)
    },
    "nanquantile": (
        with_nan(lambda x: np.nanquantile(x, [0.2, 0.7], axis=0)),
        with_nan(lines(lambda line: np.nanquantile(line, [0.2, 0.7]))),
    ),
    "nansum of what has no NaN": (lambda x: np.nansum(x, axis=1, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "nancumsum": (
        with_nan(lambda x: np.nancumsum(x, axis=0)),
        with_nan(lambda x: np.ma.array(np.nancumsum(x.filled(0), axis=0), mask=x.mask)),
    ),
    **{
        fn.__name__: (lambda x, fn=fn: fn(x, x[0] * 2), lambda x, ours=ours: ours(x, x[0] * 2))
        for fn, ours in (
            (np.union1d, np.ma.union1d),
            (np.intersect1d, np.ma.intersect1d),
            (np.setdiff1d, np.ma.setdiff1d),
            (np.setxor1d, np.ma.setxor1d),
        )
    },
    "a masked table": (
        lambda x: np.isin(x, x[0]),
        lambda x: np.ma.array(np.isin(x.filled(0), x[0].compressed()), mask=x.mask),
    ),
    "nonzero": (lambda x: x.nonzero(), lambda x: x.nonzero()),
    "take": (lambda x: x.take([1, 0], axis=1), lambda x: x.take([1, 0], axis=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@given(x=masked(), budget=st.sampled_from(["400kB", "64MB"]))
@settings(max_examples=examples(1 / 5), deadline=None)
def test_functions(name: str, x: np.ma.MaskedArray, budget: str) -> None:
    fn, right = FUNCTIONS[name]
    got, expected = cf.compute(fn(cf.open(x)), device="cpu", budget=budget), right(x)
    if not isinstance(expected, tuple):
        got, expected = (got,), (expected,)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, np.ma.MaskedArray):
            as_ma(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=1e-12)
            assert not isinstance(one, np.ma.MaskedArray)


@given(masked(1, ("u1", "i8")))
@settings(max_examples=examples(1 / 5), deadline=None)
def test_counts_by_value(x: np.ma.MaskedArray) -> None:
    x = np.ma.array(np.abs(x.data), mask=x.mask)
    for fn in (np.bincount, lambda x: cf.bincount(x, device="cpu")):
        np.testing.assert_array_equal(fn(cf.open(x)), np.bincount(x.compressed()))  # type: ignore[no-untyped-call]
    with pytest.raises(errors.ArgumentError, match="of 1 axes"):
        np.bincount(cf.open(x[None]))


def test_a_masked_condition_masks_what_it_decides() -> None:
    x = np.ma.array([1.0, 2, 3, 4], mask=[0, 1, 0, 0])
    sure = np.array([True, True, False, False])
    lazy = cf.open(x)
    for conditions, hidden in (([lazy > 2, sure], [0, 1, 0, 0]), ([sure, lazy > 2], [0, 0, 0, 0])):
        found = np.select(conditions, [cf.open(np.arange(4.0)), 7.0], -1.0).compute(device="cpu")
        np.testing.assert_array_equal(np.ma.getmaskarray(found), hidden)
    found = np.select([cf.masked_array(sure)], [5.0], lazy)
    as_ma(found.compute(device="cpu"), np.ma.array([5.0, 5, 3, 4]))
    with pytest.raises(errors.ArgumentTypeError, match="would lose its mask"):
        np.select([cf.open(sure)], [5.0], lazy)


def test_nan_that_is_not_masked_is_a_value() -> None:
    x = cf.open(np.ma.array([[1, np.nan, 3], [4, 5, np.nan]], mask=[[0, 0, 0], [0, 0, 1]]))
    np.testing.assert_array_equal(np.quantile(x, 0.5, axis=1).compute(device="cpu").data, [np.nan, 4.5])
    found = np.gradient(x, axis=1).compute(device="cpu")
    np.testing.assert_array_equal(found.mask, [[False] * 3, [False, True, True]])
    assert np.isnan(found.data[0, 0])


def test_a_plain_name_multiplied_in_place_becomes_a_masked_one() -> None:
    plain = cf.open(np.arange(3.0))
    plain *= cf.open(np.ma.array([1.0, 2, 3], mask=[0, 1, 0]))
    as_ma(cf.compute(plain, device="cpu"), np.ma.array([0.0, 0, 6], mask=[0, 1, 0]))
    memory = np.arange(3.0)
    with pytest.raises(errors.UnsupportedError, match="out="):
        memory *= cf.open(np.ma.array([1.0, 2, 3], mask=[0, 1, 0]))


MASKED = np.ma.array(np.arange(12).reshape(3, 4), mask=np.eye(3, 4, dtype=bool))


@pytest.mark.parametrize("hidden", [True, False])
def test_arrays_without_axes(hidden: bool) -> None:
    given = np.ma.array(3.0, mask=hidden)
    x = cf.open(given)
    np.testing.assert_array_equal(x.compressed().compute(device="cpu"), given.compressed())
    found = np.histogram(x, [0.0, 2.0, 4.0])[0].compute(device="cpu")
    np.testing.assert_array_equal(found, [0, int(not hidden)])
    np.testing.assert_array_equal(np.unique(x).mask, [hidden])


def test_gradients_where_another_axis_has_no_elements() -> None:
    found = np.gradient(cf.open(np.ma.zeros((4, 0, 2))), axis=2).compute(device="cpu")
    assert found.shape == found.mask.shape == (4, 0, 2)


def test_methods_that_pick() -> None:
    x = cf.open(MASKED)
    for call in (
        lambda a: a.compress([True, False, True], axis=0),
        lambda a: a.compress([False, True]),
        lambda a: (a % 2).choose([10, 20]),
    ):
        got, expected = call(x).compute(device="cpu"), call(MASKED)
        np.testing.assert_array_equal(got.mask, expected.mask)
        np.testing.assert_array_equal(got.compressed(), expected.compressed())


@pytest.mark.parametrize("dtype", ["?", "u1"])
def test_the_greatest_number_is_not_what_is_masked(dtype: str) -> None:
    """numpy.ma sorts both alike, and finds values twice, or not."""
    most = np.array(255).astype(dtype)
    x, y, z = (np.ma.array([most, 0, most], mask=mask, dtype=dtype) for mask in ([0, 0, 1], [1, 1, 0], [0, 0, 0]))
    for fn, first, second, expected in (
        (np.union1d, x, y, [0, most, None]),
        (np.intersect1d, x, y, [most, None]),
        (np.intersect1d, x, z, [0, most]),
        (np.setdiff1d, x, y, [0]),
        (np.setdiff1d, x, z, [None]),
        (np.setdiff1d, z, x, []),
        (np.setxor1d, x, y, [0]),
        (np.setxor1d, y, z, [0, None]),
    ):
        for other in (second, cf.open(second)):
            found: Any = fn(cf.open(first), other)
            right = np.ma.array([0 if v is None else v for v in expected], dtype, mask=[v is None for v in expected])
            as_ma(found, right)


PRODUCTS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "matrices": (lambda x, y: x @ y, np.ma.dot),
    "a function": (np.matmul, np.ma.dot),
    "chunkflow's": (cf.matmul, np.ma.dot),
    "linalg": (np.linalg.matmul, np.ma.dot),
    "a method": (lambda x, y: x.dot(y), lambda x, y: x.dot(y)),
    "strict": (lambda x, y: x.dot(y, strict=True), lambda x, y: x.dot(y, strict=True)),
    "strict with a vector": (lambda x, y: x.dot(y[:, 0], strict=True), lambda x, y: x.dot(y[:, 0], strict=True)),
    "strict with a number": (lambda x, y: x.dot(2, strict=True), lambda x, y: x.dot(2, strict=True)),
    "strict with a plain one": (
        lambda x, y: x.dot(y.filled(0), strict=True),
        lambda x, y: x.dot(y.filled(0), strict=True),
    ),
    "a vector on the right": (lambda x, y: x @ y[:, 0], lambda x, y: np.ma.dot(x, y[:, 0])),
    "a vector on the left": (lambda x, y: x[0] @ y, lambda x, y: np.ma.dot(x[0], y)),
    "vectors": (lambda x, y: x[0] @ y[:, 0], lambda x, y: np.ma.dot(x[0], y[:, 0])[()]),
    "a plain matrix on the left": (
        lambda x, y: np.ones((2, x.shape[0]), "i1") @ x,
        lambda x, y: np.ma.dot(np.ones((2, x.shape[0]), "i1"), x),
    ),
    "a plain expression on the left": (
        lambda x, y: cf.open(np.ones((2, x.shape[0]), "i1")) @ x,
        lambda x, y: np.ma.dot(np.ones((2, x.shape[0]), "i1"), x),
    ),
    "a list": (lambda x, y: x @ ([1] * x.shape[1]), lambda x, y: np.ma.dot(x, [1] * x.shape[1])),
    "stacks": (
        lambda x, y: np.stack([x, x[::-1]]) @ np.stack([y, y])[:1],
        lambda x, y: of_matrices([x, x[::-1]], [y, y]),
    ),
    "a stack and a matrix": (
        lambda x, y: np.stack([x, x[::-1]]) @ y,
        lambda x, y: of_matrices([x, x[::-1]], [y, y]),
    ),
    "a stack and a vector": (
        lambda x, y: np.stack([x, x[::-1]]) @ y[:, 0],
        lambda x, y: of_matrices([x, x[::-1]], [y[:, 0]] * 2),
    ),
    "a plain matrix on the right": (lambda x, y: x @ y.filled(0), lambda x, y: np.ma.dot(x, y.filled(0))),
}  # fmt: skip


def of_matrices(xs: Any, ys: Any) -> Any:
    """Products one by one, as numpy.ma has them."""
    return np.ma.stack([np.ma.dot(x, y) for x, y in zip(xs, ys, strict=True)])


@st.composite
def factors(draw: Any) -> tuple[np.ma.MaskedArray, np.ma.MaskedArray]:
    """Two matrices that can be multiplied, of which whole rows and columns may be masked."""
    rows, inner, columns = (draw(st.integers(1, 5)) for _ in range(3))
    found = []
    for shape in ((rows, inner), (inner, columns)):
        dtype = np.dtype(draw(st.sampled_from(["?", "u1", "i4", "i8", "f4", "f8", "c8", "c16"])))
        values = draw(npst.arrays(np.int64, shape, elements=st.integers(0 if dtype.kind in "u?" else -4, 6)))
        mask = draw(npst.arrays(bool, shape)) | draw(npst.arrays(bool, (shape[0], 1)))
        hidden = np.nan if dtype.kind in "fc" else 99
        found.append(np.ma.array(np.where(mask, hidden, values).astype(dtype), mask=mask))
    return found[0], found[1]


@pytest.mark.parametrize("name", PRODUCTS)
@given(given=factors(), budget=st.sampled_from(["400kB", "64MB"]))
@settings(max_examples=examples(1 / 5), deadline=None)
def test_products(name: str, given: Any, budget: str) -> None:
    """numpy.ma.dot of matrices says what is masked: NumPy's ``@`` of its arrays has no right mask."""
    fn, right = PRODUCTS[name]
    x, y = given
    as_ma(cf.compute(fn(cf.open(x), cf.open(y)), device="cpu", budget=budget), right(x, y))


def test_products_of_more_than_a_block(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = (np.ma.array(rng.random(shape), mask=rng.random(shape) < 0.4) for shape in ((300, 90), (90, 200)))
    x[7] = np.ma.masked
    as_ma((cf.open(x) @ cf.open(y)).compute(device="cpu", budget="300kB"), np.ma.dot(x, y))
    np.save(tmp_path / "y.npy", y.data)
    for name in (str(tmp_path / "y.npy"), tmp_path / "y.npy"):
        as_ma(cf.matmul(cf.open(x), name).compute(device="cpu", budget="300kB"), np.ma.dot(x, y.data))


def test_products_of_nothing() -> None:
    x, y = np.ma.zeros((2, 0)), np.ma.zeros((0, 3))
    for strict in (False, True):
        as_ma(cf.open(x).dot(cf.open(y), strict=strict).compute(device="cpu"), x.dot(y, strict=strict))


def test_products_in_place() -> None:
    x = np.ma.array(np.arange(9.0).reshape(3, 3), mask=np.eye(3))
    lazy: Any = cf.open(x)
    lazy @= cf.open(x)
    as_ma(lazy.compute(device="cpu"), np.ma.dot(x, x))


class _Other:
    __array_ufunc__ = None

    def __matmul__(self, other: Any) -> str:
        return "right"

    __rmatmul__ = __matmul__


def test_products_that_another_has() -> None:
    x = cf.open(MASKED)
    assert (x @ _Other(), _Other() @ x) == ("right", "right")


PRODUCTS_REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shapes": (lambda x: x @ x, r"shapes \(3, 4\) and \(3, 4\) do not match"),
    "numbers": (lambda x: x @ 2, "a scalar is no matrix"),
    "a dtype": (lambda x: np.matmul(x, x.T, dtype="f4"), r"np\.matmul .* takes no dtype"),
    "an output": (lambda x: np.matmul(x, x.T, out=np.ones((3, 3))), "out= is not for expressions"),
    "an output of dot": (lambda x: x.dot(x.T, np.ones((3, 3))), "out= is not for expressions"),
    "times": (lambda x: x @ cf.open(np.zeros(4, "m8[s]")), "of times is not supported"),
}


@pytest.mark.parametrize("name", PRODUCTS_REFUSED)
def test_products_that_are_refused(name: str) -> None:
    fn, said = PRODUCTS_REFUSED[name]
    with pytest.raises(errors.ChunkflowError, match=said):
        fn(cf.open(MASKED))


NUMPY_MA = sorted(name for name in np.ma.__all__ if callable(fn := getattr(np.ma, name)) and not isinstance(fn, type))
UNKNOWING = {"isMA", "isMaskedArray", "isarray", "set_fill_value", "frombuffer"}
"""Functions of numpy.ma's that do nothing with what is not its own, or read bytes."""


_OF_WRONG_ARGUMENTS = (TypeError, ValueError, IndexError, AttributeError, NotImplementedError, np.ma.MAError)


def _outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        found = fn(*args)
        found = list(found) if inspect.isgenerator(found) else found
    except _OF_WRONG_ARGUMENTS as error:
        return error
    return cf.compute(found, device="cpu") if isinstance(found, cf.Array | cf.MaskedArray) else found


CONFUSED = {"unique", "intersect1d", "setdiff1d", "setxor1d"}
"""Set functions of numpy.ma's, which sort what is masked as the greatest number: of bools they take True for it."""

SAID = {
    "sum": r"np\.sum\(x\) for np\.ma\.sum\(x\)",
    "anom": r"x\.filled\(value\) or x\.compressed\(\)",
    "masked_greater": r"chunkflow\.masked_where for np\.ma\.masked_where",
    "ones_like": r"NumPy's of the same names do",
    "alltrue": r"NumPy's do what these do",
    "dot": r"np\.dot\(x, y\), not np\.ma\.dot\(x, y\)",
    "inner": r"np\.dot\(x, y\), not np\.ma\.dot\(x, y\)",
}


@pytest.mark.parametrize("name", SAID)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_numpy_ma_cannot_do_says_what_can(name: str) -> None:
    x = cf.open(np.ma.array(np.eye(3), mask=np.eye(3)))
    of_two = name in ("dot", "inner", "masked_greater")
    with pytest.raises(errors.ChunkflowError, match=SAID[name]):
        getattr(np.ma, name)(x, *[x] * of_two)


@pytest.mark.parametrize("name", [name for name in NUMPY_MA if name not in UNKNOWING])
@pytest.mark.filterwarnings("ignore")
def test_what_numpy_ma_makes_of_an_expression_is_right_or_refused(name: str) -> None:
    """Its functions have no protocol: they ask for an array, or for methods that expressions have or not."""
    fn = getattr(np.ma, name)
    square = np.ma.array(np.arange(9.0).reshape(3, 3) % 5, mask=np.eye(3, dtype=bool))
    for x, more in itertools.product((square, square[1], square > 2), ("", "x", "2", "xx", "x2", "22")):
        expected, got = (_outcome(fn, each, *({"x": each}.get(c, 2) for c in more)) for each in (x, cf.open(x)))
        if isinstance(expected, _OF_WRONG_ARGUMENTS) or isinstance(got, errors.ChunkflowError):
            continue
        if name in CONFUSED and x.dtype == bool:
            continue
        if expected is None or isinstance(expected, list):
            assert got == expected
        else:
            as_ma(got, expected)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "masked places": lambda x, p: np.insert(p, x[0], 1),
    "masked bins": lambda x, p: np.digitize(p, x[0]),
    "masked knots": lambda x, p: np.interp(p, x[0], x[1]),
    "a masked sorted array": lambda x, p: np.searchsorted(x[0], p),
    "bins": lambda x, p: np.histogram(p, x[0]),
    "bins of bins": lambda x, p: np.histogram2d(p[0], p[1], [x[0], 2]),
    "places": lambda x, p: np.take(p, [x[0], x[1]]),
    "mode": lambda x, p: np.pad(x, 1, "mean"),
    "odd images": lambda x, p: np.pad(x, 1, "reflect", reflect_type="odd"),
    "a quantile of int64": lambda x, p: np.quantile(x, 0.3, method="lower"),
    "masked weights": lambda x, p: np.quantile(p, 0.3, method="inverted_cdf", weights=x),
    "masked and masked": lambda x, p: np.convolve(x[0], x[1]),
    "lexsort": lambda x, p: np.lexsort((x, p)),
    "weights of samples": lambda x, p: np.cov(x, aweights=[1, 2, 3, 4]),
    "a covariance of complex numbers": lambda x, p: np.cov(x * 1j),
    "places in a set": lambda x, p: np.intersect1d(x, p, return_indices=True),
    "contractions": lambda x, p: np.tensordot(x, p),
    "products of vectors": lambda x, p: np.vecdot(x, p),
    "statistics beside an array": lambda x, p: np.pad(x, 1, "median"),
    "samples of many axes": lambda x, p: np.cov(x[None]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_take_values_under_the_mask_is_refused(name: str) -> None:
    with pytest.raises(errors.UnsupportedError, match="filled"):
        REFUSED[name](cf.open(MASKED), cf.open(np.arange(12).reshape(3, 4)))

"""Operators, ufuncs and functions of masked expressions give what numpy.ma's give, within the budget."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.examples import examples
from support.masked import as_ma
from support.numpy_examples import EXAMPLES, arrays, flat, rows

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.lazy import masked_functions, numpy_dispatch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BUDGETS = ("400kB", "64MB")
DTYPES = ("f8", "f4", "i4", "u1", "?", "c16")


def each(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def compared(fn: Callable[..., Any], *arrays: Any, right: Callable[..., Any] | None = None, **run: Any) -> None:
    """Check that a function gives of expressions what it (or another one) gives of numpy.ma's arrays."""
    options = {"device": "cpu", **run}
    lazies = [cf.open(a) if isinstance(a, np.ma.MaskedArray) else a for a in arrays]
    try:
        expected = (fn if right is None else right)(*arrays)
    except (TypeError, ValueError):
        with pytest.raises((TypeError, ValueError)):
            cf.compute(fn(*lazies), **options)
        return
    got = fn(*lazies)
    for one, other in zip(each(cf.compute(got, **options)), each(expected), strict=True):
        bare = isinstance(other, np.ma.MaskedArray) and not other.ndim  # of which ours are scalars
        as_ma(one, other[()] if bare else other)


@st.composite
def masked(draw: Any, shape: Any = None, dtypes: Any = DTYPES, min_side: int = 0) -> np.ma.MaskedArray:
    """An array of small numbers, of which some are masked."""
    shape = draw(npst.array_shapes(min_dims=1, max_dims=3, min_side=min_side, max_side=5)) if shape is None else shape
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    small = st.integers(0 if dtype.kind in "u?b" else -3, 1 if dtype.kind == "b" else 4)
    data = draw(npst.arrays(np.int64, shape, elements=small)).astype(dtype)
    data = data / dtype.type(2) if dtype.kind in "fc" else data
    found: np.ma.MaskedArray = np.ma.array(data, mask=draw(npst.arrays(bool, shape)))
    return found


budgets = st.sampled_from(BUDGETS)

# -- Elementwise -------------------------------------------------------------------------------------------------------

UFUNCS = [
    *(np.absolute, np.add, np.arccos, np.arccosh, np.arcsin, np.arctan2, np.arctanh, np.bitwise_and, np.ceil, np.cos),
    *(np.divide, np.divmod, np.equal, np.exp, np.floor_divide, np.fmax, np.fmod, np.frexp, np.greater, np.hypot),
    *(np.isnan, np.left_shift, np.log, np.log2, np.log10, np.logical_and, np.logical_not, np.maximum, np.modf),
    *(np.multiply, np.negative, np.power, np.remainder, np.sqrt, np.square, np.subtract, np.tan, np.invert),
]
OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.and_, operator.or_),
    *(operator.xor, operator.lshift, operator.rshift, divmod),
]
UNARY = [operator.neg, operator.pos, operator.abs, operator.invert]


@given(st.sampled_from(UFUNCS), st.data())
@settings(max_examples=examples(2), deadline=None)
def test_ufuncs(ufunc: np.ufunc, data: Any) -> None:
    x = data.draw(masked())
    others = [masked(x.shape), masked(x.shape[1:]), masked((2, *x.shape)), masked(x.shape).map(np.ma.getdata)]
    arrays = [x, *([] if ufunc.nin == 1 else [data.draw(st.one_of(others))])]
    compared(ufunc, *data.draw(st.permutations(arrays)), budget=data.draw(budgets))


@given(st.sampled_from([*OPERATORS, *UNARY]), st.data())
@settings(max_examples=examples(2), deadline=None)
def test_operators(op: Callable[..., Any], data: Any) -> None:
    x = data.draw(masked())
    if op in UNARY:
        return compared(op, x)
    other = data.draw(st.one_of(masked(x.shape), masked((2, *x.shape)), masked(x.shape).map(np.ma.getdata)))
    compared(op, x, other, budget=data.draw(budgets))
    if isinstance(other, np.ma.MaskedArray):
        compared(op, other, x)


def test_numbers_do_not_widen_the_result() -> None:
    x = np.ma.masked_equal(np.arange(4, dtype="f4"), 2)
    for made in (cf.open(x) * 2, 2 * cf.open(x), np.multiply(cf.open(x), 2)):
        as_ma(made.compute(device="cpu"), np.multiply(x, 2))


def test_arrays_without_a_mask_on_either_side() -> None:
    x, plain = np.ma.masked_equal(np.arange(4.0), 2), np.arange(1.0, 5.0)
    lazy = cf.open(plain)
    compared(lambda m: lazy - m, x, right=lambda m: plain - m)
    compared(lambda m: m / lazy, x, right=lambda m: m / plain)
    compared(lambda m: np.hypot(lazy, m), x, right=lambda m: np.hypot(plain, m))
    compared(lambda m: m + x, x)
    compared(lambda m: np.add(x, m), x)
    compared(lambda m: [1, 2, 3, 4] * m, x)
    compared(lambda m: m + np.ma.masked, x)


def test_where_a_function_is_not_defined_is_masked() -> None:
    x = np.ma.array([-2.0, -1, 0, 1, 2, np.inf, np.nan, 1e308], mask=[0, 0, 0, 0, 0, 0, 0, 1])
    for ufunc in (np.log, np.sqrt, np.arccosh, np.arctanh, np.arcsin):
        compared(ufunc, x)
    zeros = np.array([0.0, 1, 0, 1, 0, 1, 1, 1])
    for fn in (np.divide, np.fmod, operator.truediv, operator.floordiv, operator.mod, operator.pow):
        compared(fn, x, zeros)
        compared(fn, x, 0.5)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "clip": lambda x: np.clip(x, 0, 1),
    "method": lambda x: x.clip(-1, 1).round(1),
    "astype": lambda x: x.astype("f4"),
    "transposed": lambda x: x.T,
    "reshape": lambda x: x.reshape(-1),
    "ravel": lambda x: np.ravel(x),
    "new axis": lambda x: x[None, ..., None],
    "integer": lambda x: x[0],
    "slice": lambda x: x[..., ::-2],
    "list": lambda x: x[[1, 0, 1]],
    "mask": lambda x: x[np.arange(x.shape[0]) > 0],
    "squeeze": lambda x: np.squeeze(x[:1], 0),
    "swapaxes": lambda x: x.swapaxes(0, -1),
    "flip": lambda x: np.flip(x, 0),
    "roll": lambda x: np.roll(x, 1, axis=0),
    "repeat": lambda x: x.repeat(2, axis=0),
    "tile": lambda x: np.tile(x, 2),
    "expand_dims": lambda x: np.expand_dims(x, 1),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "take": lambda x: np.take(x, [1, 0], axis=0),
    "split": lambda x: np.array_split(x, 2),
    "copy": lambda x: x.copy(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(st.data())
@settings(max_examples=examples(1 / 8), deadline=None)
def test_functions_that_numpy_takes_masks_through(name: str, data: Any) -> None:
    compared(FUNCTIONS[name], data.draw(masked(min_side=2)), budget=data.draw(budgets))


JOINS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "concatenate": (lambda x, y: np.concatenate([x, y]), lambda x, y: np.ma.concatenate([x, y])),
    "stack": (lambda x, y: np.stack([x, y], axis=1), lambda x, y: np.ma.stack([x, y], axis=1)),
    "hstack": (lambda x, y: np.hstack([x, y]), lambda x, y: np.ma.hstack([x, y])),
    "append": (lambda x, y: np.append(x, y), lambda x, y: np.ma.append(x, y)),
    "append a list": (lambda x, y: np.append(x, [1, 2]), lambda x, y: np.ma.append(x, [1, 2])),
    "where": (lambda x, y: np.where(x > y, x, y), lambda x, y: np.ma.where(x > y, x, y)),
    "where, a number": (lambda x, y: cf.where(y > 0, 1.5, x), lambda x, y: np.ma.where(y > 0, 1.5, x)),
    "where, a mask alone": (lambda x, y: np.where(x > 0, 1.0, 2.0), lambda x, y: np.ma.where(x > 0, 1.0, 2.0)),
    "allclose": (np.allclose, lambda x, y: np.bool_(np.ma.allclose(x, y))),
}


@pytest.mark.parametrize("name", JOINS)
@given(st.data())
@settings(max_examples=examples(1 / 5), deadline=None)
def test_functions_of_several(name: str, data: Any) -> None:
    fn, right = JOINS[name]
    x = data.draw(masked(min_side=1, dtypes=("f8", "i4")))
    y = data.draw(masked(x.shape, dtypes=(x.dtype,)))
    plain = np.asarray(y) if data.draw(st.booleans()) else y
    compared(fn, x, plain, right=right, budget=data.draw(budgets))


def test_arrays_that_are_changed_alike_are_all_masked_ones() -> None:
    x = cf.open(np.ma.masked_equal(np.arange(3), 1))
    for found in (
        np.broadcast_arrays(x, np.arange(2)[:, None]),
        np.meshgrid(x, [0, 1]),
        np.atleast_2d(x, cf.open(np.array(5))),
    ):
        assert all(isinstance(one, cf.MaskedArray) for one in found)
        one, other = cf.compute(*found, device="cpu")
        assert one.shape == ((1, 3) if other.shape == (1, 1) else (2, 3))
        assert one.mask.sum() == len(one)
        assert not other.mask.any()


# -- Reductions --------------------------------------------------------------------------------------------------------

REDUCTIONS = ("sum", "prod", "mean", "var", "std", "min", "max", "any", "all", "ptp")


@pytest.mark.parametrize("name", REDUCTIONS)
@given(st.data())
@settings(max_examples=examples(1 / 3), deadline=None)
def test_reductions_skip_what_is_masked(name: str, data: Any) -> None:
    x = data.draw(masked(min_side=1, dtypes=DTYPES if name not in ("min", "max", "ptp") else DTYPES[:5]))
    axes = st.none() | st.integers(-x.ndim, x.ndim - 1)
    if name not in ("ptp", "min", "max", "mean"):
        axes |= st.just(tuple(range(x.ndim)))
    options: dict[str, Any] = {"axis": data.draw(axes), "keepdims": data.draw(st.booleans())}
    if name in ("var", "std"):
        options["ddof"] = data.draw(st.sampled_from([0, 1]))
    if name in ("mean", "var", "std", "ptp") and x.dtype.kind == "b":
        x = x.astype("i4")  # numpy.ma fails to subtract
    compared(lambda m: getattr(m, name)(**options), x, right=_with_a_mask(name, options), budget=data.draw(budgets))
    if hasattr(np, name) and "ddof" not in options:
        compared(lambda m: getattr(np, name)(m, **options), x, right=_with_a_mask(name, options))


def _with_a_mask(name: str, options: dict[str, Any]) -> Callable[[Any], Any]:
    """numpy.ma's method. It gives an array without dimensions where one is kept with ``keepdims``."""

    def call(x: np.ma.MaskedArray) -> Any:
        found = getattr(x, name)(**options)
        if name in ("mean", "var", "std") and found is not np.ma.masked:  # it makes doubles of some single ones
            found = found.astype(getattr(np, name)(x.data).dtype)
        if options["keepdims"] and np.ndim(found) == 0:
            kept = np.ma.masked_all((1,) * x.ndim, x.dtype) if found is np.ma.masked else np.ma.array(found)
            return kept.reshape((1,) * x.ndim)
        return found

    return call


PLAIN: dict[str, Callable[[Any], Any]] = {
    "count": lambda x: x.count(axis=0),
    "argmin": lambda x: x.argmin(axis=-1),
    "argmax": lambda x: np.argmax(x, 0),
    "argsort": lambda x: x.argsort(axis=0, kind="stable"),
    "nonzero": lambda x: np.nonzero(x),
    "filled": lambda x: x.filled(1),
    "compressed": lambda x: x.compressed(),
    "mask": lambda x: x.mask,
}


@pytest.mark.parametrize("name", PLAIN)
@given(st.data())
@settings(max_examples=examples(1 / 6), deadline=None)
def test_what_has_no_mask(name: str, data: Any) -> None:
    x = data.draw(masked(min_side=1, dtypes=DTYPES[:4]))
    compared(PLAIN[name], x, budget=data.draw(budgets))


OTHERS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "median": (lambda x: np.median(x, axis=0), lambda x: np.ma.median(x, axis=0)),
    "median of all": (np.median, np.ma.median),
    "average": (lambda x: np.average(x, axis=0), lambda x: np.ma.average(x, axis=0)),
    "weights": (
        lambda x: np.average(x, axis=-1, weights=np.arange(x.shape[-1])),
        lambda x: np.ma.average(x, axis=-1, weights=np.arange(x.shape[-1])),
    ),
    "masked weights": (lambda x: np.average(x, 0, x > 0), lambda x: np.ma.average(x, 0, x > 0)),
    "sort": (lambda x: np.sort(x, axis=0), lambda x: np.sort(x, axis=0)),
    "cumsum": (lambda x: x.cumsum(axis=0), lambda x: x.cumsum(axis=0)),
    "cumprod": (lambda x: np.cumprod(x, axis=-1), lambda x: x.cumprod(axis=-1)),
    "cumsum of all": (lambda x: x.cumsum(), lambda x: np.ma.ravel(x).cumsum(axis=0)),
    "diff": (lambda x: np.diff(x, axis=0), lambda x: np.ma.diff(x, axis=0)),
    "second differences": (lambda x: cf.diff(x, 2), lambda x: np.ma.diff(x, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
@given(st.data())
@settings(max_examples=examples(1 / 6), deadline=None)
def test_functions_of_numpy_ma(name: str, data: Any) -> None:
    fn, right = OTHERS[name]
    shape = (3, 4) if "weights" in name else None  # of one dimension numpy.ma gives NaN where all weights are zero
    x = data.draw(masked(shape, min_side=1, dtypes=("f8", "i4", "f4")))
    if "median" in name or "weights" in name or name == "average":
        x = x.astype("f8")  # numpy.ma makes doubles of some single ones
    compared(fn, x, right=right, budget=data.draw(budgets))


def test_nan_is_no_mask() -> None:
    x = np.ma.array([[np.nan, 1.0, 5.0], [3.0, np.nan, 7.0]], mask=[[0, 0, 1], [0, 1, 0]])
    compared(lambda m: np.median(m, axis=1), x, right=lambda m: np.ma.median(m, axis=1))
    compared(lambda m: m.max(axis=1), x)
    compared(lambda m: np.ma.getdata(cf.compute(m.sum(axis=1), device="cpu")), x, right=lambda m: m.sum(axis=1).data)
    found = np.sort(cf.open(x), axis=1).compute(device="cpu")
    np.testing.assert_array_equal(found.mask, [[False, False, True]] * 2)
    np.testing.assert_array_equal(found.filled(0), [[1, np.nan, 0], [3, 7, 0]])


def test_where_leaves_out_more() -> None:
    x, wanted = (
        np.ma.masked_equal(np.arange(6.0).reshape(2, 3), 4),
        np.array([[True, False, True], [False, True, False]]),
    )
    found = np.mean(cf.open(x), axis=1, where=wanted).compute(device="cpu")
    as_ma(found, np.ma.array([1.0, 0], mask=[False, True]))
    compared(lambda m: np.add.reduce(m, axis=1), x, right=lambda m: m.sum(axis=1))
    compared(lambda m: np.maximum.reduce(m), x, right=lambda m: m.max(axis=0))


@pytest.mark.parametrize("shape", [None, (), 3, (1, 3), (3, 1), (2, 2), (1, 1)])
def test_arrays_of_one_number_keep_the_mask_where_they_have_as_many_elements(shape: Any) -> None:
    for x in (np.ma.array([1.0, 2, 3], mask=[0, 1, 0]), np.ma.array(5.0, mask=True)):
        for fn in (np.zeros_like, lambda x, **how: np.full_like(x, 7, **how)):
            compared(lambda x: fn(x, shape=shape, order="F"), x)  # noqa: B023


def test_an_element_at_a_place() -> None:
    x = np.ma.array([[1, 2], [3, 4]], mask=[[0, 0], [0, 1]])
    assert [cf.open(x).item(*place) for place in ((1,), (-2,), (1, 0), ((0, 1),))] == [2, 3, 3, 2]
    with pytest.raises(errors.ArgumentError, match="is masked: filled"):
        cf.open(x).item(3)


def test_unique_has_the_masked_value_last() -> None:
    x = np.ma.masked_equal([3, 1, 3, 2], 2)
    as_ma(cf.unique(cf.open(x), device="cpu"), np.ma.unique(x))
    as_ma(np.unique(cf.open(x)), np.unique(x))
    as_ma(cf.unique(cf.open(np.ma.array([3, 1, 3])), device="cpu"), np.ma.unique(np.ma.array([3, 1, 3])))


# -- Nothing leaks from masked places, and nothing is lost where nothing is masked -------------------------------------

HIDDEN = np.random.default_rng(2).random((6, 4, 5)) < 0.2


def _with(value: float) -> Callable[[np.ndarray], Any]:
    """Makes masked expressions with this value in masked places."""

    def make(a: np.ndarray) -> cf.MaskedArray:
        mask = HIDDEN[(..., *(0,) * (3 - a.ndim))]
        return cf.masked_array(np.where(mask, np.asarray(value).astype(a.dtype), a), mask)

    return make


@pytest.mark.parametrize("fn", rows(masked_functions.FUNCTIONS, 2), ids=numpy_dispatch.name_of)
def test_functions_do_not_see_what_is_masked(fn: Any) -> None:
    tried = 0
    for example in EXAMPLES[fn]:
        try:
            results = [cf.compute(example(**arrays(_with(value))), device="cpu") for value in (3.0, np.nan, np.inf)]
        except errors.UnsupportedError:
            continue
        tried += 1
        for one, *others in zip(*map(flat, results), strict=True):
            for other in others:
                as_ma(other, one) if isinstance(one, np.ndarray | np.generic) else None
    assert tried or fn in (np.extract, np.compress, np.all)  # whose examples mask the condition too


@pytest.mark.parametrize("fn", rows(masked_functions.FUNCTIONS, 2), ids=numpy_dispatch.name_of)
def test_without_a_mask_functions_give_what_numpy_gives(fn: Any) -> None:
    for example in EXAMPLES[fn]:
        expected = example(**arrays(np.asarray))
        try:
            got = cf.compute(example(**arrays(cf.masked_array)), device="cpu")
        except errors.UnsupportedError:
            continue
        for one, other in zip(flat(got), flat(expected), strict=True):
            assert not np.any(np.ma.getmask(one)) if isinstance(one, np.ndarray) else True
            if isinstance(other, np.ndarray | np.generic):
                assert np.asarray(one).dtype == other.dtype
                np.testing.assert_allclose(np.asarray(one), other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fn", rows(set(numpy_dispatch.FUNCTIONS) - set(masked_functions.FUNCTIONS), 3))
def test_other_functions_are_refused_with_the_way_out(fn: Any) -> None:
    with pytest.raises(errors.UnsupportedError, match=r"filled\(value\) or x\.compressed\(\)"):
        [example(**arrays(cf.masked_array)) for example in EXAMPLES[fn]]


def test_means_have_no_integer_dtype() -> None:
    x = cf.open(np.ma.array([1, 2, 4], mask=[True, False, False]))
    with pytest.raises(errors.UnsupportedError, match=r"has no dtype='i8', which loses fractions"):
        x.mean(dtype="i8")
    assert x.mean(dtype="f4").compute(device="cpu") == 3


@pytest.mark.parametrize(
    "fn",
    [
        np.ma.getmaskarray,
        lambda x: np.ma.outer(x[0], x[1]),
        lambda x: np.ma.count_masked(x, axis=0),
        lambda x: np.ma.where(x > 1, 1, 2),
        np.ma.is_masked,
        lambda x: np.ma.flatnotmasked_edges(x[0]),
    ],
)
def test_what_asks_numpys_masked_arrays_for_their_mask_finds_it(fn: Callable[..., Any]) -> None:
    x = np.ma.array(np.arange(6.0).reshape(2, 3), mask=[[True, False, False], [False, True, False]])
    expected, got = fn(x), cf.compute(fn(cf.open(x)), device="cpu")
    np.testing.assert_array_equal(np.ma.getmaskarray(got), np.ma.getmaskarray(expected))
    np.testing.assert_array_equal(np.ma.filled(got, 0), np.ma.filled(expected, 0))

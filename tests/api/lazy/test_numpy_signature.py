"""NumPy's functions of lazy arrays take arguments as NumPy does: by position, by keyword, with their defaults."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from support.numpy_examples import EXAMPLES, arrays, flat, rows

import chunkflow as cf
from chunkflow.api.lazy import creation, numpy_dispatch, numpy_signature
from chunkflow.errors import ArgumentTypeError, UnsupportedError

X = np.arange(12.0).reshape(3, 4)
BY_PLACE = (np.unique_values, np.unique_counts, np.unique_inverse)
"""Functions whose dispatchers take by position alone what their signatures call otherwise."""
SIGNED = [fn for fn in numpy_dispatch.FUNCTIONS if numpy_signature._signature(fn) is not None]


def calls(fn: Any) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The calls of `fn` in its examples, of lazy arrays; each with what NumPy gives."""
    found = []
    for example in EXAMPLES[fn]:
        given: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            ours = numpy_dispatch.function

            def record(called: Any, args: Any, kwargs: Any, ours: Any = ours, given: list[Any] = given) -> Any:
                result = ours(called, args, kwargs)
                if called is fn:
                    given.append((cf.compute(result, device="cpu"), args, kwargs))
                return result

            patch.setattr(numpy_dispatch, "function", record)
            example(**arrays(cf.open))
        found += given[:1]
    return found


def by_position(fn: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """As many arguments as can be by position, with NumPy's defaults between those given."""
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    places: list[Any] = []
    named: dict[str, Any] = {}
    for key, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            places.append(bound.arguments[key])
        elif parameter.kind is parameter.VAR_POSITIONAL:
            places += bound.arguments[key]
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= bound.arguments[key]
        elif key in kwargs:
            named[key] = kwargs[key]
    return places, named


def by_keyword(fn: Any, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """As many arguments as can be by keyword."""
    places: list[Any] = []
    named: dict[str, Any] = {}
    bound = inspect.signature(fn).bind(*args, **kwargs)
    for key, value in bound.arguments.items():
        parameter = inspect.signature(fn).parameters[key]
        if parameter.kind is parameter.POSITIONAL_ONLY:
            places.append(value)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            places += [*named.values(), *value]  # what comes before it cannot be by name
            named.clear()
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= value
        else:
            named[key] = value
    return places, named


@pytest.mark.parametrize("fn", rows(SIGNED, 2), ids=numpy_dispatch.name_of)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_way_to_give_the_arguments(fn: Any) -> None:
    for expected, args, kwargs in calls(fn):
        for way in (by_position, by_keyword)[: 1 if fn in BY_PLACE else 2]:
            places, named = way(fn, args, kwargs)
            got = cf.compute(fn(*places, **named), device="cpu")
            for one, other in zip(flat(got), flat(expected), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("fn", rows(SIGNED), ids=numpy_dispatch.name_of)
def test_our_defaults_are_numpys(fn: Any) -> None:
    theirs = inspect.signature(fn).parameters
    ours = inspect.signature(numpy_dispatch.FUNCTIONS[fn]).parameters
    for key in theirs.keys() & ours.keys():
        default, own = theirs[key].default, ours[key].default
        if default not in (inspect.Parameter.empty, np._NoValue) and own is not inspect.Parameter.empty:
            assert own == default, key


def test_an_argument_lands_where_numpy_puts_it() -> None:
    x = cf.open(X)
    np.testing.assert_array_equal(np.mean(x, 0, None, None, False).compute(device="cpu"), X.mean(0))
    assert np.mean(x, 0, None, None, True).shape == (1, 4)
    assert np.sum(x, 1, "f4", None, True).dtype == np.float32
    assert np.var(x, 0, None, None, 1, True).shape == (1, 4)
    np.testing.assert_array_equal(np.var(x, 0, None, None, 1).compute(device="cpu"), X.var(0, ddof=1))
    np.testing.assert_array_equal(np.max(x, 0, None, True, 99).compute(device="cpu"), X.max(0, None, True, 99))
    np.testing.assert_array_equal(np.median(x, 0, None, True).compute(device="cpu"), np.median(X, 0))
    np.testing.assert_array_equal(np.quantile(x, 0.3, 0, None, True, "lower").compute(device="cpu"),
                                  np.quantile(X, 0.3, 0, None, False, "lower"))  # fmt: skip
    assert np.median(x, 0, overwrite_input=False).shape == (4,)


@pytest.mark.parametrize("weights", [None, [1, 2, 3, 0], np.arange(12).reshape(3, 4) + 1.5])
@pytest.mark.parametrize("keepdims", [False, True])
def test_average_with_the_sum_of_weights(weights: Any, keepdims: bool) -> None:
    w = None if weights is None else np.asarray(weights)
    axis = 1 if w is None or w.ndim == 1 else (0, 1)
    expected = np.average(X, axis, w, True, keepdims=keepdims)
    got = cf.compute(np.average(cf.open(X), axis, w, True, keepdims=keepdims), device="cpu")
    for one, other in zip(got, expected, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other)


def test_diff_takes_what_comes_before_and_after() -> None:
    for given in ({"prepend": 0}, {"append": X[:, :2]}, {"prepend": X[:, :1], "append": 7.5, "n": 2}):
        got = np.diff(cf.open(X), **given).compute(device="cpu")  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, np.diff(X, **given))  # type: ignore[arg-type]


def test_joins_take_numpys_arguments() -> None:
    x = cf.open(X)
    for fn in (np.concatenate, np.stack, np.hstack, np.vstack):
        got = fn([x, x], dtype="i2", casting="unsafe")
        np.testing.assert_array_equal(got.compute(device="cpu"), fn([X, X], dtype="i2", casting="unsafe"))
        assert got.dtype == np.int16
    np.testing.assert_array_equal(np.concatenate([x, X[0]], axis=None).compute(device="cpu"),
                                  np.concatenate([X, X[0]], axis=None))  # fmt: skip
    with pytest.raises(TypeError, match="same_kind"):
        np.concatenate([x, x], dtype="i2")


def places(fn: Any) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, p in inspect.signature(fn).parameters.items() if p.kind in kinds]


OTHER_PLACES = {
    "copy": "the output, as of a copy from store to store",
    "einsum": "text first",
    "gradient": "any number of distances",
    "put": "an index of the array, as in brackets",
}


def _takes_arrays(name: str) -> bool:
    return callable(getattr(np, name, None)) and getattr(cf, name).__module__ != creation.__name__


@pytest.mark.parametrize("name", list(filter(_takes_arrays, cf.__all__)))
def test_by_position_eager_functions_take_what_numpys_do_or_refuse(name: str) -> None:
    if name in OTHER_PLACES:
        return
    ours, theirs = places(getattr(cf, name)), places(getattr(np, name))
    until = theirs.index("out") if "out" in theirs else len(theirs)  # from there on NumPy takes None, or an array
    arrays = 2 if theirs[:2] == ["x1", "x2"] else 1  # have names of their own
    assert ours[arrays:until] == theirs[arrays : min(until, len(ours))]
    with pytest.raises(ArgumentTypeError, match="by position it takes"):
        getattr(cf, name)(*[X] * 20)


def test_equal_with_nan() -> None:
    a = np.where(X > 7, np.nan, X)
    assert np.array_equal(cf.open(a), cf.open(a.copy()), equal_nan=True).compute(device="cpu")
    assert not np.array_equal(cf.open(a), cf.open(a.copy())).compute(device="cpu")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.median(x, overwrite=True),
        lambda x: np.mean(x, budget="1MB"),
        lambda x: np.fft.rfft(x, norn="ortho"),
        lambda x: np.sum(x, 0, None, None, False, 0, True, 1),
        lambda x: np.moveaxis(x, 0),
        lambda x: np.pad(x, 1, "constant", mode="edge"),
    ],
)
def test_what_numpy_does_not_take_is_refused_at_once(call: Any) -> None:
    for x in (X, cf.open(X)):
        with pytest.raises(TypeError):
            call(x)


def test_what_numpys_own_check_lets_pass_is_refused_too() -> None:
    with pytest.raises(ArgumentTypeError, match=r"np\.mean: too many positional arguments. It takes \(a, axis=None"):
        numpy_dispatch.function(np.mean, (cf.open(X), 0, None, None, False, True), {})


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda x: np.cov(x, dtype="f4"), "dtype"),
    ],
)
def test_what_chunkflow_does_not_take_is_named_at_once(call: Any, names: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"np\.\w+ of an expression takes no {names}"):
        call(cf.open(X))


def test_what_does_not_change_the_values_is_taken() -> None:
    x = cf.open(X)
    np.testing.assert_array_equal(np.median(x, 0, None, True).compute(device="cpu"), np.median(X, 0))
    np.testing.assert_array_equal(np.einsum("ij->j", x, optimize=True).compute(device="cpu"), X.sum(0))
    np.testing.assert_array_equal(np.broadcast_to(x, (2, 3, 4), subok=True).compute(device="cpu"), [X, X])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: np.array_split(x, 0), lambda x: np.array_split(x, -1),
        lambda x: np.vsplit(x[0], 2), lambda x: np.dsplit(x, 2), lambda x: np.fliplr(x[0]), lambda x: np.rot90(x[0]),
        lambda x: np.take(x, 0, axis=7), lambda x: np.unstack(x, axis=5), lambda x: np.size(x, 5),
        lambda x: np.expand_dims(x, None), lambda x: np.flip(x, 4), lambda x: np.concatenate([x, x], 3),
        lambda x: np.moveaxis(x, 0, 5), lambda x: np.sum(x, axis=2), lambda x: np.cumsum(x, axis=-3),
    ],
)  # fmt: skip
def test_what_numpy_refuses_is_refused(call: Any) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)) as theirs:
        call(X)
    with pytest.raises(theirs.type):
        call(cf.open(X))


def test_text_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedError, match="numbers"):
        np.zeros_like(cf.open(X), dtype=str)


def test_inner_of_a_number() -> None:
    np.testing.assert_array_equal(np.inner(cf.open(X), 2.0).compute(device="cpu"), np.inner(X, 2.0))
    np.testing.assert_array_equal(np.size(cf.open(X), 1), 4)

"""NumPy's functions of expressions at their edges: no elements, other dtypes, axes of length 1, indices that repeat."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from support.devices import Place, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError

X = np.arange(27.0).reshape(3, 3, 3)
Z = np.arange(60.0).reshape(3, 4, 5)

MATRICES = np.eye(2) * np.array([1.0, 2, 3])[:, None, None]

SINGULAR = np.array([np.ones((2, 2)), np.eye(2) + 1, [[np.nan, 1], [1, 2]], np.zeros((2, 2))])

PLANAR = [(2, 3), (3, 2), (2, 2)] if np.lib.NumpyVersion(np.__version__) < "2.5.0" else []
"""Lengths of vectors of which NumPy has a cross product: from 2.5 on those of 3 alone."""

CALLS: list[Callable[[Any], Any]] = [
    *(lambda o, s=s: np.einsum(s, o(X)) for s in (
        "aaa...->a...", "aaa...", "...aaa->...a", "a...aa->a...", "aaa->a", "aaa", "aba->ab", "a b a")),
    lambda o: np.resize(o(np.arange(7.0, 12).astype(">f8")), ()),
    lambda o: o(np.arange(7.0, 12))[:1].reshape(()),
    # Arrays of places: those that lie on axes of length 1, and those that an ellipsis without an axis parts.
    lambda o: (o(np.ones((1, 1, 4))) * 2)[[0, 0, 0], [0, 0, 0]],
    lambda o: o(Z)[:, [0, 1], ..., [0, 1]],
    lambda o: o(Z)[[0, 1], [1, 2], ...],
    lambda o: o(Z[..., None] * np.ones(2))[:, [0], [0], ..., -1],
    lambda o: (o(Z) + 1)[0, ..., [3, 1], [0, 1]],
    *(lambda o, mode=mode: np.pad(o(np.array(3)), 2, mode) for mode in (
        "constant", "edge", "symmetric", "reflect", "wrap", "mean", "linear_ramp")),
    *(lambda o, s=s, t=t: np.cross(o(X[..., :s]), o(X[0, :, -t:] ** 2)) for s, t in PLANAR),
    # Lists of numbers beside an expression.
    *(lambda o, fn=fn: fn(o(MATRICES[1]), [[1.0, 2], [3, 4]]) for fn in (
        operator.matmul, np.matmul, np.dot, np.inner, np.vecdot, np.cov, np.linalg.matmul, np.linalg.vecdot)),
    lambda o: [[1, 2], (3, 4)] @ o(MATRICES[2]),
    lambda o: np.tensordot(o(MATRICES[1]), [[1, 2], [3, 4]], 1),
    lambda o: np.corrcoef(o(MATRICES[1]) + X[0, :2, :2], y=[[1, 2], [3, 7]]),
    lambda o: np.einsum("ij,jk", o(MATRICES[1]), [[1, 2], [3, 4]]),
    lambda o: np.einsum(o(MATRICES[1]), [0, 1], [[1, 2], [3, 4]], [1, 2]),
    # Nothing to reduce.
    lambda o: np.bitwise_xor.reduce(o(np.zeros((2, 0), "i8")), axis=1, keepdims=True),
    lambda o: np.gcd.reduce(o(np.zeros((0, 3), "i8"))),
    lambda o: np.bitwise_xor.reduce(o(np.zeros(0, "i8"))),
    lambda o: np.fmax.reduce(o(np.zeros((0, 3))), initial=2.0),
    # What is left out of a reduction, and reductions of one element.
    lambda o: np.bitwise_xor.reduce(o(np.arange(1, 7)), initial=5, where=np.arange(6) % 2 == 0),
    lambda o: np.bitwise_and.reduce(o(np.array([7, 3], "u1")), initial=6, where=np.array([True, False])),
    lambda o: np.gcd.reduce(o(np.array([-3]))),
    lambda o: np.gcd.reduce(o(np.array([-3, 4])), axis=()),
    lambda o: np.hypot.reduce(o(np.array([[-3.0], [4.0]])), axis=1),
    # Methods of ufuncs.
    *(lambda o, fn=fn, axis=axis: fn.accumulate(o(Z[:, 1:]), axis) for axis in (0, 2) for fn in (
        np.subtract, np.hypot, np.logaddexp, np.fmax)),
    *(lambda o, how=how: np.subtract.reduce(o(Z), **how) for how in (
        {}, {"axis": -1}, {"keepdims": True}, {"axis": 1, "initial": 5}, {"axis": ()}, {"axis": 1, "dtype": "f4"},
        {"initial": 2, "where": Z > 3})),
    lambda o: np.subtract.reduce(o(np.array([3, 5, 9], "u1"))),
    lambda o: np.subtract.reduce(o(np.zeros((0, 3), "i2")), initial=4),
    lambda o: np.subtract.accumulate(o(np.array([3, 5, 9], "u1"))),
    lambda o: np.lcm.accumulate(o(np.array([4, 6, 10]))),
    # Dtypes.
    lambda o: np.fmax.reduce(o(np.arange(3)), axis=(), dtype="f4"),
    lambda o: np.bitwise_and.reduce(o(np.array([3, 1], "u1")), where=np.array([True, False])),
    lambda o: np.logaddexp.reduce(o(Z), axis=2, initial=1.0),
    lambda o: np.lcm.reduce(o(Z.astype("i8") % 5 + 1), axis=0, keepdims=True),
    lambda o: np.linalg.matrix_power(o(np.array([[1, 1], [1, 0]])), 90),
    lambda o: np.linalg.vector_norm(o(np.arange(3)), axis=()),
    lambda o: np.unwrap(o(np.array([1, 4, 9, 2], "i2")), period=5),
    lambda o: o(np.array([True, False])).conj(),
    lambda o: np.pad(o(np.array([True, False, True])), 1, "reflect", reflect_type="odd"),
    lambda o: np.std(o(np.arange(3.0)), dtype="f4", mean=1.0),
    lambda o: np.nanvar(o(np.arange(3.0)), ddof=5, mean=1.0),
    lambda o: np.var(o(np.arange(3.0)), ddof=5, mean=1.0),
    lambda o: np.repeat(o(np.arange(3)), [True, False, True]),
    lambda o: np.piecewise(o(np.zeros((2, 2))), [False, True], [5]),
    lambda o: np.piecewise(o(np.zeros(4, "i1")), [o(np.arange(4)) < 2], [np.int64(44), 1]),
    # Infinities that nothing is taken from or multiplied by.
    lambda o: np.unwrap(o(np.array([[-np.inf, 1, 2], [8, 1, 9]])), axis=0),
    lambda o: np.vander(o(np.array([1 + 1j, complex(-np.inf, 2)])), 3, increasing=True),
    # Matrices that are computed first have an inverse, though what stands for them in a trial has none.
    lambda o: np.linalg.inv(o(MATRICES) @ o(MATRICES)),
    lambda o: np.linalg.inv(o(MATRICES).sum(axis=0)),
    lambda o: np.linalg.cholesky(o(MATRICES).sum(axis=0)),
    lambda o: np.linalg.solve(o(MATRICES).sum(axis=0), np.ones(2)),
    lambda o: np.linalg.inv(np.linalg.inv(o(MATRICES).cumsum(axis=0))),
    lambda o: np.linalg.matrix_power(o(MATRICES).sum(axis=0), -2),
    lambda o: np.linalg.cond(o(MATRICES).sum(axis=0), 1),
    # Matrices without an inverse among others, and with NaN.
    *(lambda o, p=p: np.linalg.cond(o(SINGULAR), p) for p in (1, -1, np.inf, -np.inf, "fro")),
    lambda o: np.linalg.cond(o(SINGULAR[0]), 1),
    lambda o: np.linalg.cond(o(SINGULAR.astype("c16")), "fro"),
    # Windows of no elements.
    *(lambda o, w=w, axis=axis: sliding_window_view(o(Z), w, axis) for w, axis in (
        (0, 0), ((0, 2), (0, 1)), ((0, 0), (1, 1)))),
    lambda o: sliding_window_view(o(Z) + 1, 0, 1) * 2.0,
    lambda o: sliding_window_view(o(Z), (0, 2), (0, 1)).sum(axis=(-1, -2)),
    # Methods.
    lambda o: o(X).diagonal(1, 0, 2),
    lambda o: o(X).trace(),
    lambda o: o(X).take([[1, 0]], axis=1),
    lambda o: o(X % 2).nonzero()[1],
    lambda o: np.astype(o(X % 2), int).choose([7.0, 8]),
    lambda o: o(np.arange(4.0)).searchsorted([2.5, 1]),
    # Powers.
    lambda o: np.add(o(X), 1, where=True),
    lambda o: o(np.arange(3)) ** np.array([0, 1, 2]),
    lambda o: o(np.arange(3, dtype="u8")) ** np.array([0, 1, 2]),
    lambda o: o(np.arange(1, 3.0)) ** np.array([-1, 2]),
    lambda o: o(np.zeros((0, 2), int)) ** np.array([-1, 2]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Arrays of 2-dimensional vectors:DeprecationWarning")
@on_cpu_and_gpu
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_as_numpy(place: Place, number: int) -> None:
    expected = np.asarray(CALLS[number](np.asarray))
    lazy = CALLS[number](cf.open)
    assert (lazy.shape, lazy.dtype) == (expected.shape, expected.dtype.newbyteorder("="))
    found = lazy.compute(device=place.device(), budget=place.budget(200_000))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@on_cpu_and_gpu
@pytest.mark.parametrize("p", [2, -2])
def test_condition_of_matrices_without_an_inverse(place: Place, p: int) -> None:
    """The least singular value is zero to rounding, which each library does its own way."""
    expected = np.linalg.cond(SINGULAR[[0, 1, 3]], p)
    found = np.linalg.cond(cf.open(SINGULAR[[0, 1, 3]]), p).compute(device=place.device())
    if p == 2:
        found, expected = 1 / found, 1 / expected
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_one_element_of_a_store_without_axes(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "n.zarr", shape=(1, 1), chunks=(1, 1), dtype="f8")[:] = 5
    same(cf.open(tmp_path / "n.zarr").reshape(()).compute(device="cpu"), np.float64(5))


MASKED = np.ma.array([1, 2, 3], mask=[0, 1, 0], fill_value=7)

IN_PLACE: list[tuple[Any, str, Any]] = [
    *((np.arange(3.0), sign, y) for sign in ("+", "-", "*", "/", "//", "%", "**") for y in (2, 2.5, np.arange(3.0))),
    *((np.arange(3, dtype="i1"), sign, np.arange(3)) for sign in ("+", "//", "&", "|", "^", "<<", ">>")),
    *((np.arange(3), sign, 1.5) for sign in ("+", "/", "//", "**")),
    *((np.ones(3, "f4"), "+", y) for y in (np.ones(3), 1j, np.ones((2, 3)), np.ones((1, 3)))),
    *((np.ones(3, "u1"), "+", y) for y in (np.arange(3), -1, np.arange(3, dtype="i1"))),
    *((np.ones((2, 2)), "@", y) for y in (np.eye(2), np.ones(2), np.ones((2, 3)))),
    *((np.ones(3, "?"), sign, True) for sign in "+-&"),
    *((MASKED, sign, 2) for sign in ("+", "/", "//", "%", "|")), (MASKED, "*", 1.5),
    (MASKED, "+", np.ones((2, 3), int)),
    *((np.ones(3, "M8[D]"), sign, y) for sign in "+-" for y in (np.timedelta64(30, "h"), np.datetime64("2000"))),
    *((np.ones(3, "m8[s]"), sign, y) for sign in ("*", "/", "//", "%") for y in (2.5, np.timedelta64(3, "s"))),
]  # fmt: skip

REFUSALS = {ValueError: ArgumentError, TypeError: ArgumentTypeError, OverflowError: ArgumentError}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("number", range(len(IN_PLACE)))
def test_operators_in_place_keep_shape_and_dtype(number: int) -> None:
    x, sign, y = IN_PLACE[number]
    found, expected = {"x": cf.open(x), "y": y}, {"x": x.copy(), "y": y}
    try:
        exec(f"x {sign}= y", expected)
    except (TypeError, ValueError, OverflowError) as error:
        kind = next(ours for theirs, ours in REFUSALS.items() if isinstance(error, theirs))
        with pytest.raises(kind):
            exec(f"x {sign}= y", found)
        return
    exec(f"x {sign}= y", found)
    np.testing.assert_array_equal(np.ma.getmaskarray(got := found["x"].compute(device="cpu")), np.ma.getmaskarray(x))
    same(np.ma.getdata(np.ma.filled(got)), np.ma.getdata(np.ma.filled(expected["x"])))


SHAPE = (3, 4, 5, 2)


@given(st.data())
@settings(max_examples=examples(20), deadline=None)
def test_points_of_what_is_broadcast(data: st.DataObject) -> None:
    """Only the elements at the points are computed, of each operand those that it has."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    parts = [rng.normal(size=SHAPE)]
    for _ in range(2):
        ndim = data.draw(st.integers(1, 4))
        parts.append(rng.normal(size=[n if data.draw(st.booleans()) else 1 for n in SHAPE[4 - ndim :]]))
    number = data.draw(st.integers(1, 5))
    axes = data.draw(st.sets(st.integers(0, 3), min_size=2))
    index = tuple(
        rng.integers(-n, n, number) if axis in axes else slice(data.draw(st.integers(0, 1)), None)
        for axis, n in enumerate(SHAPE)
    )
    expected = np.sqrt(abs(parts[0] * parts[1])) + parts[2]
    lazy = np.sqrt(abs(cf.open(parts[0]) * parts[1])) + cf.open(parts[2])
    same(lazy[index].compute(budget="64kB", device="cpu"), expected[index])


def test_an_element_at_a_place() -> None:
    x = np.arange(12).reshape(3, 4).astype("m8[h]")
    for place in ((5,), (-1,), (1, 2), (-1, 3), ((2, 1),), ()):
        y = x if place else x[:1, :1]
        assert cf.open(y).item(*place) == y.item(*place)
        assert cf.open(y.view("i8")).item(*place) == y.view("i8").item(*place)


def test_matrices_without_an_inverse_are_found_in_the_run() -> None:
    for x in (cf.open(np.ones((3, 2, 2))), cf.open(np.ones((3, 2, 2))).cumsum(axis=0)):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            np.linalg.inv(x).compute(device="cpu")


def test_negative_powers_that_are_computed_are_found_in_the_run() -> None:
    """As NumPy's error, of which a note names the block; those in memory are refused when they are asked for."""
    x, powers = cf.open(np.full((3, 200_000), 2)), cf.open(np.r_[np.ones(199_999, int), -1])
    with pytest.raises(ValueError, match="Integers to negative integer powers") as caught:
        (x ** (powers * 1)).compute(device="cpu", budget="1MB")
    (note,) = [note for note in caught.value.__notes__ if "in block" in note]
    assert re.search(r"region \[\d+:\d+, \d+:200000\]", note)
    assert ((x * 1.0) ** (powers * 1)).compute(device="cpu").min() == 0.5


def test_points_of_an_expression_take_one_pass() -> None:
    x = cf.open(np.ones((1000, 1000)))
    plan = cf.explain((x * 2 + 1)[np.arange(10), np.arange(10)], device="cpu")
    assert len(plan) == 1
    assert plan.bytes_in == 80


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: np.einsum("aab", x[:2]), "lengths"),
        (lambda x: np.einsum(x, [0.5, 1, 2]), "ints"),
        (lambda x: np.einsum("abc", x, dtype="i4"), "not cast"),
        (lambda x: np.einsum("abc", x, colour=3), "colour"),
        (lambda x: np.diagonal(x, 0, 1, 1), "two different axes"),
        (lambda x: x.astype(int) ** np.array([1, -1, 2]), "to the power -1"),
        (lambda x: 2 ** cf.open(np.array([1, -3])), "to the power -3"),
        (lambda x: np.power(x.astype(int), cf.open(np.array(-1))), "to the power -1"),
        (lambda x: np.add(x, 1, where=x > 1), r"np\.where\(mask, np\.add\(\.\.\.\), other\)"),
        (lambda x: np.add(x, 1, where=x > 1, out=X.copy()), r"np\.where\(mask, np\.add\(\.\.\.\), out\)"),
        (lambda x: np.diag(x), "3 dimensions"),
        (lambda x: np.piecewise(x, [x > 1], [1, 2, 3]), "1 conditions and 3 functions"),
        (lambda x: np.piecewise(x, [[True, False]], [1]), "does not fit"),
        (lambda x: np.piecewise(x, [x > 1], [np.ones(3)]), "a function is an array"),
        (lambda x: np.where(x > 1, x), "one branch"),
        (lambda x: np.piecewise(x, [x > 1], 7), "funclist=7 is no list"),
        (lambda x: np.lexsort((x,), axis=None), "axis=None of keys of shape"),
        (lambda x: np.lexsort((x.sum(),)), "give an axis that they have"),
        (lambda x: np.lexsort((x, x.T[:1])), "all of one shape"),
        (lambda x: np.piecewise(x.astype("i1"), [x > 1], [300, np.negative]), "300 is no number that int8 holds"),
        (lambda x: np.piecewise(x.astype("i1"), [np.ones(x.shape, "?")], [np.nan]), "nan is no number that int8"),
        (lambda x: x[cf.open(np.array(True))], "one bool"),
        (lambda x: range(cf.open(np.array([2]))), "it has dimensions"),
        (lambda x: np.polyfit([1, 2, 3], x, 1), "one or two dimensions"),
        (lambda x: np.polyfit(x[0, 0], x[0], 1), "in memory"),
        (lambda x: np.polyfit([1, 2, 3], x[0], 1, w=[1, 2]), "shape of x"),
        (lambda x: np.apply_along_axis(np.sum, 0, x[:, :0]), "no line"),
        (lambda x: np.resize(x, (-1, 2)), "negative"),
        (lambda x: np.packbits(x), "integers or bools"),
        (lambda x: np.unpackbits(x), "uint8"),
        (lambda x: np.unpackbits(np.astype(x, np.uint8), 0, count=-99), "no more than 24"),
        (lambda x: np.packbits(x > 0, bitorder="x"), "'big' or 'little'"),
        (lambda x: np.pad(x, 1, "mean", stat_length=0), "at least 1"),
        (lambda x: np.pad(x, 1, "mean", end_values=0), "no meaning"),
        (lambda x: np.pad(x, [1, 2, 3], "mean"), "one for each of 3 axes"),
        (lambda x: np.pad(x, 1.5, "mean"), "of ints"),
        (lambda x: np.pad(x, "x"), "of ints"),
        (lambda x: np.pad(x.sum(), 1.5), "of ints"),
        (lambda x: np.pad(x.sum(), -1), "negative"),
        (lambda x: np.pad(x.sum(), [1, 2, 3]), "one for each of 0 axes"),
        (lambda x: np.pad(x.sum(), {0: 1}), "out of bounds"),
        (lambda x: np.pad(x.sum(), 1, "bogus"), "mode='bogus' is unknown"),
        (lambda x: np.pad(x.sum(), 1, "mean", stat_length=0), "at least 1"),
        (lambda x: np.pad(x.sum(), 1, "reflect", reflect_type="x"), "'even' or 'odd'"),
        (lambda x: np.pad(x.sum(), 1, constant_values=[1, 2, 3]), "one for each of 0 axes"),
        (lambda x: np.pad(x.sum(), 1, "linear_ramp", end_values=[1, 2, 3]), "one for each of 0 axes"),
        (lambda x: np.pad(x, -1, "mean"), "negative"),
        (lambda x: np.pad(x[:0], 1, "mean"), "no element"),
        (lambda x: np.pad(x[:0], 1, "linear_ramp"), "no element"),
        (lambda x: np.pad(x, 1, "reflect", reflect_type="x"), "'even' or 'odd'"),
        (lambda x: np.linalg.inv(x[:2, :2]), "must be square"),
        (lambda x: np.linalg.solve(x[0], np.float64(3)), "np.linalg.solve of shapes"),
        (lambda x: np.linalg.multi_dot([x[0]]), "at least two"),
        (lambda x: np.linalg.multi_dot([x, x]), "matrices"),
        (lambda x: np.linalg.matrix_rank(x, 1.0, rtol=1.0), "not both"),
        (lambda x: np.fmax.reduce(x[:0]), "give initial="),
        (lambda x: np.fmax.reduce(x, where=x > 1), "give initial="),
        (lambda x: np.cross(np.resize(x, (3, 4)), x[0, 0]), "vectors of 4 elements along axis -1"),
        (lambda x: np.linalg.cross(x[..., :2], x), "those of 3 have"),
        (lambda x: np.subtract.reduce(x[:0]), "give initial="),
        (lambda x: np.subtract.reduce(x, axis=None), "axis=None are 3 axes"),
        (lambda x: np.gcd.reduce(x, dtype="f8"), "np.gcd.reduce"),
        (lambda x: np.add.reduceat(x, [0, 2]), "np.add.reduceat of an expression.*groupby_reduce"),
        (lambda x: np.add.at(x, 0, 2), "np.add.at of an expression.*chunkflow.put"),
        (lambda x: np.power.reduce(x), "np.power.reduce of an expression is not supported: reduce of these is: np.add"),
        (lambda x: np.std(x, mean=1.0, ddof=1, correction=2), "give one of them"),
        (lambda x: np.trim_zeros(x, "x"), "'f' for the front"),
        (lambda x: np.trim_zeros(x[0, 0, 0]), "no end"),
        (lambda x: np.unique(x, axis=0), r"axis=0 asks for distinct slices.*x\.compute\(\)"),
        (lambda x: np.fft.fft2(x, s=(None, 4)), r"s=\(None, 4\) must be of ints, of which -1"),
        (lambda x: x.item(27), r"item\(27\).*27 elements"),
        (lambda x: x.item(1, 9, 0), "out of bounds"),
        (lambda x: x.item(1, 2), "each of 3 axes"),
        (lambda x: x.item(1.5), "integer"),
        (lambda x: np.save(open("/dev/null", "wb"), x), "to a path"),  # noqa: SIM115
        (lambda x: np.rollaxis(x, 0, 9), "start=9"),
        (lambda x: np.repeat(x, [1, 2], 0), "2 numbers of repeats for 3 places"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_cannot_be_is_refused_when_it_is_asked_for(call: Callable[[Any], Any], match: str) -> None:
    with pytest.raises(cf.ChunkflowError, match=match):
        call(cf.open(X))


def test_polyfit_says_what_does_not_suit_it() -> None:
    x = cf.open(np.ones((4, 2, 3)))
    with pytest.raises(ArgumentError, match=r"one or two dimensions.*y.reshape\(4, -1\).*to \(2, 2, 3\)"):
        np.polyfit(np.arange(4), x, 1)
    with pytest.raises(ArgumentError, match="deg=-1 must not be negative"):
        np.polyfit(np.arange(4), x[:, 0, 0], -1)
    with pytest.raises(ArgumentError, match=r"x, of shape \(3,\), must have one dimension, as long as y \(4,\)"):
        np.polyfit(np.arange(3), x[:, 0, 0], 1)
    slope = np.polyfit(np.arange(4), x.reshape(4, -1), 1).reshape(2, 2, 3)
    np.testing.assert_allclose(slope.compute(device="cpu")[1], 1)


@pytest.mark.parametrize("ufunc", [np.add, np.bitwise_and, np.bitwise_or, np.gcd, np.fmax, np.subtract, np.maximum])
@pytest.mark.parametrize("shape", [(3, 6), (5,)])
def test_a_mask_of_another_shape_is_refused_by_each_reduce(ufunc: np.ufunc, shape: tuple[int, ...]) -> None:
    x, mask = cf.open(np.arange(1, 7, dtype="u1")), np.ones(shape, bool)
    with pytest.raises(ArgumentError, match="where= of shape"):
        ufunc.reduce(x, where=mask, initial=1)
    with pytest.raises(ArgumentTypeError, match="a mask is of bools"):
        ufunc.reduce(x, where=np.ones(6, "i4"), initial=1)


@pytest.mark.parametrize("ufunc", [np.bitwise_or, np.gcd, np.lcm, np.fmax])
@pytest.mark.parametrize("mask", [[True, False] * 3, True, False, np.True_])
def test_masks_of_each_reduce_may_be_lists_and_bools(ufunc: np.ufunc, mask: Any) -> None:
    x = np.arange(1, 7, dtype="u1")
    expected = ufunc.reduce(x, where=np.asarray(mask), initial=2)
    assert np.asarray(ufunc.reduce(cf.open(x), where=mask, initial=2)) == expected


@pytest.mark.parametrize("dtype", ["f4", "i2", "m8[s]"])
@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.subtract, np.maximum, np.gcd])
@pytest.mark.parametrize("axis", [None, (0, 1)])
def test_no_accumulate_runs_along_several_axes(ufunc: np.ufunc, dtype: str, axis: Any) -> None:
    if dtype != "i2" and ufunc is np.gcd:
        pytest.skip("gcd is of integers")
    if dtype == "m8[s]" and ufunc not in (np.add, np.maximum):
        pytest.skip("times have no such accumulate")
    x = cf.open(np.ones((3, 4)).astype(dtype))
    with pytest.raises(ArgumentTypeError, match="axis must be an int"):
        ufunc.accumulate(x, axis=axis)


def test_objects_are_refused_before_anything_is_computed() -> None:
    x = cf.open(np.arange(6, dtype="u1"))
    for ufunc in (np.divide, np.floor_divide, np.add):
        with pytest.raises(ArgumentTypeError, match="dtype object"):
            ufunc(x, cf.open(np.zeros(6, "u1")), dtype=object)

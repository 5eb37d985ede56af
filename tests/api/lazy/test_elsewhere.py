"""Words of other libraries: what is not here says which line does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ArgumentTypeError, LinAlgError, PlaceError, ResultError

X = cf.open(np.arange(12.0).reshape(3, 4))
CPU = {"device": "cpu"}


@pytest.mark.parametrize(
    "name", ["clip", "tile", "exp", "sqrt", "maximum", "insert", "diag", "isin", "apply_along_axis"]
)
def test_functions_of_numpys_are_named(name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"chunkflow has no {name}: np\.{name}\(chunkflow\.open\(x\), \.\.\.\) does it$"
    ):
        getattr(cf, name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topk", r"chunkflow\.topk does it"),
        ("coarsen", r"chunkflow\.coarsen does it"),
        ("isin", r"np\.isin\(x, \.\.\.\) does it"),
        ("abs", r"np\.abs\(x, \.\.\.\) does it"),
        ("fillna", r"np\.where\(np\.isnan\(x\), value, x\)"),
        ("cuda", r"device='cuda'"),
        ("to_delayed", r"x\.to_dask\(\)"),
        ("meen", "did you mean mean"),
    ],
)
def test_attributes_of_other_arrays_say_what_does_it(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(X, name)
    assert not hasattr(X, name)


def test_names_that_programs_ask_for_have_no_advice() -> None:
    for name in ("_repr_png_", "__cuda_array_interface__", "nosuch"):
        with pytest.raises(AttributeError, match=rf"'Array' object has no attribute '{name}'$"):
            getattr(X, name)


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: np.linalg.inv(X), np.linalg.LinAlgError, "3 rows and 4 columns: they must be square"),
        (lambda: np.linalg.det(X[0]), np.linalg.LinAlgError, r"shape \(4,\) is no matrix"),
        (lambda: np.insert(X, 50, 1, axis=0), IndexError, "out of bounds"),
        (lambda: np.delete(X, [50], axis=1), IndexError, "out of bounds"),
    ],
)
def test_errors_are_of_the_classes_that_numpys_users_catch(call: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        call()
    assert isinstance(caught.value, LinAlgError | PlaceError)


# -- Functions of the user's ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("func", [np.sum, None, lambda block: block])
def test_groups_are_reduced_by_names(func: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"is no name, as 'sum' .*chunkflow\.reduction"):
        cf.groupby_reduce(np.arange(4.0), np.array([0, 1, 0, 1]), func=func, **CPU)


def test_what_combine_gives_is_what_chunk_gives() -> None:
    def chunk(block: Any, axis: Any, keepdims: bool) -> dict[str, Any]:
        return {"n": np.ones_like(block).sum(axis=axis, keepdims=True), "s": block.sum(axis=axis, keepdims=keepdims)}

    def aggregate(parts: dict[str, Any], axis: Any, keepdims: bool) -> Any:
        return parts["s"].sum(axis=axis, keepdims=keepdims) / parts["n"].sum(axis=axis, keepdims=keepdims)

    def combine(parts: dict[str, Any], axis: Any, keepdims: bool) -> Any:
        return {name: part.sum(axis=axis, keepdims=keepdims) for name, part in parts.items()}

    y = np.random.default_rng(0).standard_normal((400, 90))
    how: dict[str, Any] = {"axis": 0, "budget": "60kB", **CPU}
    with pytest.raises(ResultError, match=r"combine gave an array, and chunk a dict of 'n', 's'.*give combine="):
        cf.reduction(y, chunk, aggregate, **how)
    np.testing.assert_allclose(cf.reduction(y, chunk, aggregate, combine=combine, **how), y.mean(axis=0))


def test_how_the_functions_of_a_reduction_are_called_is_said() -> None:
    with pytest.raises(TypeError) as caught:
        cf.reduction(np.ones((4, 5)), lambda block: block, np.sum, axis=0, **CPU)
    assert any("called as chunk(block, axis=(0,), keepdims=True)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("last", [0.0, 3.0])
def test_the_end_of_an_iterator_is_an_error_of_its_own(last: float) -> None:
    def fn(block: Any) -> Any:
        return next(iter(())) if block[0] == last else block

    with pytest.raises(ResultError, match="fn raised StopIteration") as caught:
        cf.map(fn, np.arange(4.0), chunks=1, **CPU)
    assert "block" in str(caught.value.__notes__)


# -- Numbers and arrays that cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: cf.put(np.arange(5), 2, 2**70),
            r"put: int64, the array's dtype, does not hold 11805916207",
        ),
        (lambda: cf.put(np.arange(5), 2, np.nan), "does not hold nan: convert the array"),
        (lambda: cf.put(np.arange(5), 2, 1j), "does not hold 1j"),
        (lambda: cf.map(lambda block: 3.0, np.ones(3), **CPU), r"numpy\.full_like\(block, value\) is one"),
        (lambda: cf.map(lambda block: block.tolist(), np.ones(3), **CPU), r"numpy\.asarray\(value\) makes one"),
        (lambda: cf.map(lambda block: np.ma.array(block, mask=True), np.ones(3), **CPU), r"return its filled\(value\)"),
        (lambda: cf.map(lambda block: cf.open(block), np.ones(3), **CPU), r"return its compute\(\)"),
        (lambda: cf.sum(np.ones((3, 3)), axis=("time", "y")), r"not \('time', 'y'\); dim= takes names of xarray's"),
        (lambda: cf.sum(np.ones(3), axis=cf.open(np.array(0))), "axis must be an int or ints, not <chunkflow.Array"),
        (
            lambda: cf.map_overlap(np.add, np.ones((3, 4)), np.ones(4), depth={1: 1}, **CPU),
            r"of array 1 .*list in depth=",
        ),
        (lambda: cf.unique(np.ones(3, "c16")), "as x.real and x.imag of complex numbers"),
        (
            lambda: cf.apply_gufunc(np.sin, "(i)->(i)", np.ones(3), output_dtypes="f4"),
            "dtype= says what a function gives",
        ),
        (lambda: X.__delitem__(0), r"np\.delete\(x, places, axis\) is one without them"),
    ],
)
def test_refusals_name_the_value_and_the_way(call: Any, said: str) -> None:
    with pytest.raises(cf.errors.ChunkflowError, match=said):
        call()


@pytest.mark.parametrize("kind", [float, int, complex])
def test_several_elements_are_no_number(kind: type) -> None:
    with pytest.raises(TypeError, match=r"has 12 elements, and a number is one, as x\.item\(place\)"):
        kind(X)
    assert kind(X[1, 2]) == 6


def test_axes_of_no_dimension() -> None:
    assert np.roll(X, np.array(1), np.array(0)).compute(**CPU).tolist() == np.roll(X.compute(**CPU), 1, 0).tolist()


def test_one_span_is_a_number() -> None:
    assert float(cf.open(np.array([1, 2], "m8[ns]")).sum()) == 3.0


def test_sparse_blocks_of_dasks_are_named() -> None:
    da, sparse = pytest.importorskip("dask.array"), pytest.importorskip("scipy.sparse")
    array = da.from_array(np.eye(4), chunks=2).map_blocks(sparse.csr_matrix, dtype="f8", meta=np.empty((0, 0)))
    with pytest.raises(cf.errors.ReadError, match=r"a sparse array for .*block\.toarray\(\)"):
        cf.sum(array, **CPU)

"""Products of arrays with NumPy's names, arguments and results, over arrays of any size."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from chunkflow.api.linalg.gram import product_operation
from chunkflow.api.linalg.subscripts import from_lists, without_repeats
from chunkflow.api.operation import ArraySpec, Declared, Options, Request, RunOptions, bare
from chunkflow.api.rearrange.move import check_order
from chunkflow.api.reductions.request import request, total_of
from chunkflow.api.stencil.windows import Slid, slid, weighted
from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentTypeError
from chunkflow.graph.nodes import Lazy, SourceNode, node_of
from chunkflow.graph.slicing import untransposed
from chunkflow.graph.windows import windows_of
from chunkflow.kernels.linalg import labels
from chunkflow.kernels.linalg.gemm import Precision, allows_tf32
from chunkflow.kernels.linalg.product import ProductLabels, contraction
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of


@product_operation
def matmul(a: Any, b: Any, *, precision: Precision = "highest", **options: Unpack[RunOptions]) -> Request:
    """Matrix product, as ``numpy.matmul``: of vectors, matrices, and stacks of matrices that broadcast.

    A tile of the result stays on the device while panels of `a` and `b` stream past it; or a whole operand stays,
    if that reads less. The blocks are those, of all that fit the budget, that read the fewest bytes: with room
    for M elements two n x n matrices cannot be read less than some ``2 n**3 / sqrt(M)`` elements in all (J. W. Hong
    and H. T. Kung, "I/O complexity: the red-blue pebble game", 1981).

    Parameters
    ----------
    a, b : array_like, str or path
        Sources, as for `chunkflow.map`, of at least one dimension. Integers wrap and booleans combine as NumPy's
        do; half precision is added up in single.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).random((2, 200, 200))
    >>> np.allclose(cf.matmul(a, b, budget="200kB", device="cpu"), a @ b)
    True
    """
    return _product("matmul", labels.matmul, (a, b), options, precision)


@product_operation
def dot(a: Any, b: Any, *, precision: Precision = "highest", **options: Unpack[RunOptions]) -> Request:
    """Dot product, as ``numpy.dot``: over the last axis of `a` and the last but one (or the only one) of `b`.

    Parameters
    ----------
    a, b : array_like, str, path or scalar
        A scalar multiplies.

    Examples
    --------
    >>> float(cf.dot(np.arange(5.0), np.ones(5), device="cpu"))
    10.0
    """
    return _product("dot", labels.dot, (a, b), options, precision)


@product_operation
def vecdot(
    a: Any, b: Any, *, axis: int = -1, precision: Precision = "highest", **options: Unpack[RunOptions]
) -> Request:
    """Dot products of vectors along an axis, as ``numpy.vecdot``: the first ones conjugated.

    Parameters
    ----------
    a, b : array_like, str or path
        Arrays whose other axes broadcast.
    axis : int
        Of both arrays.

    Examples
    --------
    >>> cf.vecdot(np.array([[1j, 2], [3, 4]]), np.ones(2), device="cpu")
    array([2.-1.j, 7.+0.j])
    """
    return _product("vecdot", lambda shapes: labels.vecdot(shapes, axis), (a, b), options, precision, conjugate=0)


@product_operation
def outer(a: Any, b: Any, **options: Unpack[RunOptions]) -> Request:
    """Outer product of two vectors, as ``numpy.outer``.

    Parameters
    ----------
    a, b : array_like, str or path
        Of one dimension. For more, ``tensordot(a, b, axes=0)`` keeps them all.

    Examples
    --------
    >>> cf.outer(np.array([1, 2]), np.array([3, 4]), device="cpu")
    array([[3, 4],
           [6, 8]])
    """
    return _product("outer", labels.outer, (a, b), options)


@product_operation
def tensordot(
    a: Any, b: Any, axes: int | Sequence[Any] = 2, *, precision: Precision = "highest", **options: Unpack[RunOptions]
) -> Request:
    """Contraction over pairs of axes, as ``numpy.tensordot``.

    Parameters
    ----------
    a, b : array_like, str or path
        Sources, as for `chunkflow.map`.
    axes : int or (axes of a, axes of b)
        Axes to sum over, in pairs; an int means the last of `a` and the first of `b`.

    Examples
    --------
    >>> a, b = np.ones((3, 4, 5)), np.ones((4, 3, 2))
    >>> cf.tensordot(a, b, axes=([1, 0], [0, 1]), device="cpu").shape
    (5, 2)
    """
    return _product("tensordot", lambda shapes: labels.tensordot(shapes, axes), (a, b), options, precision)


@product_operation
def einsum(
    subscripts: Any,
    *operands: Any,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
    optimize: Any = False,
    precision: Precision = "highest",
    **options: Unpack[RunOptions],
) -> Request:
    """Sum of products by Einstein's convention, as ``numpy.einsum``.

    All operands are read in a single pass; the blocks of three or more are multiplied from left to right, so put
    first what shrinks most. An index of one operand alone, which the result lacks, is summed over before the product,
    as by NumPy with ``optimize=True``: of infinity that makes ``(2 - 1) * inf``, not ``2 * inf - inf``.

    Parameters
    ----------
    subscripts : str
        Such as ``"ij,jk->ik"``; without ``->`` the letters that appear once are kept, in alphabetical order. An
        ellipsis stands for axes that broadcast. A letter that repeats within one operand goes along its diagonal. In
        place of a text each operand may be followed by the list of its indices, which are ints or Ellipsis; then the
        result's list may come last.
    *operands : array_like, str, path or scalar
        One for each term.
    dtype : dtype, optional
        In which it is multiplied and added up, by default that of NumPy's promotion.
    order : {'K', 'C', 'A', 'F'}
        NumPy's, which changes no value, and here no layout either.
    casting : str
        Which casts to `dtype` are allowed, as of ``numpy.can_cast``.
    optimize : object
        NumPy's, which has no effect: the order of products is as said above.

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> cf.einsum("ij->j", x, device="cpu")
    array([3., 5., 7.])
    >>> np.array_equal(cf.einsum("ki,kj->ij", x, x, device="cpu"), x.T @ x)
    True
    >>> cf.einsum("ii->i", x[:, :2], device="cpu")
    array([0., 4.])
    """
    check_order(order)
    text, arrays = without_repeats(*from_lists((subscripts, *operands)))
    cast = None if dtype is None else Cast(np.dtype(dtype), casting)
    return _product("einsum", lambda shapes: labels.einsum(text, shapes), arrays, options, precision, cast=cast)


class Cast(NamedTuple):
    """A dtype to which the operands of a product are cast, by a rule of NumPy's."""

    dtype: np.dtype
    casting: Any

    def check(self, dtypes: Sequence[np.dtype]) -> None:
        """Refuse operands that are not cast to it."""
        for each in dtypes:
            if not np.can_cast(each, self.dtype, self.casting):
                raise ArgumentTypeError(
                    f"einsum: dtype={str(self.dtype)!r}: {each} is not cast to it by casting={self.casting!r}: give "
                    "another"
                )
            if self.dtype == np.float16 != each:  # the kernel has single precision
                raise ArgumentTypeError(f"einsum: dtype='float16' of {each}: cast the operands with astype before")


def _product(
    name: str,
    translate: labels.Translate,
    arrays: Sequence[Any],
    options: RunOptions,
    precision: Precision = "highest",
    conjugate: int | None = None,
    cast: Cast | None = None,
) -> Request:
    tf32 = allows_tf32(precision)
    if cast is None and (found := _weighted_windows(translate, arrays, conjugate)) is not None:
        which, weights, kind = found
        return weighted(which, weights, kind, Options(**options))
    if conjugate is None and cast is None and (sum_of := _sum_of_products(name, translate, arrays)) is not None:
        factors, axes = sum_of
        dtype = np.result_type(*[spec_of(factor).dtype for factor in factors])
        total = total_of(np.sum, dtype, np._NoValue)
        return request(total, (functools.reduce(operator.mul, factors),), axes, False, where=True, **options)
    pairs = [_untransposed(array) for array in arrays]
    arrays, turned = [array for array, _ in pairs], [axes for _, axes in pairs]

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shapes = [s.shape for s in specs]
        found = _turned(translate, shapes, turned, name)
        dtypes, orders = [s.dtype for s in specs], [s.order for s in specs]
        if cast is not None:
            cast.check(dtypes)
        nest, kernel = contraction(found, shapes, dtypes, orders, name, conjugate, tf32, cast and cast.dtype)
        return Declared(nest, kernel, tuple(range(len(found.result))), tiles=False)

    # Memory is counted buffer by buffer: what a small trial call takes would say nothing of a product's.
    scalars = [np.asarray(a) if isinstance(a, bool | int | float | complex | np.generic) else a for a in arrays]
    chosen = Options(**options, workspace=0)
    return Request(declare, scalars, chosen, lambda result: bare(result, chosen.out))


def _sum_of_products(
    name: str, translate: labels.Translate, arrays: Sequence[Any]
) -> tuple[list[Any], tuple[int, ...]] | None:
    """The factors of a product that is a sum over some axes of one of them, and these axes; None where it is not.

    An expression need not be stored for it, as for products that read an operand several times. It has all labels, and
    the others go along some of its axes.
    """
    computed = [isinstance(array, Lazy) and not isinstance(node_of(array), SourceNode) for array in arrays]
    if not any(computed) or not all(isinstance(array, Lazy | np.ndarray) for array in arrays):
        return None
    specs = [spec_of(array) for array in arrays]
    if np.result_type(*[spec.dtype for spec in specs]).kind not in "iufc":
        return None
    shapes = [spec.shape for spec in specs]
    found = translate(shapes)
    extents = found.extents(shapes, name)
    whole = next((i for i, own in enumerate(found.operands) if set(own) == set(extents)), None)
    if whole is None or shapes[whole] != tuple([extents[label] for label in found.operands[whole]]):
        return None
    own = found.operands[whole]
    axes = tuple([axis for axis, label in enumerate(own) if label not in found.result])
    if not axes or found.result != tuple([label for label in own if label in found.result]):
        return None
    factors = []
    for array, term in zip(arrays, found.operands, strict=True):
        order = sorted(range(len(term)), key=lambda a, term=term: own.index(term[a]))  # type: ignore[misc]
        aligned = array if order == [*range(len(term))] else array.transpose(order)
        factors.append(aligned[tuple([slice(None) if label in term else None for label in own])])
    return factors, axes


def _untransposed(array: Any) -> tuple[Any, Shape | None]:
    """An operand without its transpositions, and its axes in their order; None where there is none.

    They would be stored, though a product reads its operands in any order.
    """
    if not isinstance(array, Lazy):
        return array, None
    node, axes = untransposed(node_of(array))
    return (array, None) if node is node_of(array) else (type(array)(node), axes)


def _turned(
    translate: labels.Translate, shapes: Sequence[Shape], turned: Sequence[Shape | None], name: str
) -> ProductLabels:
    """The labels of operands of which some are transposed first."""
    if not any(turned):
        return translate(shapes)
    seen = [s if axes is None else tuple([s[a] for a in axes]) for s, axes in zip(shapes, turned, strict=True)]
    found = translate(seen)
    found.extents(seen, name)  # whose errors name the axes that the caller sees
    operands = [
        own if axes is None else tuple([own[axes.index(a)] for a in range(len(axes))])
        for own, axes in zip(found.operands, turned, strict=True)
    ]
    return replace(found, operands=tuple(operands))


def _weighted_windows(
    translate: labels.Translate, arrays: Sequence[Any], conjugate: int | None
) -> tuple[Slid, np.ndarray, type[Any]] | None:
    """Windows that a product sums up by weights in memory, along just their own axes; None where it does not.

    With them are the weights, and the class of the expression.
    """
    number = next((i for i, array in enumerate(arrays) if windows_of(array) is not None), None)
    if number is None or len(arrays) != 2 or not isinstance(given := arrays[1 - number], np.ndarray | list | tuple):
        return None
    x, weights = arrays[number], elements_of(given)
    if (which := slid(x, windows_of(x)[1].dims)) is None or weights.dtype.kind not in "biufc":  # type: ignore[index]
        return None
    found = translate([x.shape, weights.shape] if number == 0 else [weights.shape, x.shape])
    own, others = found.operands[number], found.operands[1 - number]
    lines = own[which.windows.ndim :]
    if found.result != own[: which.windows.ndim] or sorted(others) != sorted(lines):
        return None
    if conjugate is not None:
        if conjugate == number and x.dtype.kind == "c":
            return None
        weights = weights.conj() if conjugate != number else weights
    order = [others.index(label) for label in lines]
    weights = weights.transpose(order)
    return (which, weights, type(x)) if weights.shape == which.windows.widths else None

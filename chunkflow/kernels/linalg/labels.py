"""NumPy's products (matmul, dot, einsum, ...) as labels of dimensions."""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Sequence
from typing import Any

from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentError, ArgumentTypeError, AxisError
from chunkflow.kernels.linalg.product import ProductLabels

Translate = Callable[[Sequence[Shape]], ProductLabels]


def _stacked(n: int) -> tuple[str, ...]:
    """Labels of axes that broadcast: aligned from the right, so they count backwards."""
    return tuple(f"...{i}" for i in range(n, 0, -1))


def matmul(shapes: Sequence[Shape]) -> ProductLabels:
    """Labels of ``numpy.matmul``.

    >>> matmul([(5, 2, 3), (3, 4)]).result
    ('...1', 'row', 'column')
    """
    a, b = shapes
    if not a or not b:
        raise ArgumentError("matmul: a scalar is no matrix: multiply by it instead, or use dot")
    stack = _stacked(max(len(a), len(b), 2) - 2)
    left = ("inner",) if len(a) == 1 else (*_stacked(len(a) - 2), "row", "inner")
    right = ("inner",) if len(b) == 1 else (*_stacked(len(b) - 2), "inner", "column")
    _check("matmul", shapes, len(a) - 1, max(len(b) - 2, 0))
    return ProductLabels((left, right), (*stack, *(x for x in ("row", "column") if x in left + right)))


def dot(shapes: Sequence[Shape]) -> ProductLabels:
    """Labels of ``numpy.dot``."""
    a, b = shapes
    left, right = tuple(f"a{i}" for i in range(len(a))), tuple(f"b{i}" for i in range(len(b)))
    if not a or not b:
        return ProductLabels((left, right), left + right)
    at = max(len(b) - 2, 0)
    _check("dot", shapes, len(a) - 1, at)
    result = left[:-1] + right[:at] + right[at + 1 :]
    return ProductLabels((left, (*right[:at], left[-1], *right[at + 1 :])), result)


def vecdot(shapes: Sequence[Shape], axis: int) -> ProductLabels:
    """Labels of ``numpy.vecdot``."""
    terms = []
    for shape in shapes:
        where = _axis(axis, len(shape), "vecdot")
        stack = _stacked(len(shape) - 1)
        terms.append((*stack[:where], "inner", *stack[where:]))
    _check("vecdot", shapes, *(term.index("inner") for term in terms))
    return ProductLabels((terms[0], terms[1]), _stacked(max(len(shape) for shape in shapes) - 1))


def outer(shapes: Sequence[Shape]) -> ProductLabels:
    """Labels of ``numpy.outer``."""
    for shape in shapes:
        if len(shape) != 1:
            raise ArgumentError(
                f"outer: an array of shape {shape} is no vector: use tensordot(a, b, axes=0), which keeps all axes"
            )
    return ProductLabels((("row",), ("column",)), ("row", "column"))


def tensordot(shapes: Sequence[Shape], axes: Any) -> ProductLabels:
    """Labels of ``numpy.tensordot``.

    >>> tensordot([(2, 3), (3, 4)], 1).result
    ('a0', 'b1')
    """
    a, b = shapes
    if isinstance(axes, Sequence) and not isinstance(axes, str):
        if len(axes) != 2:
            raise ArgumentError(f"tensordot: axes={axes!r} must be a number, or the axes of a and those of b")
        first, second = (_several(part, len(shape)) for part, shape in zip(axes, shapes, strict=True))
    else:
        number = _index(axes, "tensordot: axes")
        if not 0 <= number <= min(len(a), len(b)):
            raise ArgumentError(
                f"tensordot: axes={axes} must be from 0 to {min(len(a), len(b))}: the shapes are {a} and {b}"
            )
        first, second = list(range(len(a) - number, len(a))), list(range(number))
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: axes={axes!r} names {len(first)} axes of a and {len(second)} of b")
    left, right = [f"a{i}" for i in range(len(a))], [f"b{i}" for i in range(len(b))]
    for i, j in zip(first, second, strict=True):
        _check("tensordot", shapes, i, j)
        right[j] = left[i]
    result = [x for i, x in enumerate(left) if i not in first] + [x for j, x in enumerate(right) if j not in second]
    return ProductLabels((tuple(left), tuple(right)), tuple(result))


def einsum(subscripts: str, shapes: Sequence[Shape]) -> ProductLabels:
    """Labels of ``numpy.einsum``.

    >>> einsum("...j,jk", [(5, 2, 3), (3, 4)])
    ProductLabels(operands=(('...2', '...1', 'j'), ('j', 'k')), result=('...2', '...1', 'k'))
    """
    inputs, arrow, after = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(f"einsum: {subscripts!r} has {len(terms)} terms and there are {len(shapes)} operands")
    operands = [_term(term, len(shape), subscripts) for term, shape in zip(terms, shapes, strict=True)]
    stack = max((tuple(x for x in term if x.startswith("...")) for term in operands), key=len)
    letters = sorted({x for term in operands for x in term if not x.startswith("...")})
    if not arrow:
        once = [x for x in letters if sum(term.count(x) for term in operands) == 1]
        return ProductLabels(tuple(operands), (*stack, *once))
    before, dots, rest = after.partition("...")
    if stack and not dots:
        raise ArgumentError(f"einsum: the result of {subscripts!r} lacks the ellipsis that an operand has")
    result = (*before, *stack, *rest)
    for x in (*before, *rest):
        if x not in letters:
            raise ArgumentError(f"einsum: {x!r} in the result of {subscripts!r} is in no operand")
    if len(set(result)) != len(result):
        raise ArgumentError(f"einsum: the result of {subscripts!r} names an axis twice")
    return ProductLabels(tuple(operands), result)


def _term(term: str, ndim: int, subscripts: str) -> tuple[str, ...]:
    """Labels of one operand's dimensions."""
    before, dots, rest = term.partition("...")
    for x in before + rest:
        if x not in string.ascii_letters:
            raise ArgumentError(f"einsum: {x!r} in {subscripts!r} is no letter")
    named = len(before) + len(rest)
    if named > ndim or (named < ndim and not dots):
        raise ArgumentError(
            f"einsum: {term!r} in {subscripts!r} has {named} letters for an operand of {ndim} dimensions: give one "
            "for each"
        )
    if repeated := [x for x in before + rest if (before + rest).count(x) > 1]:
        raise ArgumentError(f"einsum: {repeated[0]!r} appears twice in {term!r}")
    return (*before, *_stacked(ndim - named), *rest)


def _check(name: str, shapes: Sequence[Shape], i: int, j: int) -> None:
    """Check that the summed axes are equally long: here a length of 1 does not broadcast."""
    a, b = shapes
    if a[i] != b[j]:
        raise ArgumentError(
            f"{name}: shapes {a} and {b} do not match: axis {i} of the first has {a[i]} elements and axis {j} of the "
            f"second {b[j]}"
        )


def _several(axes: Any, ndim: int) -> list[int]:
    listed = list(axes) if isinstance(axes, Sequence) and not isinstance(axes, str) else [axes]
    found = [_axis(a, ndim, "tensordot") for a in listed]
    if len(set(found)) != len(found):
        raise ArgumentError(f"tensordot: axes {axes!r} name an axis twice")
    return found


def _axis(axis: Any, ndim: int, name: str) -> int:
    number = _index(axis, f"{name}: axis")
    if not -ndim <= number < ndim:
        raise AxisError(f"{name}: axis {axis} is out of bounds for {ndim} dimensions")
    return number % ndim


def _index(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{what} must be an int, not {value!r}") from None

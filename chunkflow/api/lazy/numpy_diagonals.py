"""NumPy's functions of expressions that take diagonals, or make matrices of them, with NumPy's signatures."""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np

from chunkflow.api.lazy import fill, numpy_functions
from chunkflow.api.linalg import product
from chunkflow.api.rearrange import join
from chunkflow.api.reductions import sums
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.create import integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """As `numpy.diagonal`. Chunks that hold no element of it are not read."""
    numpy_functions.require_dims(a, 2)
    one, other = (normalize_axes(axis, a.ndim, "axis")[0] for axis in (axis1, axis2))
    if one == other:
        raise ArgumentError(f"axis1={axis1} and axis2={axis2} must be two different axes")
    before, after = max(-operator.index(offset), 0), max(operator.index(offset), 0)
    places = np.arange(max(min(a.shape[one] - before, a.shape[other] - after), 0))
    return numpy_functions.moveaxis(a, (one, other), (-2, -1))[..., places + before, places + after]


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """As `numpy.trace`."""
    return sums.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def diag(v: Any, k: int = 0) -> Any:
    """As `numpy.diag`."""
    if v.ndim not in (1, 2):
        raise ArgumentError(f"the array has {v.ndim} dimensions: a diagonal is of 2, and a matrix is made of 1")
    if v.ndim == 2:
        return diagonal(v, k)
    before, after = max(-operator.index(k), 0), max(operator.index(k), 0)
    column = join.pad(v, (before, after))[:, None]
    rows, columns = (integers(type(v), 0, column.shape[0]) for _ in range(2))
    return mapped(_kept, column, rows[:, None] + k, columns)


def _kept(block: Any, rows: Any, columns: Any) -> Any:
    return np.where(rows == columns, block, block.dtype.type(0))


def diagflat(v: Any, k: int = 0) -> Any:
    """As `numpy.diagflat`."""
    return diag(numpy_functions.reshape(v, -1), k)


def einsum(*operands: Any, optimize: Any = False, **given: Any) -> Any:
    """As `numpy.einsum`: an index that an array has twice is one along its diagonal."""
    dtype, casting = given.pop("dtype", None), given.pop("casting", "safe")
    fill.check_layout(given.pop("order", "K"))
    if given:
        raise ArgumentTypeError(f"np.einsum takes no {', '.join(given)}")
    subscripts, arrays = operands[0], list(operands[1:])
    if not isinstance(subscripts, str):
        subscripts, arrays = _from_lists(operands)
    sides = subscripts.replace(" ", "").split("->")
    terms = sides[0].split(",")
    if len(terms) == len(arrays):
        pairs = [_once(term, array) for term, array in zip(terms, arrays, strict=True)]
        if len(sides) == 1 and any(term != own for term, (own, _) in zip(terms, pairs, strict=True)):
            letters = [letter for letter in sides[0] if letter.isalpha()]
            dots = "..." if "..." in sides[0] else ""
            sides.append(dots + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1)))
        terms, arrays = [own for own, _ in pairs], [array for _, array in pairs]
    if dtype is not None:
        for array in arrays:
            if not np.can_cast(np.result_type(array), dtype, casting):
                raise ArgumentTypeError(
                    f"dtype={dtype!r}: {np.result_type(array)} is not cast to it by casting={casting!r}: give another"
                )
        arrays = [
            mapped(_cast, a, dtype=np.dtype(dtype)) if isinstance(a, Lazy) else np.asarray(a, dtype) for a in arrays
        ]
    return product.einsum("->".join([",".join(terms), *sides[1:]]), *arrays)


def _cast(block: Any, dtype: np.dtype) -> Any:
    return block.astype(dtype)


def _from_lists(operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Subscripts as text, where each array is followed by a list of its indices; and the arrays."""
    *pairs, result = operands if len(operands) % 2 else (*operands, None)
    arrays, lists = pairs[::2], pairs[1::2]
    named = [index for each in (*lists, result or ()) for index in each if index is not Ellipsis]
    if any(isinstance(index, bool) or not isinstance(index, int | np.integer) for index in named):
        raise ArgumentTypeError("np.einsum: indices in lists are ints, and Ellipsis")
    if len(known := sorted(set(map(int, named)))) > 52:
        raise ArgumentError(f"np.einsum: {len(known)} different indices, and there may be 52")
    letters = dict(zip(known, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", strict=False))

    def text(indices: Any) -> str:
        return "".join("..." if index is Ellipsis else letters[int(index)] for index in indices)

    joined = ",".join(map(text, lists))
    return joined if result is None else f"{joined}->{text(result)}", list(arrays)


def _once(term: str, array: Any) -> tuple[str, Any]:
    """A term in which no index comes twice, and the array: a diagonal takes the place of two axes with one name."""
    names = re.findall(r"\.\.\.|.", term)
    while (twice := next((name for name in names if name != "..." and names.count(name) > 1), None)) is not None:
        places = [place for place, name in enumerate(names) if name == twice][:2]
        one, other = (place - len(names) if "..." in names[:place] else place for place in places)
        if array.shape[one] != array.shape[other]:
            raise ArgumentError(
                f"np.einsum: index {twice!r} of {term!r} has the lengths {array.shape[one]} and {array.shape[other]}"
            )
        array = diagonal(array, 0, one, other) if isinstance(array, Lazy) else np.diagonal(array, 0, one, other)
        names = [name for place, name in enumerate(names) if place not in places] + [twice]  # which is the last axis
    return "".join(names), array

"""Products of blocks: stacks of matrices, added to a tile panel by panel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any, Literal

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.product_nest import PANEL, SHARE, Axes
from chunkflow.errors import ArgumentError

Precision = Literal["highest", "tf32"]


def allows_tf32(precision: Any) -> bool:
    """Whether a device may round factors of single precision for its tensor cores."""
    if precision not in ("highest", "tf32"):
        raise ArgumentError(f'precision={precision!r} must be "highest" or "tf32"')
    return bool(precision == "tf32")


class Tile:
    """The sum so far of a tile of the result.

    Central moments also keep the number of samples, and the mean as a distance from an origin.
    """

    __slots__ = ("array", "count", "mean", "origin")

    def __init__(self, array: Any, count: float = 0, mean: Any = None, origin: Any = None) -> None:
        self.array, self.count, self.mean, self.origin = array, count, mean, origin

    @property
    def nbytes(self) -> int:
        """Bytes of the tile."""
        return sum(int(a.nbytes) for a in (self.array, self.mean, self.origin) if a is not None)

    def add(self, more: Any) -> Tile:
        """The tile with another one's array added; of bools the sum is whether one of them is true."""
        (np.logical_or if self.array.dtype.kind == "b" else np.add)(self.array, more, out=self.array)
        return self

    def take(self) -> Any:
        """The array, to which the tile then no longer refers."""
        array, self.array = self.array, None
        return array


def working(dtype: np.dtype) -> np.dtype:
    """Dtype in which blocks are multiplied: single precision for half precision and bools."""
    return np.dtype("f4") if dtype.kind == "b" or dtype == np.float16 else dtype


@dataclass(frozen=True)
class Pair:
    """Axes of two operands, grouped for a stack of matrix products. Axes in `needed` are not summed over."""

    left: Axes
    right: Axes
    needed: set[int]
    swapped: bool = False

    @cached_property
    def stack(self) -> Axes:
        """Axes of both operands that are kept."""
        return tuple(sorted(a for a in self.left if a in self.right and a in self.needed))

    @cached_property
    def rows(self) -> Axes:
        """Axes of the first operand only."""
        return tuple(sorted(a for a in self.left if a not in self.right))

    @cached_property
    def columns(self) -> Axes:
        """Axes of the second operand only."""
        return tuple(sorted(a for a in self.right if a not in self.left))

    @cached_property
    def inner(self) -> Axes:
        """Axes that are summed over."""
        return tuple(a for a in self.left if a in self.right and a not in self.needed)

    @cached_property
    def result(self) -> Axes:
        """Axes of the product."""
        return (*self.stack, *self.rows, *self.columns)

    @cached_property
    def sums(self) -> bool:
        """Whether anything is summed over."""
        return bool(self.inner)

    def matrices(self, left: Any, right: Any) -> tuple[Any, Any]:
        """Both operands as stacks of matrices."""
        a = left.transpose([self.left.index(x) for x in (*self.stack, *self.rows, *self.inner)])
        b = right.transpose([self.right.index(x) for x in (*self.stack, *self.inner, *self.columns)])
        n, m = len(self.stack), len(self.stack) + len(self.rows)
        stack, rows, inner = math.prod(a.shape[:n]), math.prod(a.shape[n:m]), math.prod(a.shape[m:])
        return a.reshape(stack, rows, inner), b.reshape(stack, inner, math.prod(b.shape[n + len(self.inner) :]))

    def unfold(self, product: Any, left: Any, right: Any) -> Any:
        """The stack of products, reshaped to all axes of the result."""
        sides = {**dict(zip(self.left, left.shape, strict=True)), **dict(zip(self.right, right.shape, strict=True))}
        return product.reshape([sides[a] for a in self.result])


def _may_copy(array: Any) -> bool:
    """Whether the array's module copies a matrix that is not contiguous before it multiplies; NumPy does not."""
    return type(array).__module__.partition(".")[0] != "numpy"


@singledispatch
def accumulate(into: Any, a: Any, b: Any) -> bool:
    """Add a matrix product to `into` in one call, without a temporary. Returns whether it was done.

    NumPy cannot do it. Devices with such a library register a function for their arrays.
    """
    return False


def _multiply(a: Any, b: Any, out: Any, sums: bool) -> None:
    """Store a product in `out`. A product without a sum is computed elementwise."""
    if not a.shape[-1]:
        out[...] = 0  # not every array module multiplies nothing
    elif sums:
        np.matmul(a, b, out=out)
    else:
        np.multiply(a, b, out=out)


def multiplied(a: Any, b: Any, sums: bool) -> Any:
    """A product of stacks of matrices."""
    out = np.empty_like(a, shape=(a.shape[0], a.shape[1], b.shape[2]), order="C")
    _multiply(a, b, out, sums)
    return out


def _panels(shape: Shape, itemsize: int) -> Iterator[tuple[Any, slice]]:
    """Panels of a stack of matrices: several matrices, or rows of one."""
    stack, rows, columns = shape
    number = min(SHARE, max(1, stack * rows * columns * itemsize // PANEL))
    if stack >= number:
        step = max(1, stack // number)
        yield from ((slice(i, i + step), slice(None)) for i in range(0, stack, step))
    else:
        step = max(1, -(-rows * stack // number))
        yield from ((i, slice(r, r + step)) for i in range(stack) for r in range(0, rows, step))


def add_product(into: Any, a: Any, b: Any, *, sums: bool = True, fresh: bool = False, symmetric: bool = False) -> None:
    """Add the product of two stacks of matrices to `into`, or store it there if that is `fresh`.

    `accumulate` is used if it can. Otherwise all memory is allocated before `into` is changed: a panel, which is one
    `SHARE`-th of the product, and a copy of an operand that other array modules than NumPy need contiguous.

    A `symmetric` product is Hermitian: only panels right of the diagonal are computed.
    """
    logical = into.dtype.kind == "b"
    foreign = _may_copy(a)
    if fresh and not logical and not symmetric:
        if into.shape[0] == 1:
            into, a, b = into[0], a[0], b[0]
        _multiply(a, b, into, sums)
        return
    alone = len(into) == 1 and sums and not (logical or symmetric)
    if alone and accumulate(into[0], a[0], b[0]):
        return
    panels = list(_panels(into.shape, a.dtype.itemsize))
    if not panels:
        return
    biggest = into[panels[0]].shape
    panel = np.empty_like(a, shape=biggest, dtype=a.dtype, order="C")
    rows = None
    if foreign and not a.flags.c_contiguous:
        rows = np.empty_like(a, shape=a[panels[0]].shape, order="C")
    if foreign and not b.flags.c_contiguous and not (b.shape[0] == 1 and b[0].flags.f_contiguous):
        b = b.copy(order="C")
    if fresh:
        into[...] = 0
    for where in panels:
        part, place = a[where], into[where]
        if rows is not None:
            held = rows[: part.shape[0]]
            held[...] = part
            part = held
        matrix = b[where[0]]
        first = where[1].start if symmetric else 0
        if first:
            matrix, place = matrix[..., first:], place[..., first:]
        out = panel[: part.shape[0]] if not first else panel.reshape(-1)[: place.size].reshape(place.shape)
        _multiply(part, matrix, out, sums)
        if logical:
            np.logical_or(place, out > 0, out=place)
        else:
            np.add(place, out, out=place)


def mirror(array: Any) -> None:
    """Fill in the half of a Hermitian product that `add_product` leaves out."""
    step = max(1, -(-len(array) // SHARE))
    for start in range(0, len(array), step):
        rows = slice(start, start + step)
        array[rows.stop :, rows] = array[rows, rows.stop :].conj().T
        square = array[rows, rows]  # a panel may begin in it
        square[...] = np.triu(square) + np.triu(square, 1).conj().T

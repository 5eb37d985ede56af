"""Products of arrays as contractions: their loop nest, and the kernel that adds up a tile of the result.

Each dimension of an operand has a label. Labels that the result keeps are its axes; the others are summed over.
The engine walks the summed axes innermost, so that a tile of the result stays on the device while panels of the
operands pass by (K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34, 2008).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.product_nest import Axes, ProductNest
from chunkflow.errors import ArgumentError
from chunkflow.kernels.linalg.gemm import Pair, Tile, add_product, multiplied, working
from chunkflow.kernels.protocol import Fold, Library


@dataclass(frozen=True)
class ProductLabels:
    """Labels of the dimensions of a product's operands, and of its result."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    def extents(self, shapes: Sequence[Shape], name: str) -> dict[str, int]:
        """Extent of each label, the result's first; lengths of 1 broadcast, others must be equal (`ArgumentError`)."""
        order = [*self.result, *(x for term in self.operands for x in term if x not in self.result)]
        found = dict.fromkeys(order, 1)
        where: dict[str, tuple[int, int]] = {}
        for i, (term, shape) in enumerate(zip(self.operands, shapes, strict=True)):
            for dim, (label, n) in enumerate(zip(term, shape, strict=True)):
                if label not in where or found[label] == 1:
                    found[label], where[label] = n, (i, dim)
                elif n not in (1, found[label]):
                    j, other = where[label]
                    raise ArgumentError(
                        f"{name}: shapes {shapes[j]} and {shape} do not match: axis {other} of the "
                        f"{_ordinal(j)} operand has {found[label]} elements and axis {dim} of the {_ordinal(i)} {n}"
                    )
        return found


def _ordinal(i: int) -> str:
    return ("first", "second", "third")[i] if i < 3 else f"{i + 1}th"


def contraction(
    labels: ProductLabels,
    shapes: Sequence[Shape],
    dtypes: Sequence[np.dtype],
    orders: Sequence[Shape],
    name: str,
    conjugate: int | None,
    tf32: bool,
    dtype: np.dtype | None = None,
) -> tuple[ProductNest, Product]:
    """Loop nest and kernel of a product, in its own dtype or another one; `conjugate` and `tf32` as for `Product`."""
    extents = labels.extents(shapes, name)
    number = {label: i for i, label in enumerate(extents)}
    lengths = tuple(extents.values())
    operands = tuple(
        Operand(tuple(None if n == 1 != extents[x] else number[x] for x, n in zip(term, shape, strict=True)))
        for term, shape in zip(labels.operands, shapes, strict=True)
    )
    kept = tuple(range(len(labels.result)))
    result = dtype or np.result_type(*dtypes)
    kernel = Product(tuple(o.axes for o in operands), kept, working(result), result, conjugate, tf32)
    buffers = kernel.buffers(dtypes, orders)
    panel, work = kernel.panel(orders), math.prod(lengths)
    return ProductNest(lengths, operands, (), buffers=buffers, panel=panel, work=work, single=kernel.single), kernel


@dataclass(frozen=True)
class Product(Fold):
    """Multiplies the first two blocks, then their product with the next one, and adds the last product to a tile.

    Attributes
    ----------
    terms : tuple
        For each operand the axis of each dimension; None where it broadcasts.
    kept : tuple of int
        Axes of the result, in order.
    work, result : numpy.dtype
        Dtype in which blocks are multiplied, and that of the result.
    conjugate : int or None
        Operand to conjugate.
    tf32 : bool
        Whether a device may round factors of single precision for its tensor cores.
    """

    data_independent = True
    libraries: ClassVar[frozenset[Library]] = frozenset({"BLAS"})
    terms: tuple[tuple[int | None, ...], ...]
    kept: Axes
    work: np.dtype
    result: np.dtype
    conjugate: int | None
    tf32: bool = False

    def fold(
        self, value: Tile | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Tile:
        pairs, left = self._pairs, self._ready(blocks, 0)
        if not pairs:
            return self._add_one(value, left.transpose([self._rest(0).index(a) for a in self.kept]))
        for i, pair in enumerate(pairs[:-1], 1):
            right = self._ready(blocks, i)
            a, b = pair.matrices(left, right)
            left = pair.unfold(multiplied(a, b, pair.sums), left, right)
        pair, right = pairs[-1], self._ready(blocks, len(pairs))
        if pair.swapped:
            left, right = right, left
        a, b = pair.matrices(left, right)
        shape = (a.shape[0], a.shape[1], b.shape[2])
        if value is not None:
            add_product(value.array.reshape(shape), a, b, sums=pair.sums)
            return value
        kept = tuple(box[axis].stop - box[axis].start for axis in pair.result)
        # Some array modules ignore an empty shape argument. A view would be copied before it is stored.
        array = np.empty_like(a, shape=kept or (1,), dtype=self._sum, order="C")
        array = array if kept else array.reshape(())
        add_product(array.reshape(shape), a, b, sums=pair.sums, fresh=True)
        return Tile(array)

    def combine(self, left: Tile, right: Tile) -> Tile:
        return left.add(right.array)

    def finish(self, value: Tile, nest: LoopNest, box: Region) -> Any:
        array = value.take()
        order = self._order()
        if order != self.kept:
            array = array.transpose([order.index(a) for a in self.kept]).copy(order="C")
        return array.astype(self.result, copy=False)

    def buffers(self, dtypes: Sequence[np.dtype], orders: Sequence[Shape]) -> tuple[tuple[Axes, float], ...]:
        """The buffers of a lane, as `ProductNest.buffers`: a tile, a panel, copies of blocks, intermediate products."""
        wide = self._sum.itemsize
        found: list[tuple[Axes, float]] = [(self.kept, wide)]
        terms = [tuple(a for a in term if a is not None) for term in self.terms]
        for i, term in enumerate(terms):
            order = [self.terms[i][d] for d in orders[i]]
            if dtypes[i] != self.work or i == self.conjugate or not self._as_it_lies(i, order):
                found.append((term, self.work.itemsize * (1 + (i == self.conjugate and dtypes[i] != self.work))))
        # The intermediate products, and their copies in another order.
        found += [(pair.result, 2 * self.work.itemsize) for pair in self._pairs[:-1]]
        if len(terms) == 1 or self._order() != self.kept or self._sum != self.result:
            found.append((self.kept, wide))  # in another order, or dtype, at the end
        return tuple(found)

    def panel(self, orders: Sequence[Shape]) -> tuple[Axes, Axes, int, Axes, int] | None:
        """The panel for adding to the tile, as `ProductNest.panel`."""
        if len(self.terms) == 1:
            return None
        pair, item = self._pairs[-1], self.work.itemsize
        first = 1 if pair.swapped else 0
        lies = tuple(self.terms[first][d] for d in orders[first])
        in_order = len(self.terms) == 2 and lies == (*pair.stack, *pair.rows, *pair.inner)
        return self.kept, pair.columns, item, pair.left, 0 if in_order else item

    @property
    def single(self) -> bool:
        return len(self.terms) > 1 and not self._pairs[-1].stack and self._sum.char in "fdFD"

    @property
    def _sum(self) -> np.dtype:
        return self.result if self.result.kind == "b" else self.work

    def _as_it_lies(self, i: int, order: Sequence[int | None]) -> bool:
        """Whether an operand's block is a matrix without a copy, with one group of axes after the other."""
        if len(self.terms) != 2 or self._rest(i) != tuple(a for a in self.terms[i] if a is not None):
            return False
        shared = set(self._rest(0)) & set(self._rest(1))
        if shared & set(self.kept):
            return False  # some array modules copy stacks of matrices that are not in C order
        found = [a for a in order if a is not None]
        inner = [a in shared for a in found]
        return sum(x != y for x, y in itertools.pairwise(inner)) <= 1 and len(found) <= 2

    def _rest(self, i: int) -> Axes:
        """Axes of an operand without those that only it has, which are summed over first."""
        others = {a for j, term in enumerate(self.terms) if j != i for a in term} | set(self.kept)
        return tuple(a for a in self.terms[i] if a is not None and a in others)

    def _needed(self, i: int) -> set[int]:
        """Axes that are still needed when operands 0 to `i` have been multiplied."""
        return {a for term in self.terms[i + 1 :] for a in term if a is not None} | set(self.kept)

    def _order(self) -> Axes:
        """Order of the tile's axes."""
        return self.kept if len(self.terms) == 1 else self._pairs[-1].result

    @cached_property
    def _pairs(self) -> list[Pair]:
        """The multiplications of each operand but the first with the product of those before it."""
        axes, found = self._rest(0), list[Pair]()
        for i in range(1, len(self.terms)):
            found.append(Pair(axes, self._rest(i), self._needed(i)))
            axes = found[-1].result
        last = found[-1] if found else None
        if last and last.columns and last.rows and min(last.columns) < min(last.rows):
            # The operand whose own axes come first in the result is the first one.
            found[-1] = Pair(last.right, last.left, last.needed, swapped=True)
        return found

    def _ready(self, blocks: Sequence[Any], i: int) -> Any:
        """A block in the working dtype, without broadcast axes and without axes that only it has."""
        term = self.terms[i]
        block = blocks[i][(*(0 if a is None else slice(None) for a in term), ...)]
        rest, axes = self._rest(i), tuple(a for a in term if a is not None)
        alone = tuple(d for d, a in enumerate(axes) if a not in rest)
        block = block.astype(self.work, copy=False)
        if i == self.conjugate and self.work.kind == "c":
            block = block.conj()
        return block.sum(axis=alone, dtype=self.work) if alone else block

    def _add_one(self, value: Tile | None, part: Any) -> Tile:
        """Add a sum over a single operand's block; of bools any other number than 0 is true."""
        if value is not None:
            return value.add(part)
        array = np.empty_like(part, shape=part.shape, dtype=self._sum, order="C")
        array[...] = part
        return Tile(array)

"""Products of an array with itself whose result stays on the device: Gram matrices and central moments.

Moments of blocks are merged about their common mean (T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae
and a pairwise algorithm for computing sample variances", 1979), so that data far from zero lose no precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.product_nest import ProductNest
from chunkflow.kernels.linalg.gemm import Tile, add_product, mirror, working
from chunkflow.kernels.protocol import Fold, Library


def gram_nest(shape: Shape, samples: int, dtype: np.dtype, copies: int) -> ProductNest:
    """The pass over an array of one or two dimensions, along its axis of samples; the other axis is never cut.

    Blocks are multiplied in `dtype`, which takes as many copies of a block as `copies` says.
    """
    others = tuple(a for a in range(len(shape)) if a != samples)
    item = dtype.itemsize
    square = others * 2
    buffers = ((square, item), (others, 8 * item), ((*others, samples), copies * item))
    return ProductNest(
        shape,
        (Operand(tuple(range(len(shape)))),),
        (),
        frozenset(others),
        buffers=buffers,
        panel=(square, others, item, (*others, samples), item),
        work=math.prod(shape) * math.prod(shape[a] for a in others),
    )


def moments_nest(shapes: Sequence[Shape], samples: Sequence[int], weighted: bool, dtype: np.dtype) -> ProductNest:
    """The pass over one or two arrays with samples along these axes, and over the samples' weights.

    The nest has an axis of samples, one of each array's variables, and one of all variables, which no array has.
    """
    count, lengths = shapes[0][samples[0]], [math.prod(shape) for shape in shapes]
    several = [n // max(count, 1) if len(shape) == 2 else 1 for n, shape in zip(lengths, shapes, strict=True)]
    operands = [
        Operand(tuple([0 if axis == along else i for axis in range(len(shape))]))
        for i, (shape, along) in enumerate(zip(shapes, samples, strict=True), 1)
    ]
    every = len(shapes) + 1
    item, copies = dtype.itemsize, 3 if dtype.kind == "c" else 2
    buffers = (((every, every), item), ((every,), 8 * item), ((every, 0), copies * item))
    return ProductNest(
        (count, *several, sum(several)),
        (*operands, *([Operand((0,))] if weighted else [])),
        (),
        frozenset(range(1, every + 1)),
        buffers=buffers,
        panel=((every, every), (every,), item, (every, 0), item),
        work=count * sum(several) ** 2,
    )


@dataclass(frozen=True)
class Gram(Fold):
    """``x.conj().T @ x``, block of rows by block of rows; `tf32` as for `chunkflow.kernels.linalg.product.Product`."""

    data_independent = True
    libraries: ClassVar[frozenset[Library]] = frozenset({"BLAS"})
    result: np.dtype
    tf32: bool = False

    def shapes(self, nest: LoopNest) -> tuple[Shape, ...]:
        return ((nest.extents[1],) * 2,)

    def fold(
        self, value: Tile | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Tile:
        block = blocks[0].astype(working(self.result), copy=False)
        left = block.conj() if self.result.kind == "c" else block
        fresh = value is None
        if value is None:
            side = block.shape[1]
            kind = self.result if self.result.kind == "b" else block.dtype
            value = Tile(np.empty_like(block, shape=(side, side), dtype=kind, order="C"))
        add_product(value.array[None], left.T[None], block[None], fresh=fresh, symmetric=True)
        return value

    def combine(self, left: Tile, right: Tile) -> Tile:
        return left.add(right.array)

    def finish(self, value: Tile, nest: LoopNest, box: Region) -> Any:
        array = value.take()
        mirror(array)
        return array.astype(self.result, copy=False)


@dataclass(frozen=True)
class Moments(Fold):
    """Covariance or correlation of variables; each block has some of the samples.

    Attributes
    ----------
    samples : tuple of int
        Axis of the samples in each of the arrays.
    wide : numpy.dtype
        Dtype of double precision for all computations.
    ddof : int
        Subtracted from the number of samples to divide by.
    normalized : bool
        Whether the result is divided by the standard deviations.
    scalar : bool
        Whether the result has no dimensions.
    freedom : float, optional
        Divisor of weighted samples; the last block then has the weights.
    """

    data_independent = True
    libraries: ClassVar[frozenset[Library]] = frozenset({"BLAS"})
    samples: tuple[int, ...]
    wide: np.dtype
    ddof: int
    normalized: bool
    scalar: bool
    freedom: float | None

    def shapes(self, nest: LoopNest) -> tuple[Shape, ...] | None:
        # The axis of all variables is the last one that is never cut, and the only one where there is one array.
        return None if self.scalar else ((nest.extents[max(nest.whole)],) * 2,)

    def fold(
        self, value: Tile | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Tile:
        parts = [
            b[None] if b.ndim == 1 else b.T if along == 0 else b for b, along in zip(blocks, self.samples, strict=False)
        ]
        sides, length = sum(part.shape[0] for part in parts), parts[0].shape[1]
        # Centred samples, and one more column for the distance between this mean and that of earlier blocks.
        about = np.empty_like(parts[0], shape=(sides, length + 1), dtype=self.wide, order="C")
        samples, extra = about[:, :length], about[:, length]
        first = 0
        for part in parts:
            samples[first : first + part.shape[0]] = part
            first += part.shape[0]
        weights = None if self.freedom is None else blocks[-1].astype(np.float64)
        count = length if weights is None else float(weights.sum())
        # Means are kept as distances from the first one, or small differences of large means would be lost.
        origin = self._mean(samples, weights, count) if value is None else value.origin
        samples -= origin[:, None]
        mean = self._mean(samples, weights, count)
        samples -= mean[:, None]
        if weights is not None:
            samples *= np.sqrt(weights)
        if value is None:
            extra[...] = 0
            array = np.empty_like(about, shape=(sides, sides), order="C")
            self._add(array, about, fresh=True)
            return Tile(array, count, mean, origin)
        distance, total = mean - value.mean, value.count + count
        extra[...] = distance * math.sqrt(value.count * count / (total or 1))
        merged = value.mean + distance * (count / (total or 1))
        self._add(value.array, about)
        value.mean, value.count = merged, total
        return value

    def combine(self, left: Tile, right: Tile) -> Tile:
        total = left.count + right.count or 1
        distance = (right.origin - left.origin) + (right.mean - left.mean)
        left.array += right.array
        self._add(left.array, (distance * math.sqrt(left.count * right.count / total))[:, None])
        left.mean = left.mean + distance * (right.count / total)
        left.count += right.count
        return left

    def finish(self, value: Tile, nest: LoopNest, box: Region) -> Any:
        array = value.take()
        mirror(array)
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = max(value.count - self.ddof, 0) if self.freedom is None else self.freedom
            for part in _parts(array):  # CuPy gives NaN for a complex number divided by zero
                part /= freedom
            if self.normalized:
                deviations = np.sqrt(np.diagonal(array).real)
                array /= deviations[:, None]
                array /= deviations[None, :]
        if self.normalized:
            for part in _parts(array):
                np.clip(part, -1, 1, out=part)
        return array.reshape(()) if self.scalar else array

    @staticmethod
    def _mean(samples: Any, weights: Any, count: float) -> Any:
        total = samples.sum(axis=1) if weights is None else samples @ weights.astype(samples.dtype)
        return total / (count or 1)

    def _add(self, into: Any, about: Any, *, fresh: bool = False) -> None:
        other = about.conj() if self.wide.kind == "c" else about
        add_product(into[None], about[None], other.T[None], fresh=fresh, symmetric=True)


def _parts(array: Any) -> tuple[Any, ...]:
    """The array, or the real and the imaginary part of a complex one."""
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)

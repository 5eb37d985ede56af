"""The kernel of an operation: what it computes on one box of the loop nest, and what it passes on to later boxes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from types import FunctionType
from typing import Any, Literal, TypeVar, cast

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.system.context import run_variable

F = TypeVar("F", bound=Callable[..., Any])

Library = Literal["BLAS", "FFT"]
"""A kind of library that kernels call, and that takes memory of its own on a device."""

Became = Mapping[int, int]
"""Numbers of counts, by those that a trial has in their place."""

_MARK = "__chunkflow_library__"

_trial = run_variable("chunkflow_trial", False)


def is_trial() -> bool:
    """Whether a call is a trial: it takes as much memory as for the elements with which it takes most."""
    return _trial.get()


@contextmanager
def trial() -> Iterator[None]:
    """Calls of kernels within it measure memory for a plan."""
    token = _trial.set(True)
    try:
        yield
    finally:
        _trial.reset(token)


def calls(library: Library) -> Callable[[F], F]:
    """Say that a function calls a library."""

    def mark(fn: F) -> F:
        fn.__dict__[_MARK] = library
        return fn

    return mark


def libraries_of(fn: Callable[..., Any]) -> frozenset[Library]:
    """Libraries that a function is known to call; of a user's own nothing is known.

    >>> libraries_of(np.sqrt)
    frozenset()
    """
    found = fn.__dict__.get(_MARK) if type(fn) is FunctionType else None  # no other object is asked anything
    return frozenset() if found is None else frozenset({found})


class Kind(Enum):
    """How the engine runs a kernel."""

    MAP = "each block by itself"
    FOLD = "the blocks' results are combined"
    CARRY = "a block passes something on to the next one"
    MULTI = "several parts that share what they compute"


class Kernel(ABC):
    """Computes one box of the loop nest: an array, or a tuple of them.

    Attributes
    ----------
    wants : frozenset of str
        Which of `block_id` and `block_info` the user's function asks for.
    flat : bool
        Whether blocks are flattened in C order, so that the result has one dimension.
    """

    wants: frozenset[str] = frozenset()
    flat: bool = False

    @property
    def kind(self) -> Kind:
        """How the engine runs it."""
        return Kind.MAP

    @property
    def parts(self) -> Sequence[Fold | None]:
        """The fold of each part of the kernel; None for a part whose results are stored block by block."""
        return (None,)

    @property
    def data_independent(self) -> bool:
        """Whether all blocks of one layout take the same memory and give the same shapes, whatever they hold.

        An equal one of such kernels is not tried again once two trials have agreed.
        """
        return False

    @property
    def tried_on_zeros(self) -> bool:
        """Whether zeros take the memory of any other block and give the same shapes: then a trial need read none."""
        return self.data_independent

    @property
    def tf32(self) -> bool:
        """Whether a device may round factors of single precision for its tensor cores."""
        return False

    @property
    def libraries(self) -> frozenset[Library]:
        """Libraries that it is known to call."""
        return frozenset()

    @property
    def is_ufunc(self) -> bool:
        """Whether it calls a ufunc, whose number of results is known."""
        return False

    @property
    def strip(self) -> int:
        """Elements of a block that it works on at a time, on the CPU; 0 for all of them."""
        return 0

    @property
    def state_size(self) -> float:
        """Numbers that a fold keeps for each element of its result."""
        return 1

    def shapes(self, nest: LoopNest) -> tuple[Shape, ...] | None:
        """Shape of each result, where axes that no block cuts decide on it: a trial needs no block as long as these."""
        return None

    def shortened(self, nest: LoopNest, short: LoopNest) -> Kernel | None:
        """The kernel of a nest for one that is `short` along axes that no block cuts; None if there is none.

        A trial of few elements then tells what long lines take. No result follows such an axis, but for new ones.
        """
        return None

    def of_whole_lines(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Shapes of the results, from those of the `shortened` kernel."""
        return shapes

    @property
    def most_counts(self) -> int:
        """Most counts that a part keeps, whatever its block; 0 of kernels that are no counts."""
        return 0

    def with_fewer(self, share: float) -> tuple[Kernel, Sequence[Became]]:
        """The kernel with this share of its counts, for a trial; and for each part what numbers become of which.

        A part of counts has no other axes: of other results lengths that are equal by chance are their own.
        """
        return self, [{} for _ in self.parts]

    def keeping(self, nbytes: int, elements: int) -> Kernel:
        """The kernel for a trial on a block of at most so many elements, whose folds keep no more than so many bytes.

        It takes the same for each element of a block, and keeps the same for each element of its results. There are
        fewer of these, if it is another kernel: see `lengthened`.
        """
        return self

    def lengthened(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Shapes of a fold's results, from those that a kernel has which keeps less."""
        return shapes

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> Kernel:
        """The kernel, told before the run the pass with its outputs, and their dtypes."""
        return self

    @abstractmethod
    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """Results of `blocks`, which must not be written to."""


class Fold(Kernel):
    """Combines the blocks' results along the axes that no output follows.

    The value between blocks is a tuple of arrays.
    """

    @property
    def kind(self) -> Kind:
        return Kind.FOLD

    @property
    def parts(self) -> Sequence[Fold | None]:
        return (self,)

    @abstractmethod
    def fold(self, value: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """`value` with a block added; None is the value of no block. If memory runs out, `value` stays as it was."""

    @abstractmethod
    def combine(self, left: Any, right: Any) -> Any:
        """The value of two chains of blocks together."""

    @abstractmethod
    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        """Results from the value of all the blocks."""

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        return self.finish(self.fold(None, blocks, nest, grid, index, box), nest, box)


class Carry(Kernel):
    """Passes something on to the next block along the scanned axis."""

    @property
    def kind(self) -> Kind:
        return Kind.CARRY

    @abstractmethod
    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        """Results of a block, and the carry for the next one; the first block gets None."""

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        return self.advance(None, blocks, nest, grid, index, box)[0]


class MultiKernel(Kernel):
    """Several parts that share what they compute on a box."""

    @property
    def kind(self) -> Kind:
        return Kind.MULTI

    @property
    @abstractmethod
    def parts(self) -> Sequence[Fold | None]: ...

    @abstractmethod
    def step(
        self, values: Sequence[Any], blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[list[Any], list[Any]]:
        """Values of the parts that fold, with a block added, and the results of those that do not.

        If memory runs out, the given values stay as they were.
        """


class KernelWrapper(Fold, Carry, MultiKernel):
    """Forwards to a kernel of any kind, with other blocks or at another place."""

    kernel: Any

    @abstractmethod
    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        """The wrapped kernel's own nest, and the box in it."""

    def given(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Sequence[Any]:
        """The wrapped kernel's own blocks."""
        return blocks

    @property
    def kind(self) -> Kind:
        kind: Kind = self.kernel.kind
        return kind

    @property
    def tf32(self) -> bool:
        return bool(self.kernel.tf32)

    @property
    def libraries(self) -> frozenset[Library]:
        found: frozenset[Library] = self.kernel.libraries
        return found

    @property
    def state_size(self) -> float:
        return float(self.kernel.state_size)

    def shapes(self, nest: LoopNest) -> tuple[Shape, ...] | None:
        shapes: tuple[Shape, ...] | None = self.kernel.shapes(nest)
        return shapes

    def of_whole_lines(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        found: Sequence[Shape] = self.kernel.of_whole_lines(shapes)
        return found

    @property
    def most_counts(self) -> int:
        return int(self.kernel.most_counts)

    def keeping(self, nbytes: int, elements: int) -> Kernel:
        fewer = self.kernel.keeping(nbytes, elements)
        return self if fewer is self.kernel else replace(cast(Any, self), kernel=fewer)

    def lengthened(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        found: Sequence[Shape] = self.kernel.lengthened(shapes)
        return found

    @property
    def parts(self) -> Sequence[Fold | None]:
        parts: Sequence[Fold | None] = (self,) if self.kind is Kind.FOLD else self.kernel.parts
        return parts

    def _own(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> tuple[Any, ...]:
        """The wrapped kernel's own arguments."""
        own, place = self.where(nest, box)
        return self.given(blocks, nest, grid, index, box), own, grid, index, place

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        return self.kernel(*self._own(blocks, nest, grid, index, box))

    def fold(self, value: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        return self.kernel.fold(value, *self._own(blocks, nest, grid, index, box))

    def combine(self, left: Any, right: Any) -> Any:
        return self.kernel.combine(left, right)

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        return self.kernel.finish(value, *self.where(nest, box))

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self.kernel.advance(carry, *self._own(blocks, nest, grid, index, box))
        return found

    def step(
        self, values: Sequence[Any], blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[list[Any], list[Any]]:
        found: tuple[list[Any], list[Any]] = self.kernel.step(values, *self._own(blocks, nest, grid, index, box))
        return found


@dataclass(frozen=True)
class SharedBlocks(KernelWrapper):
    """A kernel several of whose operands are one array: each gets the block of number `which`."""

    kernel: Any
    which: tuple[int, ...]

    @property
    def data_independent(self) -> bool:
        return bool(self.kernel.data_independent)

    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        return nest, box

    def shortened(self, nest: LoopNest, short: LoopNest) -> SharedBlocks | None:
        kernel = self.kernel.shortened(nest, short)
        return None if kernel is None else replace(self, kernel=kernel)

    def given(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Sequence[Any]:
        return [blocks[number] for number in self.which]

"""Fused operations as one kernel: shared values are computed once on each box, and intermediate values are not stored.

A program of loads, calls and results runs over registers, each of which is freed after its last use. A stencil needs
its inputs on more than the box. So every value is computed in a *window*: the box, grown by the halos of its users,
and clipped at the array's edges unless it is periodic there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, describe, shape_of, within
from chunkflow.core.halo import fill
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.errors import ResultError, ResultTypeError
from chunkflow.kernels.protocol import Became, KernelWrapper, Library, MultiKernel
from chunkflow.kernels.ranges import check_range
from chunkflow.system.references import only_listed

Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Window:
    """The part of the nest around a box in which a value is computed.

    Attributes
    ----------
    clipped, wrapped : tuple of (int, int)
        For each axis of the nest, how far the box is grown before and after. It is first grown by `clipped` and cut at
        the array's edges, then grown by `wrapped`, which may reach beyond periodic edges.
    longer : tuple of int
        How many elements the array has beyond the nest's end along each axis: windows, say, are fewer than elements.
    """

    clipped: tuple[tuple[int, int], ...]
    wrapped: tuple[tuple[int, int], ...]
    longer: tuple[int, ...]

    def region(self, box: Region, extents: Shape) -> Region:
        """The part of the nest, given the box."""
        sides = zip(box, self.clipped, self.wrapped, extents, self.longer, strict=True)
        return tuple(
            [
                slice(max(side.start - inner[0], 0) - outer[0], min(side.stop + inner[1], n + more) + outer[1])
                for side, inner, outer, n, more in sides
            ]
        )

    @property
    def halos(self) -> tuple[tuple[int, int], ...]:
        """How far it is grown in all."""
        return tuple((a + c, b + d) for (a, b), (c, d) in zip(self.clipped, self.wrapped, strict=True))


@dataclass(frozen=True)
class Load:
    """Take the part of an operand's block in a window."""

    operand: int
    axes: Axes
    window: int


@dataclass(frozen=True)
class Call:
    """Call a kernel on the results of earlier instructions.

    Attributes
    ----------
    kernel : Kernel
        Kernel of an operation whose results follow all the axes of its nest.
    nest : LoopNest
        The operation's own nest.
    axes : tuple
        For each axis of its nest the axis of the program's nest; None where it broadcasts.
    inputs : tuple of (int, int)
        Registers of the operands' blocks, and the windows in which they were computed.
    window : int
        Window in which its result is wanted.
    lies : tuple of int
        The axis of its nest that each dimension of the result follows.
    dtype : numpy.dtype, optional
        Dtype that the result is cast to.
    foreign : bool
        Whether it calls the user's own function, which may write to its blocks or keep its results.
    token : str
        Identifies the operation and its inputs.
    """

    kernel: Any
    nest: LoopNest
    axes: Axes
    inputs: tuple[tuple[int, int], ...]
    window: int
    lies: Shape
    dtype: Any = None
    foreign: bool = False
    token: str = field(default="", compare=False, metadata={"fleeting": True})


@dataclass(frozen=True)
class Pick:
    """Take one of several results of a call."""

    register: int
    item: int


@dataclass(frozen=True)
class Emit:
    """Hand values to a part of the kernel."""

    part: int
    registers: tuple[int, ...]


class Composite(Protocol):
    """Takes the place of several instructions, for which the device has a faster way."""

    def run(self, registers: list[Any], regions: Sequence[Region], grid: Grid, index: Sequence[int]) -> None:
        """Fill registers."""


Instruction = Load | Call | Pick | Emit | Composite


def read_by(instruction: Instruction) -> Sequence[int]:
    """Registers that an instruction reads."""
    if isinstance(instruction, Call):
        return [register for register, _ in instruction.inputs]
    if isinstance(instruction, Pick):
        return [instruction.register]
    return instruction.registers if isinstance(instruction, Emit) else ()


@dataclass(frozen=True)
class Folding(KernelWrapper):
    """A fold as one part of a program, on the nest that it was declared with; `dtype` is what results are cast to."""

    kernel: Any
    nest: LoopNest
    dtype: Any = None

    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        """The fold's own nest."""
        return self.nest, box

    def shapes(self, nest: LoopNest) -> tuple[Shape, ...] | None:
        return super().shapes(self.nest)

    def with_fewer(self, share: float) -> tuple[Folding, Sequence[Became]]:
        kernel, became = self.kernel.with_fewer(share)
        return replace(self, kernel=kernel), became

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        found = super().finish(value, nest, box)
        if self.dtype is None:
            return found
        if not isinstance(self.dtype, tuple):
            check_range(found, self.dtype, box)
            return cast_to(found, self.dtype)
        if not isinstance(found, tuple) or len(found) != len(self.dtype):
            given = f"a tuple of {len(found)} arrays" if isinstance(found, tuple) else "one array"
            raise ResultError(f"fn returned {given}; expected {len(self.dtype)}, as dtype= says")
        for each, dtype in zip(found, self.dtype, strict=True):
            check_range(each, dtype, box)
        return tuple([cast_to(each, dtype) for each, dtype in zip(found, self.dtype, strict=True)])


@dataclass(frozen=True)
class Fused(MultiKernel):
    """A program as a kernel of several parts.

    Attributes
    ----------
    program : tuple
        Instructions, each with the registers that are free after it. Each fills the register of its own number.
    windows : tuple of Window
        Windows in which values are computed; the first one is the box.
    folding : tuple of Folding or None
        The fold of each part; None for a part whose value is stored as it is.
    """

    program: tuple[tuple[Instruction, tuple[int, ...]], ...]
    windows: tuple[Window, ...]
    folding: tuple[Folding | None, ...]

    @property
    def parts(self) -> tuple[Folding | None, ...]:
        return self.folding

    def shapes(self, nest: LoopNest) -> tuple[Shape, ...] | None:
        return self.folding[0].shapes(nest) if len(self.folding) == 1 and self.folding[0] is not None else None

    @property
    def data_independent(self) -> bool:
        calls = [i for i, _ in self.program if isinstance(i, Call)]
        folds = [part.kernel for part in self.folding if part is not None]
        kernels = *(i.kernel for i in calls), *folds
        return not any(i.foreign for i in calls) and all(kernel.data_independent for kernel in kernels)

    @property
    def tried_on_zeros(self) -> bool:
        calls = [i.kernel for i, _ in self.program if isinstance(i, Call)]
        return all(k.tried_on_zeros for k in (*calls, *[part.kernel for part in self.folding if part is not None]))

    @property
    def libraries(self) -> frozenset[Library]:
        calls = [i.kernel for i, _ in self.program if isinstance(i, Call)]
        return frozenset().union(*(k.libraries for k in (*calls, *self.folding) if k is not None))

    @property
    def most_counts(self) -> int:
        return max([part.most_counts for part in self.folding if part is not None], default=0)

    def with_fewer(self, share: float) -> tuple[Fused, Sequence[Became]]:
        pairs = [(None, [{}]) if part is None else part.with_fewer(share) for part in self.folding]
        return replace(self, folding=tuple([part for part, _ in pairs])), [became for _, (became,) in pairs]

    def keeping(self, nbytes: int, elements: int) -> Fused:
        share = nbytes // max(1, sum(part is not None for part in self.folding))
        folding = tuple([part and part.keeping(share, elements) for part in self.folding])
        same = all(new is old for new, old in zip(folding, self.folding, strict=True))
        return self if same else replace(self, folding=cast("tuple[Folding | None, ...]", folding))

    def of_short_lines(self, lengths: Mapping[int, int]) -> Fused | None:
        """The program for lines of these lengths, along axes of its nest; None if neighbours along these are needed."""
        if any(any((*w.clipped[a], *w.wrapped[a], w.longer[a])) for w in self.windows for a in lengths):
            return None
        program = []
        for instruction, spent in self.program:
            if isinstance(instruction, Call):
                own = {i: lengths[a] for i, a in enumerate(instruction.axes) if a is not None and a in lengths}
                instruction = replace(instruction, nest=of_short(instruction.nest, own))
            program.append((instruction, spent))
        return replace(self, program=tuple(program))

    def step(
        self, values: Sequence[Any], blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[list[Any], list[Any]]:
        regions = [box, *(window.region(box, nest.extents) for window in self.windows[1:])]
        registers: list[Any] = [None] * len(self.program)
        folded = dict(zip([i for i, p in enumerate(self.folding) if p is not None], values, strict=True))
        stored: list[Any] = []
        for register, (instruction, spent) in enumerate(self.program):
            if isinstance(instruction, Load):
                operand = nest.operands[instruction.operand]
                wanted = along(regions[instruction.window], instruction.axes)
                block = blocks[instruction.operand]
                registers[register] = block[(*within(wanted, operand.region(box)), ...)]
                del block
            elif isinstance(instruction, Call):
                registers[register] = called(instruction, registers, regions, grid, index)
            elif isinstance(instruction, Pick):
                registers[register] = registers[instruction.register][instruction.item]
            elif not isinstance(instruction, Emit):
                instruction.run(registers, regions, grid, index)
            else:
                part, given = self.folding[instruction.part], [registers[r] for r in instruction.registers]
                if part is None:
                    stored.append(given.pop())
                else:
                    folded[instruction.part] = part.fold(folded[instruction.part], given, nest, grid, index, box)
                del given
            for old in spent:
                registers[old] = None
        return list(folded.values()), stored

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """All results of one block alone."""
        values, stored = self.step([None for p in self.folding if p is not None], blocks, nest, grid, index, box)
        found: list[Any] = []
        for part in self.folding:
            if part is None:
                found.append(stored.pop(0))
            else:
                results = part.finish(values.pop(0), nest, box)
                found += results if isinstance(results, tuple) else (results,)
        return tuple(found)

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> Fused:
        told = [
            part if part is None else replace(part, nest=replace(part.nest, outputs=outputs.outputs))
            for part, outputs in zip(self.folding, nest.parts, strict=True)
        ]
        return replace(self, folding=tuple(told))


@dataclass(frozen=True)
class Feeding(KernelWrapper):
    """A kernel that has a pass to itself (a scan, or one that needs whole axes), with the program that feeds it."""

    feeds: Fused
    kernel: Any
    nest: LoopNest

    @property
    def libraries(self) -> frozenset[Library]:
        return super().libraries | self.feeds.libraries

    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        """The fed kernel's own nest."""
        return self.nest, box

    def given(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Sequence[Any]:
        """What the program makes of the blocks."""
        return self.feeds.step([], blocks, nest, grid, index, box)[1]

    def shortened(self, nest: LoopNest, short: LoopNest) -> Feeding | None:
        lengths = {a: short.extents[a] for a in nest.whole}
        feeds, own = self.feeds.of_short_lines(lengths), of_short(self.nest, lengths)
        kernel = None if feeds is None else self.kernel.shortened(self.nest, own)
        return None if feeds is None or kernel is None else replace(self, feeds=feeds, kernel=kernel, nest=own)

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> Feeding:
        own = replace(self.nest, outputs=nest.outputs)
        return replace(self, kernel=self.kernel.informed(own, dtypes), nest=own)


def of_short(nest: LoopNest, lengths: Mapping[int, int]) -> LoopNest:
    """The nest with these lengths of some axes."""
    return replace(nest, extents=tuple(lengths.get(a, n) for a, n in enumerate(nest.extents)))


def along(region: Region, axes: Axes) -> Region:
    """The region of an array whose dimensions follow these axes of the nest."""
    return tuple([slice(0, 1) if a is None else region[a] for a in axes])


def called(call: Call, registers: Sequence[Any], regions: Sequence[Region], grid: Grid, index: Shape) -> Any:
    """The checked results of a call."""
    box = along(regions[call.window], call.axes)
    given = []
    for operand, (register, window) in zip(call.nest.operands, call.inputs, strict=True):
        block = registers[register]
        if operand.halo:
            axes = tuple([None if a is None else call.axes[a] for a in operand.axes])
            block = _padded(block, along(regions[window], axes), operand, box)
        given.append(block)
        del block
    if call.kernel.wants:
        sides = tuple([1 if a is None else grid.block[a] for a in call.axes])
        grid, index = Grid(call.nest.extents, sides), tuple([0 if a is None else index[a] for a in call.axes])
    result = call.kernel(_guarded(given) if call.foreign else given, call.nest, grid, index, box)
    if call.foreign:
        several = isinstance(result, tuple)
        results = list(result) if several else [result]
        del result  # the list alone refers to the arrays, unless the function does
        owned = [_own(results, i, given) for i in range(len(results))]
        result = tuple(owned) if several else owned[0]
        del results, owned
    del given
    expected = tuple([box[a].stop - box[a].start for a in call.lies])
    if not isinstance(result, tuple):
        if isinstance(call.dtype, tuple):
            raise ResultError("fn returned one array where a tuple was expected, as dtype= said")
        return _checked(result, expected, call.dtype, box)
    if not isinstance(call.dtype, tuple) and not call.kernel.is_ufunc:
        raise ResultError(
            f"fn returned a tuple of {len(result)} arrays: in an expression dtype= must say so, with one for each"
        )
    dtypes = call.dtype if isinstance(call.dtype, tuple) else (None,) * len(result)
    if len(dtypes) != len(result):
        raise ResultError(f"fn returned a tuple of {len(result)} arrays; expected {len(dtypes)}, as dtype= says")
    return tuple([_checked(r, expected, d, box) for r, d in zip(result, dtypes, strict=True)])


def _guarded(blocks: Sequence[Any]) -> list[Any]:
    """Blocks marked as read-only, where the array module supports it."""
    found = []
    for block in blocks:
        if isinstance(block, np.ndarray) and block.flags.writeable:
            block = block.view()
            block.flags.writeable = False
        found.append(block)
    return found


def _own(results: list[Any], i: int, given: Sequence[Any]) -> Any:
    """A result that its function no longer refers to, or a part of what it was given: else a copy."""
    if not hasattr(results[i], "base") or only_listed(results, i):
        return results[i]
    result = results[i]
    if result.base is None:
        return result.copy()
    kept = isinstance(result, np.ndarray) and not any(np.may_share_memory(result, block) for block in given)
    return result.copy() if kept else result


def _checked(result: Any, expected: Shape, dtype: Any, box: Region) -> Any:
    """A result, checked for its shape and cast to the dtype that was asked for."""
    if not hasattr(result, "dtype"):
        raise ResultTypeError(f"fn returned a {type(result).__name__}; expected an array of shape {expected}")
    if result.shape != expected:
        raise ResultError(
            f"fn returned shape {tuple(result.shape)}; expected {expected} for the region {describe(box)}. What feeds "
            "another operation keeps its blocks' shape: compute it by itself, with drop_axis=, new_axis= or chunks="
        )
    if isinstance(result, np.generic):
        result = np.asarray(result)
    if dtype is None:
        return result
    check_range(result, dtype, box)
    return cast_to(result, dtype)


def cast_to(result: Any, dtype: np.dtype) -> Any:
    """A result in another dtype, by the same_kind rule."""
    if not np.can_cast(result.dtype, dtype, "same_kind"):
        raise ResultTypeError(
            f"fn returned dtype {result.dtype}; expected {dtype}, or what casts to it by the same_kind rule: "
            "convert it in fn, by .astype, or name its dtype in dtype="
        )
    return result.astype(dtype, copy=False)


def _padded(block: Any, region: Region, operand: Operand, box: Region) -> Any:
    """A block with its boundary filled beyond the array's edges."""
    wanted = operand.region(box)
    if wanted == region:
        return block
    ends = zip(region, wanted, operand.extents, strict=True)
    # What neither the block has nor lies beyond the edges would be whatever is in the memory.
    assert all(have.start <= max(want.start, 0) and have.stop >= min(want.stop, n) for have, want, n in ends)
    whole = np.empty_like(block, shape=shape_of(wanted))
    whole[within(region, wanted)] = block
    fill(whole, wanted, operand.extents, operand.boundary)
    return whole

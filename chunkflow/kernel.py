"""One block's computation: call the function, check what it returned, cast it, halve it if memory runs out.

Knows the array module and the shapes that were planned; knows no lane, slot or store.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from chunkflow.devices.base import Device, inverse
from chunkflow.errors import BudgetError, ResultError, ResultTypeError
from chunkflow.grid import Grid, Region, Shape, describe, shape_of, shift, within
from chunkflow.ops.blockwise import Blockwise
from chunkflow.plan import Plan, Step
from chunkflow.staging import State
from chunkflow.trace import Trace
from chunkflow.units import format_bytes

T = TypeVar("T")


class Kernel(Protocol):
    """What an operation computes on one box of the loop nest: an array, or a tuple of them."""

    def __call__(self, blocks: Sequence[Any], nest: Blockwise, grid: Grid, index: Shape, box: Region) -> Any:
        """Results of `blocks`, which are not to be written to."""


class Fold(Kernel, Protocol):
    """A kernel whose blocks' results are combined along the axes that no output follows.

    The value between blocks is a tuple of arrays. Calling the kernel computes one block to its end.
    """

    def fold(self, value: Any, blocks: Sequence[Any], nest: Blockwise, grid: Grid, index: Shape, box: Region) -> Any:
        """`value` with a block added; None is the value of no block. If memory runs out `value` stays as it was."""

    def combine(self, left: Any, right: Any) -> Any:
        """Value of what two lanes have added up."""

    def finish(self, value: Any, nest: Blockwise, box: Region) -> Any:
        """Results from the value of all the blocks."""


class Carry(Kernel, Protocol):
    """A kernel that passes something on to the next block along the scanned axis."""

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: Blockwise, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        """Results of a block, and what the next one gets; None is what the first one gets."""


class BlockRunner:
    """Calls a kernel on blocks and gives back arrays just as the sinks want them.

    A block on which the function runs out of device memory is computed in halves, into a result of the
    planned size; later blocks of that size are halved from the start.
    """

    def __init__(self, kernel: Kernel, plan: Plan, device: Device, trace: Trace) -> None:
        self._kernel, self._plan, self._device, self._trace = kernel, plan, device, trace
        self._too_large: float = float("inf")
        # Results travel in pieces while later blocks compute, so they must own their memory and lie as
        # the sink does. Where nothing is staged they are stored before the lane goes on.
        self._own = plan.machine.staged

    def __call__(
        self,
        blocks: Sequence[Any],
        step: Step,
        state: State | None = None,
        parts: Sequence[State] = (),
        *,
        halve: bool = True,
    ) -> tuple[Any, ...]:
        """Results of one step, in the sinks' dtypes; without `halve`, running out of memory is the caller's affair.

        `state` is what the lane keeps between steps, `parts` what all lanes have kept when it is time to merge.

        Raises
        ------
        ResultError, ResultTypeError
            The function returned something else than planned.
        BudgetError
            The function runs out of memory on a single element.
        Exception
            Whatever the function raised, with the block's index and region added as a note.
        """
        try:
            if state is None:
                return self._run(blocks, step.index, step.box, halve)
            if self._plan.op.scan is not None:
                return self._advance(state, blocks, step.index, step.box, halve)
            kernel = cast(Fold, self._kernel)
            self._fold(state, blocks, step.index, step.box, halve)
            if not step.last:
                return ()
            # No name holds the merged value: a result that is part of it would not travel, but be copied.
            return self._settle(kernel.finish(self._merged(parts), self._plan.op, step.box), step.box)
        except BaseException as error:
            add_note(error, step.index, step.box)
            raise

    def _run(self, blocks: Sequence[Any], index: Shape, box: Region, halve: bool) -> tuple[Any, ...]:
        tiles = Grid(shape_of(box), self._plan.tile)
        if len(tiles) <= 1:
            values = self._attempt(blocks, index, box, halve)
            if values is not None:
                return values
        values = self._results(box)
        if len(tiles) <= 1:
            self._halves(blocks, index, box, values)
        else:
            start = [side.start for side in box]
            for tile in tiles.walk(range(len(box))):
                self._part(blocks, index, box, shift(tiles.region(tile), start), values)
        return values

    def _fold(self, state: State, blocks: Sequence[Any], index: Shape, box: Region, halve: bool) -> None:
        """Add a box to what the lane has added up."""
        plan, kernel = self._plan, cast(Fold, self._kernel)

        def add() -> Any:
            return kernel.fold(state.value, blocks, plan.op, plan.grid, index, box)

        value = self._within_memory(add, index, box, halve)
        if value is not None:
            state.value = value[0]
            return
        for half in self._parts(box, plan.op.folded):
            self._fold(state, self._inner(blocks, box, half), index, half, True)

    def _merged(self, parts: Sequence[State]) -> Any:
        """What all lanes have added up."""
        kernel = cast(Fold, self._kernel)
        value, parts[0].value = parts[0].value, None
        for part in parts[1:]:
            value = kernel.combine(value, part.value)
            part.value = None
        return value

    def _advance(self, state: State, blocks: Sequence[Any], index: Shape, box: Region, halve: bool) -> tuple[Any, ...]:
        """Results of a box, given what the one before passed on."""
        plan, kernel = self._plan, cast(Carry, self._kernel)

        def advance() -> Any:
            results, carry = kernel.advance(state.value, blocks, plan.op, plan.grid, index, box)
            return self._settle(results, box), carry

        value = self._within_memory(advance, index, box, halve)
        if value is not None:
            results, state.value = value[0]
            return cast(tuple[Any, ...], results)
        assert plan.op.scan is not None
        values = self._results(box)
        for half in self._parts(box, {plan.op.scan}):
            found = self._advance(state, self._inner(blocks, box, half), index, half, True)
            for place, result in zip(self._places(values, box, half), found, strict=True):
                place[...] = result
        return values

    def _attempt(self, blocks: Sequence[Any], index: Shape, box: Region, halve: bool = True) -> tuple[Any, ...] | None:
        """Results of a box, or None if memory ran out and it is to be halved."""

        def call() -> tuple[Any, ...]:
            return self._settle(self._kernel(blocks, self._plan.op, self._plan.grid, index, box), box)

        value = self._within_memory(call, index, box, halve)
        return None if value is None else value[0]

    def _within_memory(self, call: Callable[[], T], index: Shape, box: Region, halve: bool) -> tuple[T] | None:
        """What a call gives, or None if memory ran out and the box is to be halved."""
        size = math.prod(shape_of(box))
        if halve and size >= self._too_large:
            return None
        try:
            return (call(),)
        except BaseException as error:
            if not halve or isinstance(error, BudgetError) or not self._device.is_out_of_memory(error):
                raise
            message = str(error)
        # The failed call's temporaries are free only here, where the exception that held its frames is gone.
        self._too_large = min(self._too_large, size)
        self._trace.noted(f"fn ran out of memory on block {index} {describe(box)}: computed in halves ({message})")
        return None

    def _halves(self, blocks: Sequence[Any], index: Shape, box: Region, results: Sequence[Any]) -> None:
        """Compute a box in two parts, into `results`."""
        for half in self._parts(box, self._plan.op.divisible_by_ratio):
            self._part(blocks, index, box, half, results)

    def _part(self, blocks: Sequence[Any], index: Shape, box: Region, part: Region, results: Sequence[Any]) -> None:
        """Compute a part of a box into its place in `results`."""
        inner, places = self._inner(blocks, box, part), self._places(results, box, part)
        values = self._attempt(inner, index, part)
        if values is None:
            self._halves(inner, index, part, places)
        else:
            for place, value in zip(places, values, strict=True):
                place[...] = value

    def _inner(self, blocks: Sequence[Any], box: Region, part: Region) -> list[Any]:
        """The part's share of a box's blocks."""
        return [
            block[(*within(operand.region(part), operand.region(box)), ...)]
            for block, operand in zip(blocks, self._plan.op.operands, strict=True)
        ]

    def _places(self, results: Sequence[Any], box: Region, part: Region) -> list[Any]:
        """The part's share of a box's results."""
        return [
            result[(*within(output.region(part), output.region(box)), ...)]
            for result, output in zip(results, self._plan.op.outputs, strict=True)
        ]

    def _results(self, box: Region) -> tuple[Any, ...]:
        """Room for a box's results."""
        return tuple(
            self._empty(shape_of(output.region(box)), spec.dtype, spec.order)
            for output, spec in zip(self._plan.op.outputs, self._plan.outputs, strict=True)
        )

    def _parts(self, box: Region, axes: Collection[int]) -> tuple[Region, Region]:
        """Halves of a box, along the longest of some axes."""
        best: tuple[int, int, int] | None = None
        for axis in axes:
            side = box[axis]
            step = self._plan.op.step(axis)
            middle = side.start + (side.stop - side.start) // 2 // step * step
            if side.start < middle < side.stop and (best is None or side.stop - side.start > best[0]):
                best = (side.stop - side.start, axis, middle)
        if best is None:
            limit = self._plan.budget
            raise BudgetError(
                f"fn runs out of memory even on the smallest part {describe(box)} of a block, within a budget of "
                f"{format_bytes(limit)} ({limit} bytes): raise budget=, or let fn allocate less",
                limit=limit,
            )
        _, axis, middle = best
        start, stop = box[axis].start, box[axis].stop
        return (*box[:axis], slice(start, middle), *box[axis + 1 :]), (
            *box[:axis],
            slice(middle, stop),
            *box[axis + 1 :],
        )

    def _settle(self, value: Any, box: Region) -> tuple[Any, ...]:
        """Check what the function returned and bring it into the sinks' dtype and layout."""
        plan = self._plan
        values = list(value) if isinstance(value, tuple) else [value]
        del value
        if len(values) != len(plan.outputs):
            raise ResultError(f"fn returned {len(values)} arrays where {len(plan.outputs)} were expected")
        for i, (spec, output) in enumerate(zip(plan.outputs, plan.op.outputs, strict=True)):
            self._check(values[i], spec.dtype, shape_of(output.region(box)), box)
            if isinstance(values[i], np.generic):
                values[i] = np.asarray(values[i])
            if self._own:
                if values[i].dtype != spec.dtype or not travels(values, i, spec.order):
                    copy = self._empty(values[i].shape, spec.dtype, spec.order)
                    copy[...] = values[i]
                    values[i] = copy
            elif values[i].dtype != spec.dtype:
                values[i] = values[i].astype(spec.dtype)
        return tuple(values)

    def _check(self, array: Any, dtype: np.dtype, shape: Shape, box: Region) -> None:
        check_kind(array, self._device)
        if tuple(array.shape) != shape:
            raise ResultError(
                f"fn returned shape {tuple(array.shape)}; expected {shape} for the region {describe(box)}. "
                "If it removes, adds or resizes axes, say so with drop_axis=, new_axis= or chunks="
            )
        got = np.dtype(array.dtype)
        if got != dtype and not np.can_cast(got, dtype, "same_kind"):
            raise ResultTypeError(
                f"fn returned dtype {got}; expected {dtype} (or what casts to it by the same_kind rule)"
            )

    def _empty(self, shape: Shape, dtype: np.dtype, order: Shape) -> Any:
        array = self._device.xp.empty(tuple(shape[a] for a in order), dtype)
        back = inverse(order)
        return array if back is None else array.transpose(back)


def add_note(error: BaseException, index: Shape, box: Region) -> None:
    """Say on an exception in which block it happened."""
    error.add_note(f"chunkflow: in block {index}, region {describe(box)}")


def check_kind(value: Any, device: Device) -> None:
    """Refuse what is no array of the device."""
    if not device.is_array(value):
        raise ResultTypeError(f"fn returned {_kind(value)}; expected {device.xp.__name__}.ndarray on {device.name}")


def _kind(value: Any) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"a {name}" + (f" on {value.device}" if hasattr(value, "device") else "")


def travels(values: list[Any], i: int, order: Shape) -> bool:
    """Whether a result can be stored piece by piece as it is: contiguous in `order`, and nobody else's.

    A view of an input, or a buffer that the function keeps for its next call, would be overwritten on
    the way. Only an array that owns its memory and is known to `values` alone is safe.
    """
    return (
        values[i].base is None
        and sys.getrefcount(values[i]) <= _ALONE
        and bool(values[i].transpose(order).flags.c_contiguous)
    )


def _references_of_the_only_one() -> int:
    values = [np.empty(0)]
    return sys.getrefcount(values[0])


_ALONE = _references_of_the_only_one()

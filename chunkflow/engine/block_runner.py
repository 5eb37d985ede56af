"""Computes one block: calls the kernel, checks and casts its results, and halves the block if memory runs out.

Knows the array module and the planned shapes; knows no lane, buffer or store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, describe, shape_of, shift, within
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device, inverse
from chunkflow.engine.memory_watch import MemoryWatch
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Accumulator
from chunkflow.errors import BudgetError, ResultError, ResultTypeError
from chunkflow.kernels.protocol import Carry, Fold, Kernel, Kind, MultiKernel
from chunkflow.kernels.ranges import check_narrowed, check_range
from chunkflow.kernels.subnest import placed
from chunkflow.kernels.users import called, users_function
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.system.references import only_listed

T = TypeVar("T")
Turned = tuple[Accumulator, list[Accumulator]]
"""The accumulator of a chain, and at the end those of all chains."""


class BlockRunner:
    """Calls a kernel on blocks and returns arrays in the dtypes and layouts of the sinks.

    A block on which the function runs out of device memory is computed in halves, into a result of the
    planned size. Later blocks of that size are halved from the start.

    `seen` are the dtypes that a function of the user's gave in its trial call; None of those that somebody has said.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        device: Device,
        trace: Trace,
        watch: MemoryWatch | None = None,
        seen: tuple[np.dtype | None, ...] = (),
    ) -> None:
        self._watch, self._seen = watch, seen
        self._kernel, self._plan, self._device, self._trace = kernel, plan, device, trace
        self._folds, self._is_multi = kernel.parts, kernel.kind is Kind.MULTI
        self._too_large: float = float("inf")
        self._shortage = ""  # what it wanted when memory last ran out
        # Staged results are downloaded in pieces while later blocks compute, so they must own their memory and have
        # the sink's layout. Unstaged results are stored before the lane goes on.
        self._own = plan.machine.staged
        self._stored = [i for part in plan.op.parts if not part.folded for i in part.numbers]

    def __call__(
        self, blocks: Sequence[Any], step: Step, turns: Sequence[Turned] = (), *, halve: bool = True
    ) -> tuple[Any, ...]:
        """Results of one step, in the sinks' dtypes. Without `halve`, the caller handles running out of memory.

        For each of the step's turns, `turns` has the accumulator of its chain, and those of all chains at the step
        that merges them. Any error gets the block's index and region as a note.
        """
        try:
            if self._plan.op.scan is not None:
                return self._advance(turns[0][0], blocks, step.index, step.box, halve)
            found = self._run([state for state, _ in turns], blocks, step.index, step.box, halve)
            if not turns:
                return found
            arrays = dict(zip(self._stored, found, strict=True))
            del found
            for turn, (_, chains) in zip(step.turns, turns, strict=True):
                if turn.last:
                    numbers = self._plan.op.parts[turn.part].numbers
                    arrays.update(zip(numbers, self._finished(turn.part, chains, step), strict=True))
            return tuple([arrays.pop(i) for i, _ in step.stores])
        except BaseException as error:
            self.note(error, step)
            raise

    def note(self, error: BaseException, step: Step) -> None:
        """Add notes to an error that name the block, and what the device has to say."""
        add_note(error, step.index, placed(self._kernel, step.box), self._device)

    def _run(
        self, states: Sequence[Accumulator], blocks: Sequence[Any], index: Shape, box: Region, halve: bool
    ) -> tuple[Any, ...]:
        """The results of a box that are stored directly. The others are added to the accumulators in `states`."""
        tiles = Grid(shape_of(box), self._plan.tile)
        if len(tiles) <= 1:
            found = self._attempt(states, blocks, index, box, halve)
            if found is None:
                found = self._results(box)
                self._halves(states, blocks, index, box, found)
            return found
        blocks, values = self._recycled(blocks, box)
        start = [side.start for side in box]
        for tile in tiles.walk(range(len(box))):
            self._part(states, blocks, index, box, shift(tiles.region(tile), start), values)
        return values

    def _recycled(self, blocks: Sequence[Any], box: Region) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """The blocks, and arrays for the stored results of a box: one of the blocks, if the plan recycles it."""
        number = self._plan.recycled
        if number is None:
            return blocks, self._results(box)
        taken = blocks[number]
        seen = taken.view()
        seen.flags.writeable = False
        taken.flags.writeable = True
        return [seen if i == number else block for i, block in enumerate(blocks)], (taken,)

    def _finished(self, part: int, chains: Sequence[Accumulator], step: Step) -> tuple[Any, ...]:
        """Results of the merged accumulators of all chains."""
        kernel = cast(Fold, self._folds[part])
        try:
            # No variable refers to the merged value, or a result that is part of it would have to be copied.
            values = _listed(kernel.finish(self._merged(kernel, chains), self._plan.op, step.box))
            return self._settle(values, self._plan.op.parts[part].numbers, step.box)
        except BaseException as error:
            if isinstance(error, BudgetError) or not self._device.is_out_of_memory(error):
                raise
            # The block is already added, and merging may have overwritten its inputs: there is no second attempt.
            limit = self._plan.budget
            raise BudgetError(
                f"memory ran out while the partial results of {describe(step.box)} were merged. "
                f"{shortage(error, self._device)} The budget is {format_bytes(limit)} ({limit} bytes): raise budget=",
                needed=self._device.bytes_asked(error),
                limit=limit,
            ) from error

    @staticmethod
    def _merged(kernel: Fold, chains: Sequence[Accumulator]) -> Any:
        value, chains[0].value = chains[0].value, None
        for chain in chains[1:]:
            value = kernel.combine(value, chain.value)
            chain.value = None
        return value

    def _advance(
        self, state: Accumulator, blocks: Sequence[Any], index: Shape, box: Region, halve: bool
    ) -> tuple[Any, ...]:
        """Results of a box, given the carry of the box before it."""
        plan, kernel = self._plan, cast(Carry, self._kernel)

        def advance() -> Any:
            results, carry = kernel.advance(state.value, blocks, plan.op, plan.grid, index, box)
            values = _listed(results)
            del results
            return self._settle(values, self._stored, box), carry

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

    def _attempt(
        self, states: Sequence[Accumulator], blocks: Sequence[Any], index: Shape, box: Region, halve: bool = True
    ) -> tuple[Any, ...] | None:
        """As `_run`; None if memory ran out and the box must be halved. Nothing is added to `states` then."""

        def call() -> tuple[list[Any], tuple[Any, ...]]:
            values, results = self._compute([state.value for state in states], blocks, index, box)
            return values, self._settle(results, self._stored, box)

        found = self._within_memory(call, index, box, halve)
        if found is None:
            return None
        for state, value in zip(states, found[0][0], strict=True):
            state.value = value
        return found[0][1]

    def _compute(
        self, values: list[Any], blocks: Sequence[Any], index: Shape, box: Region
    ) -> tuple[list[Any], list[Any]]:
        kernel, plan = self._kernel, self._plan
        if not values:
            return [], _listed(kernel(blocks, plan.op, plan.grid, index, box))
        if self._is_multi:
            return cast(MultiKernel, kernel).step(values, blocks, plan.op, plan.grid, index, box)
        return [cast(Fold, kernel).fold(values[0], blocks, plan.op, plan.grid, index, box)], []

    def _within_memory(self, call: Callable[[], T], index: Shape, box: Region, halve: bool) -> tuple[T] | None:
        """The result of a call, in a tuple of one; None if memory ran out and the box must be halved."""
        size = math.prod(shape_of(box))
        if halve and size >= self._too_large:
            return None
        try:
            return (call() if self._watch is None else self._watch.counted(call, index, box),)
        except BaseException as error:
            if not halve or isinstance(error, BudgetError) or not self._device.is_out_of_memory(error):
                raise
            self._shortage, message = f" {shortage(error, self._device)}", str(error)
        # The failed call's temporaries are freed only now: the exception kept its frames alive.
        self._too_large = min(self._too_large, size)
        self._trace.noted(f"fn ran out of memory on block {index} {describe(box)}: computed in halves ({message})")
        return None

    def _halves(
        self, states: Sequence[Accumulator], blocks: Sequence[Any], index: Shape, box: Region, results: Sequence[Any]
    ) -> None:
        """Compute a box in halves, into `results`."""
        for half in self._parts(box, self._plan.op.divisible_by_ratio):
            self._part(states, blocks, index, box, half, results)

    def _part(
        self,
        states: Sequence[Accumulator],
        blocks: Sequence[Any],
        index: Shape,
        box: Region,
        part: Region,
        results: Sequence[Any],
    ) -> None:
        """Compute a part of a box into its place in `results`."""
        inner, places = self._inner(blocks, box, part), self._places(results, box, part)
        values = self._attempt(states, inner, index, part)
        if values is None:
            self._halves(states, inner, index, part, places)
        else:
            for place, value in zip(places, values, strict=True):
                place[...] = value

    def _inner(self, blocks: Sequence[Any], box: Region, part: Region) -> list[Any]:
        """The blocks of a part, as views of the box's blocks."""
        return [
            block[(*within(operand.region(part), operand.region(box)), ...)]
            for block, operand in zip(blocks, self._plan.op.operands, strict=True)
        ]

    def _places(self, results: Sequence[Any], box: Region, part: Region) -> list[Any]:
        """The results of a part, as views of the box's results."""
        outputs = [self._plan.op.outputs[i] for i in self._stored]
        return [
            result[(*within(output.region(part), output.region(box)), ...)]
            for result, output in zip(results, outputs, strict=True)
        ]

    def _results(self, box: Region) -> tuple[Any, ...]:
        """New arrays for the results of a box that are stored directly."""
        return tuple(
            [
                self._empty(shape_of(self._plan.op.outputs[i].region(box)), spec.dtype, spec.order)
                for i, spec in ((i, self._plan.outputs[i]) for i in self._stored)
            ]
        )

    def _parts(self, box: Region, axes: Collection[int]) -> tuple[Region, ...]:
        """Halves of a box, along the first of some axes, so that they have no gaps; with a halo along the longest."""
        lengths, middles = shape_of(box), dict[int, int]()
        for axis in axes:
            step = self._plan.op.step(axis)
            if half := lengths[axis] // 2 // step * step:
                middles[axis] = box[axis].start + half
        if not middles:
            limit, work = self._plan.budget, called(self._kernel)
            less = "" if users_function(self._kernel) is None else f", or let {work} allocate less"
            raise BudgetError(
                f"{work} runs out of memory even on the smallest part {describe(box)} of a block.{self._shortage} The "
                f"budget is {format_bytes(limit)} ({limit} bytes): raise budget={less}",
                limit=limit,
            )
        axis = max(middles, key=lengths.__getitem__) if self._plan.op.has_halo else min(middles)
        halves = slice(box[axis].start, middles[axis]), slice(middles[axis], box[axis].stop)
        return tuple([(*box[:axis], half, *box[axis + 1 :]) for half in halves])

    def _settle(self, values: list[Any], numbers: Sequence[int], box: Region) -> tuple[Any, ...]:
        """Check the results of the outputs with these `numbers`, and bring them into the sinks' dtypes and layouts.

        Nothing but the list may refer to the arrays.
        """
        if len(values) != len(numbers):
            raise ResultError(f"fn returned {len(values)} arrays where {len(numbers)} were expected")
        for i, number in enumerate(numbers):
            spec, output = self._plan.outputs[number], self._plan.op.outputs[number]
            self._check(values[i], spec.dtype, shape_of(output.region(box)), box)
            if self._seen and (seen := self._seen[number]) is not None:
                check_narrowed(values[i], seen, box)
            if isinstance(values[i], np.generic):
                values[i] = np.asarray(values[i])
            if self._own:
                if values[i].dtype != spec.dtype or not travels(values, i, spec.order):
                    copy = self._empty(values[i].shape, spec.dtype, spec.order)
                    copy[...] = values[i]
                    values[i] = copy
            elif values[i].dtype != spec.dtype:
                values[i] = values[i].astype(spec.dtype)
            elif (self._plan.apart or (len(values) > 1 and not self._plan.lends)) and not only_listed(values, i):
                # Before this result is stored, the next block or another result may overwrite the memory it views.
                values[i] = values[i].copy()
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
                f"fn returned dtype {got}; expected {dtype}, or what casts to it by the same_kind rule: convert it "
                "in fn, by .astype, or name its dtype in dtype="
            )
        check_range(array, dtype, box)

    def _empty(self, shape: Shape, dtype: np.dtype, order: Shape) -> Any:
        array = self._device.xp.empty(tuple(shape[a] for a in order), dtype)
        back = inverse(order)
        return array if back is None else array.transpose(back)


def _listed(value: Any) -> list[Any]:
    """The results of a kernel as a list, which alone refers to the arrays if the caller does not."""
    return list(value) if isinstance(value, tuple) else [value]


def add_note(error: BaseException, index: Shape, box: Region, device: Device) -> None:
    """Add a note to an exception that names the block, and what the device has to say of it."""
    error.add_note(f"chunkflow: in block {index}, region {describe(box)}")
    if isinstance(error, ValueError) and "read-only" in str(error):
        error.add_note(
            "chunkflow: a block may be the array's own memory, so a function does not write to it: let it return a new "
            "array, as b * 2 in place of b *= 2, or begin with b = b.copy()"
        )
    if hint := device.hint(error):
        error.add_note(hint)


def shortage(error: BaseException, device: Device) -> str:
    """What a function wanted when memory ran out, as a sentence."""
    asked = device.bytes_asked(error)
    if asked is not None:
        return f"It asked for {format_bytes(asked)} ({asked} bytes)."
    said = str(error).rstrip(".")
    return f"The error was: {said}." if said else "It did not say for how much it asked."


def check_kind(value: Any, device: Device) -> None:
    """Refuse a result that is no array of the device."""
    if not device.is_array(value):
        expected = f"{device.xp.__name__}.ndarray on {device.name}"
        raise ResultTypeError(f"fn returned {_kind(value)}; expected {expected}{_way_out(value, device.xp.__name__)}")


def _way_out(value: Any, module: str) -> str:
    """How a function returns an array in the place of something else; empty if that is not known."""
    if isinstance(value, np.ma.MaskedArray):
        return ": return its filled(value), and its mask as another result if that is wanted"
    if hasattr(value, "compute"):
        return ": return its compute()"
    if isinstance(value, bool | int | float | complex):
        return f": {module}.full_like(block, value) is one, and chunkflow.reduction has a number for many elements"
    return f": {module}.asarray(value) makes one" if isinstance(value, list) else ""


def _kind(value: Any) -> str:
    if value is None:
        return "None, as one without a return statement does"
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"a {name}" + (f" on {value.device}" if hasattr(value, "device") else "")


def travels(values: list[Any], i: int, order: Shape) -> bool:
    """Whether a result can be downloaded in pieces without a copy: it is contiguous in `order`, and nobody else's."""
    return only_listed(values, i) and bool(values[i].transpose(order).flags.c_contiguous)

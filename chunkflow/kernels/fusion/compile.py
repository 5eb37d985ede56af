"""Replaces chains of elementwise calls in a program by generated kernels (`chunkflow.kernels.fusion.codegen`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Grid, Region, shape_of
from chunkflow.kernels.fusion.codegen import ARGUMENTS, FORMS, Elementwise, Link, Text, power, text
from chunkflow.kernels.fusion.program import Call, Feeding, Fused, Instruction, Load, along, called, read_by
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.protocol import Kernel
from chunkflow.kernels.subnest import SubNestKernel

LONGEST = 48
"""Most calls in one chain, so that it compiles in reasonable time."""

MOST_ARRAYS = 24
"""Most arrays that go into a kernel and come out of it: its parameters have room for so many with eight dimensions."""


@dataclass(frozen=True)
class Nothing:
    """Takes the place of a call that a chain computes later."""

    def run(self, registers: list[Any], regions: Sequence[Region], grid: Grid, index: Sequence[int]) -> None:
        """Do nothing."""


class ChainedCall(NamedTuple):
    """A call of a chain: its register, and the registers that are free after it."""

    register: int
    call: Call
    spent: tuple[int, ...]


@dataclass(frozen=True)
class FusedCalls:
    """A chain: consecutive calls in one window, of which only the registers `results` are needed afterwards.

    `make` is the device's `Elementwise`. Equal chains take the same memory; their numbers may differ in sign, as 0 may.
    """

    calls: tuple[ChainedCall, ...]
    results: tuple[int, ...]
    make: Elementwise
    _inputs: tuple[int, ...] = field(init=False)
    _known: dict[tuple[np.dtype, ...], tuple[Text, Callable[..., Any]] | None] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        own = {step.register for step in self.calls}
        used = (register for step in self.calls for register, _ in step.call.inputs)
        object.__setattr__(self, "_inputs", tuple(dict.fromkeys(r for r in used if r not in own)))

    @property
    def arrays(self) -> int:
        """How many arrays go in and come out."""
        return len(self._inputs) + len(self.results)

    def run(self, registers: list[Any], regions: Sequence[Region], grid: Grid, index: Sequence[int]) -> None:
        """Compute the results, one call after the other if there is no generated kernel for such dtypes."""
        given = [registers[i] for i in self._inputs]
        dtypes = tuple([block.dtype for block in given])
        if dtypes not in self._known:
            self._known[dtypes] = self._compiled(dtypes)
        made = self._known[dtypes]
        if made is None:
            del given
            for register, call, spent in self.calls:
                registers[register] = called(call, registers, regions, grid, tuple(index))
                for old in spent:
                    registers[old] = None
            return
        written, kernel = made
        call = self.calls[0].call
        shape = shape_of(along(regions[call.window], call.axes))
        like = next((block for block in given if block.shape == shape), given[0])
        outputs = [np.empty_like(like, np.dtype(dtype), shape=shape) for dtype, _ in written.outputs]
        kernel(*given, *written.scalars, *outputs)
        for register, output in zip(self.results, outputs, strict=True):
            registers[register] = output

    def _compiled(self, dtypes: tuple[np.dtype, ...]) -> tuple[Text, Callable[..., Any]] | None:
        links = []
        for register, call, _ in self.calls:
            blocks = iter(call.inputs)
            ufunc, args = _plain(call.kernel)
            links.append(Link(register, ufunc, tuple([next(blocks)[:1] if a is SLOT else a for a in args])))
        written = text(links, self._inputs, dtypes, self.results)
        return None if written is None else (written, self.make(written.inputs, written.outputs, written.body))


def compiled(kernel: Kernel, make: Elementwise | None) -> Any:
    """The kernel, with its calls joined to chains where that is possible."""
    if make is None:
        return kernel
    if isinstance(kernel, Fused):
        return replace(kernel, program=_chained(kernel.program, make))
    if isinstance(kernel, Feeding):
        return replace(kernel, feeds=replace(kernel.feeds, program=_chained(kernel.feeds.program, make)))
    if isinstance(kernel, SubNestKernel):
        return replace(kernel, kernel=compiled(kernel.kernel, make))
    return kernel


Program = tuple[tuple[Instruction, tuple[int, ...]], ...]


def _chained(program: Program, make: Elementwise) -> Program:
    """The program with chains. What is loaded between the calls of a chain is loaded before it."""
    found = list(program)
    group: list[ChainedCall] = []

    def close() -> None:
        if len(group) > 1:
            own = {step.register for step in group}
            after = {r for i, (instruction, _) in enumerate(program) if i not in own for r in read_by(instruction)}
            results = tuple([step.register for step in group if step.register in after])
            chain = FusedCalls(tuple(group), results, make)
            if chain.arrays <= MOST_ARRAYS:
                for step in group:
                    found[step.register] = (Nothing(), ())
                found[group[-1].register] = (chain, tuple([old for step in group for old in step.spent]))
        group.clear()

    for register, (instruction, spent) in enumerate(program):
        if isinstance(instruction, Load):
            continue
        if not isinstance(instruction, Call) or not _chains(instruction):
            close()
            continue
        if group:
            first = group[0].call
            if len(group) == LONGEST or (first.window, first.axes) != (instruction.window, instruction.axes):
                close()
        group.append(ChainedCall(register, instruction, spent))
    close()
    return tuple(found)


def _chains(call: Call) -> bool:
    """Whether a call is a plain function of arrays and scalars that has a form."""
    kernel = call.kernel
    if call.foreign or call.dtype is not None or not isinstance(kernel, MapKernel) or kernel.kwargs or kernel.wants:
        return False
    ufunc, args = _plain(kernel)
    return (
        ufunc in FORMS
        and ARGUMENTS.get(ufunc, getattr(ufunc, "nin", None)) == len(args)
        and all(a is SLOT or isinstance(a, int | float | np.number | np.bool_) for a in args)
        and call.lies == tuple(range(len(call.axes)))
        and not any(operand.halo for operand in call.nest.operands)
    )


def _plain(kernel: MapKernel) -> tuple[Any, tuple[Any, ...]]:
    """The function and its arguments; `power` with exponent 2 is a square."""
    if kernel.fn is power and kernel.args[0] is SLOT and type(kernel.args[1]) is int and kernel.args[1] == 2:
        return np.square, kernel.args[:1]
    return kernel.fn, kernel.args

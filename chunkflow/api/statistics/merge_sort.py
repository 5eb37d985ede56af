"""Sorting of lines that do not fit the budget: sorted runs are stored, and merged by ranks.

A pass sorts pieces of the lines, as long as the budget allows. Another one makes each part of the result: it gathers
the pieces' elements of these ranks alone (`chunkflow.kernels.statistics.merging`), and sorts them. So each element is
read, written between, read again and written once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow import devices
from chunkflow.api.operation import ArraySpec, Declared, MultiPass, Options, Request, execute
from chunkflow.api.statistics.bins import in_memory
from chunkflow.api.statistics.merged_lines import MergedLines
from chunkflow.core.grid import Shape, fit
from chunkflow.core.nest import nest
from chunkflow.core.units import format_bytes
from chunkflow.engine.budget import bytes_left
from chunkflow.engine.dry_run import is_dry, note
from chunkflow.engine.outputs import check_overlap
from chunkflow.errors import BudgetError
from chunkflow.graph.nodes import has_lazy, node_of
from chunkflow.graph.outputs import leaves
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.sorting import places_in_order, sorted_lines, sorted_parts, with_places
from chunkflow.stores import open_source, open_target, spec_of
from chunkflow.stores.publication.scratch import Scratch

RUNS, PARTS = 6, 6
"""Bytes of the budget for each byte of a run, and of a part of the result, that are tried first.

Runs are shorter than they might be, so that several are sorted at a time. The longer both are, the longer is what a
part takes from each run, and the faster it is copied.
"""

VALUES, PAIRS = 12, 6
"""The same where sorting surely has room for its copies, without places and with them."""

LEAST = 24 << 10
"""Bytes of the budget for the shortest runs that are worth while."""


def is_long(spec: ArraySpec, axis: int, options: Options, *, of_expression: bool = False) -> bool:
    """Whether a line takes more than the budget: with its result and what sorting copies; elements must have keys.

    What an expression takes besides is not known: as much again.
    """
    run = devices.resolve(options.device)
    needed = spec.shape[axis] * (3 * spec.dtype.itemsize + 16) * (1 + of_expression)
    keyed = spec.dtype.kind in "biuf" and spec.dtype.itemsize <= 8
    return keyed and spec.size > 0 and needed > max(LEAST, bytes_left(options.budget, run) - run.reserve)


def merged(x: Any, axis: int, how: dict[str, Any], options: Options, *, places: bool) -> MultiPass:
    """The elements of each line along an axis in order, or their `places` in it, of which equal ones keep their order.

    `how` are NumPy's arguments.
    """
    spec = spec_of(x)
    stable = bool(how["stable"]) or how["kind"] in ("stable", "mergesort")
    dtype = np.dtype(np.intp) if places else spec.dtype.newbyteorder("=")

    def run() -> Any:
        target = open_target(options.out, overwrite=options.overwrite)
        first = _runs(x, axis, 1, how, options, places=places)
        if not has_lazy(x):  # of an expression what it reads is checked
            check_overlap(first.declare([spec], ()), [open_source(x)], {0: target})
        device = devices.resolve(options.device)
        room = bytes_left(options.budget, device) - device.reserve
        _check_room(LEAST, room, options, f"lines of {spec.shape[axis]} elements are sorted in runs")
        size = dtype.itemsize + places * spec.dtype.itemsize
        length, unit = _length(spec.shape, _chunks(x), axis, room // (RUNS * size))
        sure = size * (PAIRS if places else VALUES)
        made = target.describe(spec.shape, dtype, _sides(spec.shape, None, axis, room // sure))
        chunk = math.prod(min(c, n) for c, n in zip(made.chunks or (), spec.shape, strict=False))
        _check_room(chunk * sure, room, options, f"lines are merged into chunks {made.chunks} of {made.name}")
        scratch = Scratch(target.name, "sort")
        try:
            names = ("runs", "places") if places else ("runs",)
            outs = [None if made.storage.in_memory else os.path.join(scratch.folder, f"{name}.npy") for name in names]
            kept = replace(in_memory(options), out=tuple(outs) if places else outs[0])
            while True:
                try:
                    found = execute(_runs(x, axis, length, how, kept, places=places))
                    break
                except BudgetError:  # what else is taken is known when it is tried
                    if length <= unit:
                        unit = 1  # chunks are cut, and read again
                    if length <= LEAST // (RUNS * size):
                        raise
                    length = max(unit, length // 2 // unit * unit)
            if is_dry():
                note("merges the sorted runs")
                return None
            runs, order = map(np.asarray, found) if places else (np.asarray(found), None)
            pieces = [(runs, None), (runs, order)] if places else [(runs, None)]
            return _merged_runs(pieces, axis, length, made.chunks, room // (PARTS * size), options, stable=stable)
        finally:
            scratch.end()

    return MultiPass((x,), run, options)


def _chunks(x: Any) -> Shape:
    """Chunks of an array, or of those that an expression of its shape reads."""
    spec = spec_of(x)
    read = [leaf.spec for leaf in leaves(node_of(x), ())] if has_lazy(x) else [spec]
    known = [one.chunks for one in read if one.chunks is not None and one.shape == spec.shape]
    return tuple(map(max, zip(*known, strict=True))) if known else (1,) * len(spec.shape)


def _length(shape: Shape, chunks: Shape, axis: int, room: int) -> tuple[int, int]:
    """Length of the runs: of whole chunks where there is room for all lines of them, else of one line's elements.

    With it goes the unit of which it is a multiple.
    """
    several, unit = math.prod(chunks) // chunks[axis], chunks[axis]
    found = room // several // unit * unit or room // unit * unit
    return min(shape[axis], found or max(1, room)), unit if found else 1


def _sides(shape: Shape, chunks: Shape | None, axis: int, room: int) -> Shape:
    """Sides of the parts that are merged at a time, of whole chunks.

    They are long along the axis, since places in the runs are known ahead.
    """
    order = [a for a in range(len(shape)) if a != axis] + [axis]
    sides = fit(shape, (1,) * len(shape), order, max(1, room))
    chunks = chunks or (1,) * len(sides)
    return tuple([min(n, max(c, side // c * c)) for side, c, n in zip(sides, chunks, shape, strict=True)])


def _check_room(needed: int, room: int, options: Options, what: str) -> None:
    """Refuse what takes more bytes than there is room for."""
    if needed > room:
        limit = bytes_left(options.budget, devices.resolve(options.device))
        raise BudgetError(
            f"{what}, which takes {format_bytes(needed)}, and the budget leaves {format_bytes(max(room, 0))}: raise "
            f"budget= to at least {limit - room + needed}",
            needed=needed,
            limit=limit,
            smallest=limit - room + needed,
        )


def _runs(x: Any, axis: int, length: int, how: dict[str, Any], options: Options, *, places: bool) -> Request:
    """The lines in sorted pieces along the last axis, and with `places` those in the pieces."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        ndim = len(specs[0].shape)
        given: dict[str, Any] = {"axis": axis} if places else {"axis": axis, "how": how}
        dims = (*(a for a in range(ndim) if a != axis), axis)
        kernel = MapKernel(with_places if places else sorted_lines, (SLOT,), given, dims)
        block = tuple(length if a == axis else None for a in range(ndim))
        return Declared(nest([specs[0].shape]), kernel, dims, block)

    return Request(declare, (x,), options)


def _merged_runs(
    pieces: Sequence[tuple[np.ndarray, np.ndarray | None]],
    axis: int,
    length: int,
    chunks: Shape | None,
    room: int,
    options: Options,
    *,
    stable: bool,
) -> Any:
    """Merge runs of some length in parts of at most `room` elements, or of ever fewer, down to a chunk."""
    *others, n = pieces[0][0].shape
    shape = (*others[:axis], n, *others[axis:])
    while True:
        sides = _sides(shape, chunks, axis, room)
        lines = [MergedLines(runs, places, axis, length, sides[axis]) for runs, places in pieces]
        try:
            return execute(_merge(lines, axis, sides, options, stable=stable))
        except BudgetError:
            if sides == _sides(shape, chunks, axis, 1):
                raise
            room //= 2


def _merge(lines: Sequence[MergedLines], axis: int, sides: Shape, options: Options, *, stable: bool) -> Request:
    """Parts of lines in order; given their places in the lines too, these."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        ndim = len(specs[0].shape)
        given: dict[str, Any] = {"axis": axis} if len(specs) > 1 else {"axis": axis, "how": {"stable": stable}}
        fn, axes = places_in_order if len(specs) > 1 else sorted_parts, tuple(range(ndim))
        kernel = MapKernel(fn, (SLOT,) * len(specs), given, axes)
        return Declared(nest([spec.shape for spec in specs]), kernel, axes, tuple(sides))

    return Request(declare, lines, options)

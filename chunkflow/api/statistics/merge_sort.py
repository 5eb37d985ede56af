"""Sorting of one line that does not fit the budget: sorted runs are stored, and merged by ranks.

A pass sorts pieces of the line, as long as the budget allows. Then each part of the result is found from the pieces'
elements of these ranks alone (`chunkflow.kernels.statistics.merging`), on the host. So each element is read, written
between, read again and written once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow import devices
from chunkflow.api.operation import ArraySpec, Declared, MultiPass, Options, Request, execute
from chunkflow.api.statistics.bins import in_memory
from chunkflow.api.statistics.order_statistics import all_stored
from chunkflow.core.nest import nest
from chunkflow.engine.budget import bytes_left
from chunkflow.engine.dry_run import is_dry
from chunkflow.graph.indexing import indexed
from chunkflow.graph.nodes import Lazy, node_of
from chunkflow.graph.reshaping import reshaped
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.merging import Merged
from chunkflow.kernels.statistics.sorting import of_lines, with_places
from chunkflow.stores import open_target, spec_of
from chunkflow.stores.publication.scratch import Scratch

RUN, PART = 96, 48
"""Bytes of the budget for each element of a run, and of a part of the result: values, places, and copies of both."""


def is_long(spec: ArraySpec, options: Options) -> bool:
    """Whether a line takes more than the budget: with its result and what sorting copies; elements must have keys."""
    run = devices.resolve(options.device)
    needed = spec.shape[0] * (3 * spec.dtype.itemsize + 16)
    keyed = spec.dtype.kind in "biuf" and spec.dtype.itemsize <= 8
    return keyed and needed > max(0, bytes_left(options.budget, run) - run.reserve)


def merged(x: Any, how: dict[str, Any], options: Options, *, places: bool) -> MultiPass:
    """The sorted elements of an array of one dimension, or their `places` in it, of which equal ones keep their order.

    `how` are NumPy's arguments.
    """
    spec = spec_of(x)
    stable = bool(how["stable"]) or how["kind"] in ("stable", "mergesort")
    dtype = np.dtype(np.intp) if places else spec.dtype.newbyteorder("=")

    def run() -> Any:
        target = open_target(options.out, overwrite=options.overwrite)
        held = target.describe(spec.shape, dtype, None).storage.in_memory
        device = devices.resolve(options.device)
        room = bytes_left(options.budget, device) - device.reserve
        scratch = Scratch(target.name, "sort")
        runs: list[np.ndarray] = []
        orders: list[np.ndarray] = []
        try:
            for number, piece in enumerate(_pieces(spec, max(1, room // RUN))):
                lines = Lazy(reshaped(indexed(node_of(x), (piece[0],)), piece[1]))
                names = [f"{number}.{name}.npy" for name in ("runs", *(["places"] if places else []))]
                outs = tuple(None if held else os.path.join(scratch.folder, name) for name in names)
                found = execute(_sorted_lines(lines, how, replace(in_memory(options), out=outs if places else outs[0])))
                for rows, kept in zip(found if places else (found,), (runs, orders), strict=False):
                    kept += [np.asarray(row) for row in rows] if not is_dry() else []
            if is_dry():
                return None
            result = Merged(runs, orders if places else None, stable)
            return all_stored([result], [target], options, max(1, room // PART))[0]  # type: ignore[list-item]
        finally:
            runs.clear()
            orders.clear()
            scratch.end()

    return MultiPass((x,), run, options)


def _pieces(spec: ArraySpec, length: int) -> Iterator[tuple[slice, tuple[int, int]]]:
    """Ranges of the line, each with the shape of its runs: runs of a length, or of whole chunks, and what is left."""
    n, unit = spec.shape[0], 1 if spec.chunks is None else spec.chunks[0]
    length = min(n, length // unit * unit or length)
    whole = n // length * length
    yield slice(0, whole), (n // length, length)
    if whole < n:
        yield slice(whole, n), (1, n - whole)


def _sorted_lines(lines: Lazy, how: dict[str, Any], options: Options) -> Request:
    """Sorted rows, and with several outputs their places."""
    several = isinstance(options.out, tuple)

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        given: dict[str, Any] = {} if several else {"fn": np.sort, "axis": 1, "how": how}
        kernel = MapKernel(with_places if several else of_lines, (SLOT,), given, (0, 1))
        return Declared(nest([specs[0].shape], 1), kernel, (0, 1))

    return Request(declare, (lines,), options)

"""The distinct values of an array, how often each occurs, and where."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from chunkflow import devices, stores
from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    Declared,
    MultiPass,
    Options,
    Request,
    RunOptions,
    execute,
    operation,
)
from chunkflow.api.statistics.counted import counted
from chunkflow.api.statistics.order_statistics import SHARE, all_stored, folded
from chunkflow.core.chunking import block_sides
from chunkflow.core.memory import RoomForEach
from chunkflow.core.nest import nest
from chunkflow.core.units import format_bytes
from chunkflow.engine.budget import bytes_left, lease
from chunkflow.engine.completion import settled, together
from chunkflow.engine.dry_run import is_dry, must_suffice, stand_ins
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.distinct import Distinct, TooManyValuesError, places_among
from chunkflow.kernels.statistics.radix_keys import from_keys, key_dtype
from chunkflow.stores import spec_of

FEW = 1 << 16
"""Number of distinct values that the first pass has room for."""


@operation
def unique(
    x: Any,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    equal_nan: bool = True,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass:
    """Distinct values of an array of real numbers or bools, sorted, as ``numpy.unique``; and how often each occurs.

    With ``return_counts=True`` it is the way to count values that are large, negative or far apart, where
    `chunkflow.bincount` would count up to the largest.

    One pass, as a rule. With more than 65536 distinct values it starts again, with room for sixteen times as many,
    until there is room for all or a quarter of the budget is taken. Zeros of both signs are one value, 0.0. One more
    pass writes `return_inverse`, as large as `x`.

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`, of any shape. An expression is computed at once, in each pass.
    return_index : bool
        Whether to tell where each value is first, counted in C order.
    return_inverse : bool
        Whether to tell for each element which of the values it is.
    return_counts : bool
        Whether to count how often each value occurs.
    equal_nan : bool
        Whether all NaN are one value; else each of them is one by itself.
    out : array, str, path or None
        As for `chunkflow.map`; a tuple of them where there are several results.

    Returns
    -------
    values : array
        `out`, opened where it was a path.
    index : array
        Int64, if `return_index`.
    inverse : array
        Integers (``numpy.intp``) in the shape of `x`, if `return_inverse`: ``values[inverse]`` is `x`.
    counts : array
        Int64, if `return_counts`.

    Raises
    ------
    ArgumentTypeError
        `x` is not of bools or real numbers of at most 64 bits.
    ArgumentError
        `out` is no tuple where there are several results, or the other way round. `return_index` or `return_inverse`
        where ``equal_nan=False``.
    BudgetError
        There are more distinct values than a quarter of the budget holds.

    Examples
    --------
    >>> cf.unique(np.array([[3, 1], [7, 3]]), return_counts=True, device="cpu")
    (array([1, 3, 7]), array([1, 2, 1]))
    >>> cf.unique(np.array([[3, 1], [7, 3]]), return_inverse=True, device="cpu")
    (array([1, 3, 7]), array([[1, 0],
           [2, 1]]))
    """
    chosen = Options(**options)

    def run() -> Any:
        return _distinct(x, return_index, return_inverse, return_counts, equal_nan, chunks, chosen)

    return MultiPass((x,), run, chosen, alone=not return_inverse)


def _distinct(
    x: Any,
    return_index: bool,
    return_inverse: bool,
    return_counts: bool,
    equal_nan: bool,
    chunks: Chunks,
    options: Options,
) -> Any:
    spec = spec_of(x)
    check_countable(spec, "unique")
    apart = spec.dtype.kind == "f" and not equal_nan
    if apart and (return_index or return_inverse):
        name = "return_index" if return_index else "return_inverse"
        raise ArgumentError(f"{name}=True needs equal_nan=True: places of single NaN are not kept")
    out, wanted = options.out, 1 + sum(map(bool, (return_index, return_inverse, return_counts)))
    if isinstance(out, list) or (out is not None and isinstance(out, tuple) != (wanted > 1)):
        raise ArgumentError(
            "out must be a tuple, with a place for each result, where any of return_index, return_inverse and "
            "return_counts is True; else one place"
        )
    outs = out if isinstance(out, tuple) else (out,) * wanted
    if len(outs) != wanted:
        raise ArgumentError(
            f"out has {len(outs)} entries, and there are {wanted} results, the values first: give one for each"
        )
    at = 1 + bool(return_index)  # the place of the inverse among the results
    inverse = replace(options, out=outs[at]) if return_inverse else None
    target = None if inverse is None else stores.open_target(inverse.out, overwrite=inverse.overwrite)
    if target is not None:
        target.describe(spec.shape, np.dtype(np.intp), None)
        outs = (*outs[:at], *outs[at + 1 :])
    targets = [stores.open_target(o, overwrite=options.overwrite) for o in outs]
    known = distinct(x, chunks, options, index=bool(return_index), apart=apart)
    values = known.keys.view(spec.dtype.newbyteorder("=")) if is_dry() else from_keys(known.keys, spec.dtype)
    found = [values, *([known.first] if return_index else []), *([known.counts] if return_counts else [])]
    with together(targets if target is None else [*targets, target], options.sync):
        places = [] if inverse is None else [execute(_inverse(x, values, chunks, inverse))]
        if is_dry():
            return None
        results = [*all_stored(found, targets, options)]
    results[at:at] = places
    return settled(tuple(results)) if wanted > 1 else results[0]


def _inverse(x: Any, values: np.ndarray, chunks: Chunks, options: Options) -> Request:
    """Which of the sorted values each element is."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        axes = tuple(np.arange(len(shape)).tolist())
        kernel = MapKernel(places_among, (SLOT,), {"values": values}, axes)
        return Declared(nest([shape]), kernel, axes, block_sides(chunks, shape))

    return Request(declare, (x,), replace(options, dtype=np.dtype(np.intp)))


@dataclass(frozen=True)
class DistinctKeys:
    """The different keys of an array (see `chunkflow.kernels.statistics.radix_keys`), sorted, and their counts.

    If it is asked for, where each is first, counted in C order.
    """

    keys: np.ndarray
    counts: np.ndarray
    first: np.ndarray


def check_countable(spec: ArraySpec, name: str) -> None:
    """Refuse arrays of dtypes that have no keys."""
    if spec.dtype.kind not in "biuf" or spec.dtype.itemsize > 8:
        raise ArgumentTypeError(
            f"{name} takes bools and real numbers of at most 64 bits, and {spec.name} is of {spec.dtype}: convert it, "
            "as x.real and x.imag of complex numbers"
        )


def distinct(x: Any, chunks: Chunks, options: Options, *, index: bool = False, apart: bool = False) -> DistinctKeys:
    """The different keys of an array, and with `index` where each is first; NaN may be kept `apart`.

    In a dry run they are placeholders, as many as there is room for.
    """
    spec = spec_of(x)
    block = block_sides(chunks, spec.shape)
    run = devices.resolve(options.device)
    room = bytes_left(options.budget, run) - run.reserve
    each = 8 * (1 + index) + spec.dtype.itemsize
    copies = 6.0
    most = 2 if spec.dtype.kind == "b" else 1 << 8 * spec.dtype.itemsize
    value = copies * run.machine.lanes * each
    held = max(1, int(room / SHARE / value))
    most = spec.size if apart else min(spec.size, most)
    needs = RoomForEach(run.reserve, SHARE * value, most)
    if must_suffice():
        if held < most:
            raise _too_many(spec, most, held, room, needs)
        capacity = most
    else:
        capacity = min(FEW, most, held)
    keys, counts, places = np.empty(0, key_dtype(spec.dtype)), np.empty(0, "i8"), np.empty(0, "i8")
    chosen = replace(options, out=None, overwrite=False, resume=False, name=None, device=run)
    with lease(options.budget, run) as leased:  # one for all tries: the next one has what the last one's error held
        if leased.is_own:
            chosen = replace(chosen, budget=leased.budget)
        while capacity:
            declare = functools.partial(folded, Distinct(capacity, index), (None,), block, copies)
            try:
                keys, counts, *first, number = execute(Request(declare, (x,), chosen))
                if is_dry():
                    made = [ArraySpec("", (capacity,), a.dtype) for a in (keys, counts, places)]
                    return DistinctKeys(*stand_ins(made))
                keys, counts = keys[: number[0]].copy(), counts[: number[0]].copy()
                places = first[0][: number[0]].copy() if first else places
                break
            except TooManyValuesError as error:
                found = error.number
            if capacity >= held:
                raise _too_many(spec, found, held, room, counted(x, chunks, chosen, needs))
            capacity = min(16 * capacity, most, held)
    if apart and len(keys) and keys[-1] == ~keys.dtype.type(0):  # the key of NaN
        nans = int(counts[-1])
        if len(keys) - 1 + nans > held:
            raise _too_many(spec, len(keys) - 1 + nans, held, room, needs)
        keys = np.concatenate((keys, np.full(nans - 1, keys[-1])))
        counts = np.concatenate((counts[:-1], np.ones(nans, counts.dtype)))
    return DistinctKeys(keys, counts, places)


def _too_many(spec: ArraySpec, number: int, held: int, room: int, needs: RoomForEach) -> BudgetError:
    """The error of more distinct values than there is room for."""
    return BudgetError(
        f"{spec.name} has more distinct values ({number} or more) than a quarter of the budget holds ({held}, of "
        f"{format_bytes(max(room, 0))}, {format_bytes(needs.each / SHARE)} each): {needs.said(number)}; or use "
        "histogram; cf.sort(x, axis=None) needs no room for all, and puts equal ones side by side",
        needed=needs.enough,
        limit=max(room, 0),
        smallest=needs.enough,
        likely=needs.likely(number),
    )

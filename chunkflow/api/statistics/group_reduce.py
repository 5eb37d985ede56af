"""Reductions of the elements of each group, in one pass for all functions: means of months, say."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    Declared,
    Options,
    Request,
    RunOptions,
    bare,
    check_int,
    operation,
)
from chunkflow.api.reductions.request import Axis, asked, number_of
from chunkflow.api.statistics.order_statistics import median_of, quantile_of
from chunkflow.api.statistics.unique import unique
from chunkflow.core.axes import ordered_axes
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.nodes import has_lazy
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.group_reduce import (
    FUNCTIONS,
    NEAR,
    Function,
    GroupQuantiles,
    GroupReduction,
    Groups,
    GroupStatistics,
    Lookup,
)
from chunkflow.kernels.statistics.sorting import kind_of
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of
from chunkflow.stores.memory import Made

AT_ONCE = 1 << 14
"""Labels in memory of which the groups are found together."""
OBJECTS_AT_ONCE = 1 << 11
"""The same of objects, which become strings as long as the longest."""

MIXED = "labels that are objects must all be strings, or all numbers"
MISSING = ("None", "nan", "NaT", "<NA>")
"""What objects that are no label, but missing, say of themselves."""

ORDER = ("median", "nanmedian", "quantile", "nanquantile")
"""Functions that need all elements of a group at once."""


@operation
def groupby_reduce(
    values: Any,
    *by: Any,
    func: str | Sequence[str],
    expected_groups: Any = None,
    isbin: bool | Sequence[bool] = False,
    axis: Axis = None,
    fill_value: Any = None,
    dtype: Any = None,
    min_count: int | None = None,
    ddof: float = 0,
    q: Any = None,
    closed: str = "right",
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> Request:
    """Reductions of the elements that share a label, along axes: means of each month, variances of each region.

    It has the arguments and results of ``flox.groupby_reduce``, but that groups stay in the order in which they are
    expected. All functions of one call share one pass over `values`.

    Parameters
    ----------
    values : array_like, str or path
        A source, as for `chunkflow.map`, of numbers.
    *by : array_like, str or path
        Labels: arrays in memory of numbers, strings or dates, or sources of numbers. Their dimensions are the last ones
        of `values`, or the axes in `axis` if there are as many; the shapes of several broadcast. Labels that are NaN or
        NaT have no group. Groups of several keys are all combinations.
    func : str or sequence of str
        "sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "first", "last", each of them with "nan"
        before it too, where NaN are left out; "count" of elements that are not NaN, "any", "all"; "median",
        "nanmedian", "quantile" and "nanquantile", with which a block has the reduced axes in full.
    expected_groups : array_like, int or tuple of these, optional
        The labels of the groups, in the order of the result; an int n for the labels 0 to n - 1. By default all labels
        that there are, sorted. A tuple has one entry for each key.
    isbin : bool or sequence of bool
        Whether `expected_groups` are edges of bins.
    axis : int or sequence of int, optional
        Axes that are reduced; those of the labels by default.
    fill_value : number, optional
        Result of a group with fewer than `min_count` elements that are not NaN, or no element at all. By default that
        is 0 of sums, counts and integers, 1 of products, False of bools, -1 of positions, and NaN otherwise. If it is
        given it makes the dtype wider where it has to: an integer never one of floats.
    dtype : dtype, optional
        Of sums, products, means and variances.
    min_count : int, optional
        See `fill_value`: 0 by default, but 1 where `fill_value` and `expected_groups` are given.
    ddof : float
        Variances are divided by the number of elements less this.
    q : float or sequence of float, optional
        Quantiles that are wanted, from 0 to 1.
    closed : {"right", "left"}
        Which edge belongs to a bin.
    chunks : int or sequence of int, optional
        Sides of the blocks of `values`; the planner chooses by default.
    out : array, str, path, tuple of these or None
        As for `chunkflow.map`; a tuple where `func` are several.

    Returns
    -------
    result : array or tuple of arrays
        Of shape ``(..., groups)``: the axes that are not reduced, then one for the groups of each key. Of several
        quantiles the first axis follows `q`. A tuple where `func` are several, not where a list has one name.
        Of labelled values it is labelled: a dimension of groups has the name of the key, or "group" ("_bins" is added
        of bins), and the groups as coordinate.
    *groups : numpy.ndarray
        For each key the labels of its groups; of bins their edges, of shape (n, 2).

    Raises
    ------
    ArgumentError
        Labels that do not match the array's shape, unknown functions, edges that do not increase, an integer as
        `fill_value` that no integer dtype holds beside the results.
    ArgumentTypeError
        Complex numbers that are to be ordered, labels of which no array can be made.
    UnsupportedError
        Labels that are an expression, without `expected_groups`.
    BudgetError
        Not even the groups of one place fit the budget, or for order statistics one line: the error names one that
        does.

    Notes
    -----
    Sums of floats are accumulated in double precision. Variances are merged about the means of the parts (T. F. Chan,
    G. H. Golub and R. J. LeVeque, 1979). The position of an extreme is that along the reduced axes, flattened.

    Examples
    --------
    >>> values = np.array([[1.0, 3.0, np.nan], [5.0, 7.0, 9.0]])
    >>> result, groups = cf.groupby_reduce(values, ["a", "b", "a"], func="nanmean", device="cpu")
    >>> groups.tolist(), result
    (['a', 'b'], array([[1., 3.],
           [7., 7.]]))
    >>> (most, number), _ = cf.groupby_reduce(values, [0, 1], func=["nanmax", "count"], axis=0, device="cpu")
    >>> most.tolist(), number[2].tolist()
    ([[1.0, 5.0], [3.0, 7.0], [nan, 9.0]], [0, 1])
    """
    spec, chosen = spec_of(values), Options(**options)
    if not isinstance(func, str | list | tuple):
        raise ArgumentTypeError(
            f"func={func!r} is no name, as 'sum' or 'nanmean', and no list of names: functions of your own reduce by "
            "chunkflow.reduction, or by xarray's groups (import chunkflow.xarray)"
        )
    names = (func,) if isinstance(func, str) else tuple(func)
    keys = _keys(by, spec, axis, expected_groups, isbin, closed, chosen)
    if fill_value is not None and np.ndim(fill_value):
        raise ArgumentError(f"fill_value={fill_value!r} has {np.ndim(fill_value)} dimensions: give one number")
    if min_count is None:
        least = int(fill_value is not None and expected_groups is not None) or int(not keys.groups.shared)
        least = least if fill_value is not None else 0
    else:
        least = check_int("min_count", min_count, 0)
    arrays = (values, *keys.arrays)
    function = functools.partial(_function, fill=fill_value, dtype=dtype, least=least, ddof=number_of("ddof", ddof))
    if ordered := {i: name for i, name in enumerate(names) if name in ORDER}:
        quantile = functools.partial(_quantiles, q=q, groups=keys.groups, fill=fill_value, least=least)
        others = [name for name in names if name not in ORDER]
        declare = functools.partial(_declare_whole, ordered, quantile, others, function, keys, chunks)
    else:
        declare = functools.partial(_declare, names, function, keys, chunks)
    declare([spec, *(spec_of(key) for key in keys.arrays)], ())  # wrong arguments are refused before anything is read

    def named(labels: Any, found: Any) -> Any:
        result, *groups = found
        return labels.grouped(result, keys.groups.axes, groups, q, closed), *groups

    return Request(
        declare,
        arrays,
        chosen,
        lambda result: bare(result, chosen.out),
        beside=keys.labels,
        results=len(names),
        name=named,
    )


# -- Labels ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Keys:
    """The keys' arrays, of numbers, and what tells their groups; `labels` are the groups of each."""

    arrays: tuple[Any, ...]
    groups: Groups
    labels: tuple[np.ndarray, ...]


def _keys(
    by: Sequence[Any], spec: ArraySpec, axis: Axis, expected: Any, isbin: Any, closed: str, options: Options
) -> _Keys:
    if not by:
        raise ArgumentTypeError("groupby_reduce needs labels: give one array at least, after the values")
    if closed not in ("left", "right"):
        raise ArgumentError(f"closed={closed!r} must be 'left' or 'right'")
    number, ndim = len(by), len(spec.shape)
    wanted = expected if isinstance(expected, tuple) and len(expected) == number else (expected,) * number
    if number > 1 and expected is not None and not isinstance(expected, tuple):
        raise ArgumentError(f"expected_groups must be a tuple with one entry for each of the {number} keys")
    bins = (isbin,) * number if isinstance(isbin, bool | np.bool_) else tuple(isbin)
    if len(bins) != number:
        raise ArgumentError(f"isbin has {len(bins)} entries, and there are {number} keys")
    arrays: list[Any] = []
    lookups: list[Lookup | None] = []
    labels: list[np.ndarray] = []
    for key, groups, binned in zip(by, wanted, bins, strict=True):
        array, lookup, names = _key(key, groups, bool(binned), closed, options)
        arrays.append(array)
        lookups.append(lookup)
        labels.append(names)
    shapes = [spec_of(array).shape for array in arrays]
    try:
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"labels of shapes {', '.join(map(str, shapes))} do not broadcast together") from None
    given = None if axis is None else tuple(ordered_axes(axis, ndim, "axis"))
    trailing = tuple(range(ndim - len(whole), ndim))
    places = given if given is not None and len(given) == len(whole) and whole != spec.shape else trailing
    if len(whole) > ndim or any(n not in (1, spec.shape[a]) for n, a in zip(whole, places, strict=True)):
        raise ArgumentError(
            f"labels of shape {whole} do not match the last axes of {spec.name}, of shape {spec.shape}"
            + ("" if given is None else f", nor axis={axis}")
        )
    follow = []
    for place, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        mine = places[len(places) - len(shape) :]
        long = [i for i, a in enumerate(mine) if shape[i] == spec.shape[a]]
        if len(long) < len(shape):  # it broadcasts along others
            own = array if isinstance(array, np.ndarray) else elements_of(array)
            arrays[place] = own.reshape([shape[i] for i in long])
        follow.append(tuple(mine[i] for i in long))
    axes = tuple(sorted(places if given is None else given))
    sizes = tuple(len(names) for names in labels)
    return _Keys(tuple(arrays), Groups(tuple(lookups), sizes, tuple(follow), axes), tuple(labels))


def _key(key: Any, expected: Any, binned: bool, closed: str, options: Options) -> tuple[Any, Lookup | None, np.ndarray]:
    """A key as an array of numbers, what tells its groups (None if it holds their numbers), and the groups."""
    stored = has_lazy(key) or (not isinstance(key, np.ndarray | list | tuple | range) and not hasattr(key, "__array__"))
    if hasattr(key, "values") and isinstance(getattr(key, "values", None), np.ndarray):
        key, stored = key.values, False  # of pandas and xarray
    if not stored:
        key = _in_memory(key)
    if expected is None:
        if binned:
            raise ArgumentError("isbin=True needs the edges of the bins: give expected_groups=")
        if has_lazy(key):
            raise UnsupportedError("labels that are an expression need expected_groups=: which groups there are")
        found = unique(key, budget=options.budget, device=options.device) if stored else _distinct(key)
        names = elements_of(found)
        names = names[names == names]  # neither NaN nor NaT
    elif isinstance(expected, int | np.integer) and not isinstance(expected, bool):
        names = np.arange(int(expected))
    else:
        names = _edges(expected) if binned else elements_of(expected)
    if names.dtype == object:
        names = _plain(names.reshape(-1).tolist())[0].reshape(names.shape)
    if names.ndim != 1:
        raise ArgumentError(f"expected_groups of shape {names.shape} must have one dimension")
    if binned:
        if len(names) < 2 or not bool((names[1:] > names[:-1]).all()):
            raise ArgumentError("expected_groups= of bins must be edges, two at least, that increase")
        lookup, groups = Lookup(names, np.empty(0, "i8"), closed), np.stack((names[:-1], names[1:]), axis=-1)
    else:
        order = np.argsort(names, kind="stable")
        ordered = names[order]
        if len(ordered) > 1 and bool((ordered[1:] == ordered[:-1]).any()):
            raise ArgumentError(
                f"expected_groups= has the label {ordered[1:][ordered[1:] == ordered[:-1]][0]} twice: give each once"
            )
        lookup, groups = Lookup(ordered, order.astype("i8")), names
    first = np.zeros(1, spec_of(key).dtype) if stored else _piece(key, 0, 1)[0]
    _check_comparable(first, names, lookup)
    if stored:
        return key, lookup, groups
    if key.size > AT_ONCE and first.dtype.kind in "biuf" and first.dtype.itemsize <= 8 and _is_plain(key):
        return key, lookup, groups  # each block looks its own up
    codes = np.full(key.shape, -1, np.result_type(np.int8, np.min_scalar_type(-max(len(groups), 1))))
    into = codes.reshape(-1)
    step = AT_ONCE if _is_plain(key) else OBJECTS_AT_ONCE
    for start in range(0, key.size, step):
        piece, there = _piece(key, start, start + step)
        _check_comparable(piece[:1], names, lookup)
        into[start : start + step][there] = lookup(piece)
    return codes.view(Made), None, groups


def _check_comparable(labels: np.ndarray, names: np.ndarray, lookup: Lookup) -> None:
    """Refuse labels of another kind than the groups: none of them would be of any."""
    try:
        if labels.size and names.size and (labels.dtype.kind in "US") is not (names.dtype.kind in "US"):
            raise TypeError("one of them is of strings")
        lookup(labels)
    except TypeError as error:
        message = f"labels of {labels.dtype} and groups of {names.dtype} do not compare: {error}"
        raise ArgumentTypeError(message) from None


@dataclass(frozen=True)
class _Listed:
    """Labels in a list, or in lists of lists: as one array of strings, or of objects, they may take more than a run."""

    labels: Sequence[Any]
    shape: Shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def piece(self, start: int, stop: int) -> list[Any]:
        """Some of the labels, in C order."""
        return _flattened(self.labels, self.shape, start, min(stop, self.size))


def _flattened(labels: Any, shape: Shape, start: int, stop: int) -> list[Any]:
    if not isinstance(labels, list | tuple | range | np.ndarray) or len(labels) != shape[0]:
        raise ArgumentError(f"labels are lists of different lengths: all must have {shape[0]} entries, as the first")
    if len(shape) == 1:
        return list(labels[start:stop])
    inner, found = math.prod(shape[1:]), list[Any]()
    for i in range(start // inner, -(-stop // inner)):
        found += _flattened(labels[i], shape[1:], max(start - i * inner, 0), min(stop - i * inner, inner))
    return found


def _in_memory(key: Any) -> Any:
    """Labels as an array, or as the lists that they are in."""
    shape, first = list[int](), key
    while isinstance(first, list | tuple | range) and len(first):
        shape.append(len(first))
        first = first[0]
    if not shape or isinstance(first, list | tuple | range | np.ndarray):  # of no label, or of arrays
        return elements_of(key)
    return _Listed(key, tuple(shape))


def _is_plain(key: Any) -> bool:
    return isinstance(key, np.ndarray) and key.dtype != object


def _piece(key: Any, start: int, stop: int) -> tuple[np.ndarray, Any]:
    """Some of the labels, flat, and where among them they are: objects may be missing."""
    if _is_plain(key):
        return key.flat[start:stop], slice(None)
    return _plain(key.flat[start:stop].tolist() if isinstance(key, np.ndarray) else key.piece(start, stop))


def _plain(labels: list[Any]) -> tuple[np.ndarray, Any]:
    """Objects that are not missing as an array of strings or numbers, and their places."""
    there: Any = slice(None)
    try:
        found = elements_of(labels)
        if found.dtype.kind in "OU":
            there = np.flatnonzero([isinstance(label, str) or str(label) not in MISSING for label in labels])
            labels = [labels[i] for i in there]
            found = elements_of(labels)
    except ValueError:  # sequences among them
        raise ArgumentTypeError(MIXED) from None
    if found.dtype == object or (found.dtype.kind == "U" and not all(isinstance(label, str) for label in labels)):
        raise ArgumentTypeError(MIXED)
    return found, there


def _distinct(key: Any) -> np.ndarray:
    """Labels that there are, sorted. Integers that are not far apart are marked, which is quicker than sorting."""
    if _is_plain(key) and key.dtype.kind in "iu" and key.size:
        low, high = int(key.min()), int(key.max())
        if high - low < NEAR and high <= np.iinfo("i8").max:
            there = np.zeros(high - low + 1, bool)
            for start in range(0, key.size, AT_ONCE):
                there[key.flat[start : start + AT_ONCE].astype("i8") - low] = True
            return (np.flatnonzero(there) + low).astype(key.dtype)
    start = AT_ONCE if _is_plain(key) else OBJECTS_AT_ONCE
    step = start
    found = _unique(_piece(key, 0, start)[0])
    while start < key.size:  # as many as there are found, so that they are seldom sorted again
        stop = start + max(step, len(found))
        piece = _unique(_piece(key, start, stop)[0])
        if len(piece) and len(found) and (piece.dtype.kind == "U") is not (found.dtype.kind == "U"):
            raise ArgumentTypeError(MIXED)
        found = _unique(np.concatenate((found, piece))) if len(found) else piece
        start = stop
    return found


def _unique(labels: np.ndarray) -> np.ndarray:
    """`numpy.unique` of labels, of which those of float16 are sorted as float32: see `kind_of`."""
    wide = labels.dtype if kind_of(labels.dtype) is None else np.dtype("f4")
    return np.unique(labels.astype(wide, copy=False)).astype(labels.dtype, copy=False)


def _edges(expected: Any) -> np.ndarray:
    """Edges of bins, given as such or as pandas' intervals, which must adjoin."""
    if hasattr(expected, "left") and hasattr(expected, "right"):
        left, right = np.asarray(expected.left), np.asarray(expected.right)
        if not bool((left[1:] == right[:-1]).all()):
            raise ArgumentError("expected_groups= of intervals with gaps between them: give edges of bins")
        return np.append(left, right[-1:])
    return np.asarray(expected)


# -- Declarations ------------------------------------------------------------------------------------------------------


def _declare(
    names: Sequence[str],
    function: Callable[[str, ArraySpec], Function],
    keys: _Keys,
    chunks: Chunks,
    specs: Sequence[ArraySpec],
    args: tuple[Any, ...],
) -> Declared:
    spec = specs[0]
    functions = tuple(function(name, spec) for name in names)
    if not functions:
        raise ArgumentError(f"func is empty: ask for some of {', '.join(FUNCTIONS)}")
    kernel = GroupReduction(keys.groups, functions, spec.shape)
    op, kept = _nest(keys, spec.shape)
    axes = (*kept, *[None] * len(keys.groups.shape))
    return Declared(op, kernel, axes, block_sides(chunks, spec.shape), copies=4.0)


def _declare_whole(
    ordered: Mapping[int, str],
    quantile: Callable[[str, ArraySpec], GroupQuantiles],
    others: Sequence[str],
    function: Callable[[str, ArraySpec], Function],
    keys: _Keys,
    chunks: Chunks,
    specs: Sequence[ArraySpec],
    args: tuple[Any, ...],
) -> Declared:
    """Order statistics, by the places of their results, and others: of blocks that have the reduced axes in full."""
    spec = specs[0]
    quantiles = {place: quantile(name, spec) for place, name in ordered.items()}
    op, kept = _nest(keys, spec.shape, whole=True)
    plain = (*kept, *[None] * len(keys.groups.shape))
    each = tuple(
        (None, *plain) if i in quantiles and not quantiles[i].single else plain
        for i in range(len(quantiles) + len(others))
    )
    if len(each) == 1:
        work: Any = quantiles[0]
    else:
        rest = GroupReduction(keys.groups, tuple(function(name, spec) for name in others), spec.shape)
        work = GroupStatistics(quantiles, rest)
    kernel = MapKernel(work, (SLOT,) * len(specs), {}, each[0])
    return Declared(op, kernel, each[0], block_sides(chunks, spec.shape), each=each if len(each) > 1 else ())


def _quantiles(name: str, spec: ArraySpec, q: Any, groups: Groups, fill: Any, least: int) -> GroupQuantiles:
    """Order statistics of elements of a dtype, with checked arguments; `q` is of quantiles alone."""
    skip, asked_for = name.startswith("nan"), name.endswith("quantile")
    if asked_for and q is None:
        raise ArgumentTypeError(f"{name} needs q=: which quantiles, from 0 to 1")
    make = quantile_of(q, 1, "linear", skip=skip) if asked_for else functools.partial(median_of, skip=skip)
    _check_real(spec, name)
    wanted = make(spec.dtype)
    rule = wanted.rule(1)
    result, filled = _filled(rule.dtype, fill, np.nan if rule.dtype.kind == "f" else 0)
    return GroupQuantiles(groups, wanted.rule, wanted.of_lines, wanted.single, len(rule.below), result, filled, least)


def _nest(keys: _Keys, shape: Shape, *, whole: bool = False) -> tuple[LoopNest, Shape]:
    """The loop nest of the values and their keys, and the axes that are not reduced."""
    operands = [Operand(tuple(range(len(shape)))), *(Operand(follow) for follow in keys.groups.follow)]
    axes = keys.groups.axes
    op = LoopNest(shape, tuple(operands), (), frozenset(axes if whole else ()))
    return op, tuple(a for a in range(len(shape)) if a not in axes)


def _check_real(spec: ArraySpec, name: str) -> None:
    if spec.dtype.kind not in "biuf":
        raise ArgumentTypeError(f"{name} of {spec.dtype}: such numbers have no order; take their absolute values, say")


def _function(name: str, spec: ArraySpec, fill: Any, dtype: Any, least: int, ddof: float) -> Function:
    """A function of elements of a dtype, with checked arguments."""
    if name not in FUNCTIONS:
        raise ArgumentError(f"func={name!r} is none of {', '.join((*FUNCTIONS, *ORDER))}")
    base, own = name.removeprefix("nan"), spec.dtype.newbyteorder("=")
    if base in ("min", "max", "argmin", "argmax"):
        _check_real(spec, name)
    default: Any = np.nan
    wide = result = own
    if base in ("sum", "prod"):
        wide, result = asked(getattr(np, base), own, dtype)
        default = 0 if base == "sum" else 1
        if least and base in ("sum", "prod") and fill is None:
            default = np.nan
            result, _ = _filled(result, default, default)
    elif base in ("mean", "var", "std"):
        wide, result = asked(np.mean, own, dtype)
        result = np.empty(0, result).real.dtype if base != "mean" else result
        if result.kind not in "fc":
            raise ArgumentTypeError(f"dtype={dtype!r}: a {name} is not an integer, use a floating-point dtype")
    elif base == "count":
        result, default = np.dtype("i8"), 0
    elif base in ("any", "all"):
        result, default = np.dtype("?"), False
    elif base in ("argmin", "argmax"):
        result, default = np.dtype("i8"), -1
    elif own.kind not in "fc":
        default = 0
    result, filled = _filled(result, fill, default)
    return Function(name, own, wide, result, filled, ddof, least)


def _filled(result: np.dtype, fill: Any, default: Any) -> tuple[np.dtype, Any]:
    """The dtype of results that may be filled, and the number that fills them."""
    if fill is None:
        if default is np.nan and result.kind in "biu":
            return np.dtype("f8"), np.nan
        return result, default
    value = np.asarray(fill)
    if value.dtype.kind not in "biufc":
        raise ArgumentTypeError(f"fill_value={fill!r} must be a number")
    if result.kind == "b" and value.dtype.kind != "b":
        return np.result_type("i8", value.dtype), fill
    if result.kind in "iu" and value.dtype.kind in "iu":
        if np.iinfo(result).min <= int(value) <= np.iinfo(result).max:
            return result, fill
        wide = np.result_type(result, np.min_scalar_type(fill))
        if wide.kind == "f":  # it would round integers beyond 2**53
            raise ArgumentError(
                f"fill_value={fill!r} beside results of {result}: no integer dtype holds both. Give one that {result} "
                "holds, or a float, with which results are floats"
            )
        return wide, fill
    return np.result_type(result, value.dtype if result.kind in "iu" else fill), fill

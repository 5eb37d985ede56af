"""Reductions of the elements of each group, of any axes: a fold whose results have an axis for the groups.

A block becomes a table: its rows are places along the reduced axes, its columns are all others. Rows are brought into
the order of their groups once, for all functions. Then each function reduces segments of rows. Of a group's results
only those are touched that a block has rows of, so that many groups cost no more than few.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, shape_of
from chunkflow.core.grid import whole as everything
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold, is_trial
from chunkflow.kernels.reductions.tiled import UFUNCS, reduce, summed, without
from chunkflow.kernels.statistics.groups import order_of
from chunkflow.kernels.statistics.quantile import LineRule, Rule, along_first
from chunkflow.kernels.statistics.segments import moments, segmented
from chunkflow.kernels.statistics.sorting import in_order
from chunkflow.kernels.subnest import on_host

Value = tuple[Any, ...]

NOWHERE = np.iinfo("i8").max
"""Position of no element."""

NEAR = 1 << 18
"""Difference of integer labels up to which their groups are looked up in a table."""

FAR = 32
"""Places of that table for each label, at most."""

LOOPED = 1 << 13
"""Elements of a group's segment from which a loop over groups is quicker than NumPy's call for all of them."""

TOGETHER, LAUNCHED = 1 << 13, 1 << 20
"""Elements of groups of one length that are sorted at once, in memory that a trial of small blocks shows; on a GPU."""

WIDE = 1 << 10
"""Columns from which on it is quicker to order a GPU's rows on the host than to start a kernel for each step."""

COPIES = 4
"""Arrays of a number for each group that results are made with."""

SKIPPING = {"sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax", "first", "last"}
"""Functions that have a variant which leaves NaN out."""

FUNCTIONS = ("count", "any", "all", *sorted(SKIPPING), *(f"nan{name}" for name in sorted(SKIPPING)))
"""All functions that are folds."""


# -- Which group -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lookup:
    """The number of each label's group, -1 for none.

    Attributes
    ----------
    labels : numpy.ndarray
        Sorted: the groups' labels, or the edges of bins that have one of them more than there are bins.
    numbers : numpy.ndarray
        The group of each label; not used for bins.
    bins : str
        Which edge belongs to a bin, "left" or "right"; empty where there are labels.
    """

    labels: np.ndarray
    numbers: np.ndarray
    bins: str = ""

    @property
    def number(self) -> int:
        """How many groups there are."""
        return max(len(self.labels) - 1, 0) if self.bins else len(self.labels)

    @cached_property
    def _table(self) -> np.ndarray | None:
        """The group of each integer from the least label on, where these are not far apart; None elsewhere."""
        if self.bins or self.labels.dtype.kind not in "biu" or not len(self.labels):
            return None
        low, high = int(self.labels[0]), int(self.labels[-1])
        if high - low >= min(NEAR, FAR * len(self.labels)) or high > np.iinfo("i8").max:
            return None
        table = np.full(high - low + 1, -1, "i8")
        table[self.labels.astype("i8") - low] = self.numbers
        return table

    def __call__(self, block: Any) -> Any:
        if not len(self.labels):
            return np.full_like(block, -1, dtype="i8")
        labels = np.asarray(self.labels, like=block)
        if self.bins:
            at = np.searchsorted(labels, block, side="right" if self.bins == "left" else "left") - 1
            inside = block < labels[-1] if self.bins == "left" else block <= labels[-1]
            return np.where(inside, at, -1)
        if self._table is not None and block.dtype.kind in "biu":
            low, high = int(self.labels[0]), int(self.labels[-1])
            inside = (block >= low) & (block <= high)
            at = np.where(inside, block, self.labels.dtype.type(low)).astype("i8") - low
            return np.where(inside, np.asarray(self._table, like=block)[at], -1)
        at = np.minimum(np.searchsorted(labels, block), len(labels) - 1)
        return np.where(labels[at] == block, np.asarray(self.numbers, like=block)[at], -1)


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of one key or several, given the blocks of the keys.

    Attributes
    ----------
    lookups : tuple of Lookup or None
        For each key what tells its groups; None for one that holds their numbers.
    shape : tuple of int
        Number of groups of each key.
    follow : tuple of tuple of int
        For each key the array's axes that its dimensions follow.
    axes : tuple of int
        Reduced axes of the array, sorted.
    """

    lookups: tuple[Lookup | None, ...]
    shape: Shape
    follow: tuple[Shape, ...]
    axes: Shape

    @property
    def number(self) -> int:
        """How many there are: of several keys one for each combination."""
        return math.prod(self.shape)

    @property
    def shared(self) -> bool:
        """Whether all columns have the same groups."""
        return all(set(follow) <= set(self.axes) for follow in self.follow)

    def all_of(self, shape: Shape) -> int:
        """How many groups a block has: one for each column where groups differ by column."""
        return self.number * (1 if self.shared else math.prod(n for a, n in enumerate(shape) if a not in self.axes))

    def codes(self, keys: Sequence[Any], shape: Shape) -> Any:
        """The group of each row; where groups differ by column, of each element, numbered on from column to column."""
        kept = tuple(a for a in range(len(shape)) if a not in self.axes)
        found: Any = None
        for key, lookup, follow, number in zip(keys, self.lookups, self.follow, self.shape, strict=True):
            # Ones may stand for the numbers of groups, to find the dtypes of results.
            code = np.minimum(key, number - 1) if lookup is None else lookup(key)
            code = code.transpose([follow.index(a) for a in sorted(follow)])
            code = code.reshape([shape[a] if a in follow else 1 for a in range(len(shape))]).astype("i8")
            found = code if found is None else np.where((found < 0) | (code < 0), -1, found * number + code)
        found = found.transpose((*kept, *self.axes))
        if self.shared:
            rows = [shape[a] for a in self.axes]
            return np.broadcast_to(found.reshape(found.shape[len(kept) :]), rows).reshape(-1)
        columns = math.prod(shape[a] for a in kept)
        number = math.prod(shape[a] for a in self.axes)
        found = np.broadcast_to(found, [shape[a] for a in (*kept, *self.axes)]).reshape(columns, number)
        offsets = np.arange(columns, like=found)[:, None] * self.number
        return np.where(found < 0, -1, found + offsets).reshape(-1)

    def table(self, block: Any) -> Any:
        """A block as a table: of one column where groups differ by column."""
        kept = tuple(a for a in range(block.ndim) if a not in self.axes)
        native = block.astype(block.dtype.newbyteorder("="), copy=False)
        if not self.shared:
            return native.transpose((*kept, *self.axes)).reshape(-1, 1)
        rows, columns = (math.prod(block.shape[a] for a in axes) for axes in (self.axes, kept))
        fast = max(range(block.ndim), key=lambda a: (block.shape[a] > 1, -abs(block.strides[a])), default=0)
        if fast in self.axes:  # rows lie in one piece
            return native.transpose((*kept, *self.axes)).reshape(columns, rows).T
        return native.transpose((*self.axes, *kept)).reshape(rows, columns)

    def positions(self, shape: Shape, extents: Shape, box: Region) -> np.ndarray:
        """For each row of the table its position along the reduced axes, flattened."""
        found: np.ndarray = np.zeros((), "i8")
        for a in self.axes:
            found = found[..., None] * extents[a] + np.arange(box[a].start, box[a].start + shape[a])
        found = found.reshape(-1)
        return found if self.shared else np.tile(found, math.prod(shape) // max(found.size, 1))


class GroupedRows(ABC):
    """The rows of a table by group. Results have a row for each group that there is.

    Attributes
    ----------
    rows : array
        Those that have a group.
    order : array
        Where each of them was in the table.
    present : array
        Numbers of the groups that there are.
    """

    rows: Any
    order: Any
    present: Any
    _which: Any

    @property
    def float(self) -> bool:
        """Whether elements may be NaN."""
        return self.rows.dtype.kind in "fc"

    @cached_property
    def nan(self) -> bool:
        """Whether there may be NaN."""
        if not self.float or is_trial() or not isinstance(self.rows, np.ndarray):
            return self.float
        with np.errstate(all="ignore"):  # a sum takes no memory, and is seldom NaN without any
            return bool(np.isnan(self.rows.sum())) and bool(np.isnan(self.rows).any())

    def reduce(
        self, name: str, of: Callable[..., Any] | None, *beside: Any, along: Sequence[Any] = (), dtype: Any = None
    ) -> Any:
        """NumPy's reduction of each group, of a function of its rows, and of others.

        These are rows with one entry for each group, and with `along` columns with one entry for each row. The
        function may be called with some rows of a group at a time: what differs by row it is to be given.
        """
        whole = self.rows if of is None else of(self.rows, *(self.spread(b) for b in beside), *along)
        return self.reduced(name, whole if dtype is None else whole.astype(dtype, copy=False))

    def spread(self, rows: Any) -> Any:
        """A row for each group, for each of its rows."""
        return rows[self._which]

    def count(self) -> Any:
        """Number of elements of each group that are not NaN."""
        return self.reduce("sum", lambda x: ~np.isnan(x), dtype="i8") if self.nan else self.lengths()

    def moments(self, *, skip: bool) -> Any:
        """See `chunkflow.kernels.statistics.segments.moments`."""
        return None

    @abstractmethod
    def reduced(self, name: str, whole: Any) -> Any:
        """NumPy's reduction of each group's rows of another table."""

    @abstractmethod
    def lengths(self) -> Any:
        """Number of rows of each group, in a column."""

    @abstractmethod
    def end(self, *, first: bool) -> Any:
        """Number of the first or last row of each group, in a column."""


class Segments(GroupedRows):
    """Rows in the order of their groups."""

    def __init__(self, table: Any, codes: Any, number: int) -> None:
        on_cpu = isinstance(table, np.ndarray)
        if not on_cpu and WIDE * len(codes) <= table.size:
            codes = on_host(codes)
        order = order_of(codes)
        ordered = codes[order]
        none = int((ordered < 0).sum())
        order, ordered = order[none:], ordered[none:]
        if is_trial():  # as many groups as there may be take most
            order = np.arange(len(codes), like=codes)[::-1]
            ordered = np.minimum(np.arange(len(codes), like=codes), number - 1)
        heads = np.ones_like(ordered, dtype=bool)
        heads[1:] = ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(heads)
        found = (order, starts, np.cumsum(heads) - 1, ordered[starts])
        self.order, self.starts, self._which, self.present = (np.asarray(a, like=table) for a in found)
        if on_cpu and len(order) == len(table) and bool((order[1:] > order[:-1]).all()):
            self.rows = table
        else:
            turned = on_cpu and table.flags.f_contiguous
            self.rows = table.T.take(order, 1).T if turned else table[self.order]
        many = self.rows.size >= LOOPED * len(self.starts) > 0
        self._looped = on_cpu and many and not is_trial() and not self.rows.flags.f_contiguous

    def reduce(
        self, name: str, of: Callable[..., Any] | None, *beside: Any, along: Sequence[Any] = (), dtype: Any = None
    ) -> Any:
        if not self._looped:
            return super().reduce(name, of, *beside, along=along, dtype=dtype)
        starts, parts = [*self.starts.tolist(), len(self.order)], []
        for group, (start, stop) in enumerate(itertools.pairwise(starts)):
            rows = slice(start, stop)
            blocks = (self.rows[rows], *(b[group : group + 1] for b in beside), *(a[rows] for a in along))
            if name == "sum" and of is not None:
                parts.append(summed(of, blocks, (0,), np.dtype(dtype)))
            else:
                parts.append(reduce(name, blocks[0] if of is None else of(*blocks), (0,), dtype))
        return np.concatenate(parts)

    def reduced(self, name: str, whole: Any) -> Any:
        return segmented(whole, UFUNCS[name], self.starts) if len(self.starts) else whole[:0]

    def moments(self, *, skip: bool) -> Any:
        return moments(self.rows, self.starts, skip=skip) if len(self.starts) and self.rows.size else None

    def lines(self) -> Iterator[tuple[Any, Any]]:
        """Numbers of groups of one length, and the elements of each, sorted along a last axis, after the columns."""
        starts, columns = on_host(self.starts), self.rows.shape[1]
        lengths = np.diff(starts, append=len(self.order))
        by_length = np.argsort(lengths, kind="stable")
        for alike in np.split(by_length, np.flatnonzero(np.diff(lengths[by_length])) + 1):
            length = int(lengths[alike[0]]) if len(alike) else 0
            step = max(1, (TOGETHER if isinstance(self.rows, np.ndarray) else LAUNCHED) // max(length * columns, 1))
            for first in range(0, len(alike), step):
                some = alike[first : first + step]
                if len(some) == 1:
                    rows = self.rows[None, starts[some[0]] : starts[some[0]] + length]
                else:
                    rows = self.rows[np.asarray(starts[some, None] + np.arange(length), like=self.rows)]
                yield self.present[np.asarray(some, like=self.present)], in_order(rows.swapaxes(1, 2))

    def lengths(self) -> Any:
        ends = np.concatenate((self.starts, np.full_like(self.starts, len(self.order), shape=(1,))))
        return np.diff(ends)[:, None]

    def end(self, *, first: bool) -> Any:
        return self.starts[:, None] if first else self.starts[:, None] + self.lengths() - 1


class ScatteredRows(GroupedRows):
    """One column of rows on the CPU, which need no order: each is added to its group's result.

    `slots` has an integer for each group. They are written over and put back, so that a block with few of many groups
    touches few.
    """

    def __init__(self, table: np.ndarray, codes: np.ndarray, number: int, slots: np.ndarray) -> None:
        there = codes >= 0
        if is_trial() or not there.all():
            self.order = np.flatnonzero(there)
            table, codes = table[self.order], codes[self.order]
        else:
            self.order = np.arange(len(codes))
        rows = np.arange(len(codes))
        if is_trial():  # as many groups as there may be take most
            one = np.minimum(rows, number - 1)
        else:
            known = slots[codes]
            try:
                slots[codes] = rows
                one = slots[codes]  # of each group one row, the same for all of its rows
            finally:
                slots[codes] = known
        heads = one == rows
        self.rows, self.present = table, codes[heads]
        self._which = (np.cumsum(heads) - 1)[one]
        self._counts = np.bincount(self._which, minlength=len(self.present))

    def reduced(self, name: str, whole: Any) -> Any:
        ufunc, number, values = UFUNCS[name], len(self.present), whole[:, 0]
        if name == "sum" and values.dtype == np.dtype("f8"):
            return np.bincount(self._which, values, number)[:, None]
        found = np.zeros(number, bool if name in ("any", "all") else values.dtype)
        if name in ("sum", "prod"):
            found[:] = ufunc.identity
        else:
            found[self._which] = values  # one of each group, which does not count twice
        ufunc.at(found, self._which, values)
        return found[:, None]

    def lengths(self) -> Any:
        return self._counts[:, None]

    def end(self, *, first: bool) -> Any:
        found = np.empty((len(self.present), 1), np.intp)
        step = slice(None, None, -1 if first else 1)
        found[self._which[step], 0] = np.arange(len(self._which))[step]
        return found


def rows_of(table: Any, codes: Any, number: int, slots: Any) -> GroupedRows:
    """The rows of a table, given the group of each, of so many groups; `slots` has an integer for each of these."""
    if isinstance(table, np.ndarray) and table.shape[1] == 1:
        return ScatteredRows(table, codes, number, slots)
    return Segments(table, codes, number)


# -- What is kept of each group ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Arrays that are kept of each group, of a row for each.

    Attributes
    ----------
    made : callable
        ``made(rows, positions)`` of the groups of one block.
    merged : callable
        ``merged(left, right)`` of two such tuples.
    nothing : tuple of (number, dtype)
        What a group has without an element.
    """

    made: Callable[[GroupedRows, Any], Value]
    merged: Callable[[Value, Value], Value]
    nothing: tuple[tuple[Any, np.dtype], ...]


def _single(
    name: str, of: Callable[[Any], Any] | None, dtype: np.dtype, nothing: Any, given: Any = None, merge: Any = None
) -> Part:
    ufunc = UFUNCS[merge or name]
    return Part(
        lambda s, at: (s.reduce(name, of if s.nan or not s.float else None, dtype=given),),
        lambda left, right: (ufunc(left[0], right[0]),),
        ((nothing, dtype),),
    )


def _count() -> Part:
    return Part(
        lambda s, at: (np.broadcast_to(s.count(), (len(s.present), s.rows.shape[1])),),
        lambda left, right: (left[0] + right[0],),
        ((0, np.dtype("i8")),),
    )


def _moments(wide: np.dtype, *, skip: bool) -> Part:
    """Number, mean, and sum of squares about it; merged as in T. F. Chan, G. H. Golub and R. J. LeVeque, 1979."""
    real = np.empty(0, wide).real.dtype

    def made(s: GroupedRows, at: Any) -> Value:
        if wide == np.dtype("f8") and (found := s.moments(skip=skip)) is not None:
            return tuple(found)
        number = np.broadcast_to(s.count() if skip else s.lengths(), (len(s.present), s.rows.shape[1])).astype("f8")
        mean = s.reduce("sum", _without(0) if skip and s.nan else None, dtype=wide) / np.maximum(number, 1)

        def squares(x: Any, mean: Any) -> Any:
            off = np.subtract(x, mean, dtype=wide)
            off = np.where(np.isnan(x), wide.type(0), off) if skip and s.nan else off
            return (off * off.conj()).real if wide.kind == "c" else off * off

        return number, mean, s.reduce("sum", squares, mean, dtype=real)

    def merged(left: Value, right: Value) -> Value:
        (n, mean, found), (m, other, more) = left, right
        share = m / np.maximum(n + m, 1)
        off = other - mean
        between = (off * off.conj()).real if wide.kind == "c" else off * off
        # Of no elements the mean is 0, which has no weight; and infinities times no weight are NaN.
        middle = np.where(m == 0, mean, np.where(n == 0, other, mean + off * share))
        return n + m, middle, found + more + np.where((n == 0) | (m == 0), 0, between * n * share)

    return Part(made, merged, ((0, np.dtype("f8")), (0, wide), (0, real)))


def _end(name: str, dtype: np.dtype, *, skip: bool) -> Part:
    """The first or last element and its position."""
    first = name == "first"

    def made(s: GroupedRows, at: Any) -> Value:
        if skip and s.nan:
            row = np.arange(len(s.rows), like=s.order)[:, None]
            none = len(s.rows) if first else -1
            found = s.reduce("min" if first else "max", lambda x, at: np.where(np.isnan(x), none, at), along=(row,))
            some, found = found != none, np.clip(found, 0, max(len(s.rows) - 1, 0))
        else:
            found = np.broadcast_to(s.end(first=first), (len(s.present), s.rows.shape[1]))
            some = np.ones_like(found, dtype=bool)
        values = np.take_along_axis(s.rows, found, 0) if found.size else np.empty_like(s.rows, shape=found.shape)
        places = np.asarray(at, like=s.order)[s.order][found]
        return values, np.where(some, places, NOWHERE if first else -1)

    def merged(left: Value, right: Value) -> Value:
        better = right[1] < left[1] if first else right[1] > left[1]
        return np.where(better, right[0], left[0]), np.where(better, right[1], left[1])

    return Part(made, merged, ((0, dtype), (NOWHERE if first else -1, np.dtype("i8"))))


def _place(name: str, dtype: np.dtype, *, skip: bool) -> Part:
    """The least or greatest element and the position of the first such."""
    ufunc = UFUNCS[f"f{name}" if skip and dtype.kind == "f" else name]

    def same(x: Any, best: Any) -> Any:
        return (x == best) | (x != x) if dtype.kind == "f" and not skip else x == best

    def made(s: GroupedRows, at: Any) -> Value:
        best = s.reduce(f"f{name}" if skip and s.nan else name, None)
        places = np.asarray(at, like=s.order)[s.order][:, None]
        return best, s.reduced("min", np.where(same(s.rows, s.spread(best)), places, NOWHERE))

    def merged(left: Value, right: Value) -> Value:
        (a, i), (b, j) = left, right
        found = np.where(i == NOWHERE, b, np.where(j == NOWHERE, a, ufunc(a, b)))
        places = [np.where(same(value, found), place, NOWHERE) for value, place in (left, right)]
        return found, np.minimum(*places)

    return Part(made, merged, ((0, dtype), (NOWHERE, np.dtype("i8"))))


def _without(fill: Any) -> Callable[[Any], Any]:
    return lambda x: without(x, fill, skip=True)[0]


def _least(dtype: np.dtype, name: str) -> Any:
    """With what a minimum or maximum begins."""
    if dtype.kind == "f":
        return np.nan if name.startswith("nan") else np.inf if name == "min" else -np.inf
    if dtype.kind == "b":
        return name.endswith("min")
    info = np.iinfo(dtype)
    return info.max if name.endswith("min") else info.min


# -- Functions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """A function of a group's elements.

    Attributes
    ----------
    name : str
        One of `FUNCTIONS`.
    dtype, wide, result : numpy.dtype
        Of the elements, in which sums are accumulated, and of the result.
    ddof : float
        Of variances.
    fill : number
        The result of a group that has fewer than `least` elements that are not NaN, or no element at all.
    least : int
        See `fill`.
    """

    name: str
    dtype: np.dtype
    wide: np.dtype
    result: np.dtype
    fill: Any
    ddof: float = 0
    least: int = 0

    @property
    def base(self) -> str:
        """Its name without "nan"."""
        return self.name.removeprefix("nan")

    @property
    def skips(self) -> bool:
        """Whether NaN are left out."""
        return self.name.startswith("nan")

    def parts(self) -> dict[str, Part]:
        """What is kept of each group, by a name that other functions share."""
        base, skip, dtype = self.base, self.skips, self.dtype
        found: dict[str, Part] = {"rows": ROWS}
        if self.least or base in ("count", "mean"):
            found["count"] = _count()
        if base in ("sum", "mean"):
            of = _without(0) if skip else None
            found[f"{'nan' * skip}sum {self.wide}"] = _single("sum", of, self.wide, 0, self.wide)
        elif base == "prod":
            found[f"{self.name} {self.wide}"] = _single("prod", _without(1) if skip else None, self.wide, 1, self.wide)
        elif base in ("var", "std"):
            found[f"{'nan' * skip}moments"] = _moments(self.wide, skip=skip)
        elif base in ("min", "max"):
            name = f"f{base}" if skip and dtype.kind == "f" else base
            found[self.name] = _single(name, None, dtype, _least(dtype, self.name), None, name)
        elif base in ("any", "all"):
            found[base] = _single(base, _truth, np.dtype("?"), base == "all")
        elif base in ("first", "last"):
            found[self.name] = _end(base, dtype, skip=skip)
        elif base in ("argmin", "argmax"):
            found[self.name] = _place(base.removeprefix("arg"), dtype, skip=skip)
        return found

    def of(self, parts: Mapping[str, Value]) -> Any:
        """The result of each group."""
        base, skip = self.base, self.skips
        with np.errstate(all="ignore"):
            if base == "count":
                found = parts["count"][0]
            elif base in ("sum", "mean"):
                found = parts[f"{'nan' * skip}sum {self.wide}"][0]
                found = found / parts["count"][0] if base == "mean" else found
            elif base == "prod":
                found = parts[f"{self.name} {self.wide}"][0]
            elif base in ("var", "std"):
                number, _, squares = parts[f"{'nan' * skip}moments"]
                found = np.where(number >= self.ddof, squares / np.maximum(number - self.ddof, 0), np.nan)
                found = np.sqrt(found) if base == "std" else found
            elif base in ("first", "last"):
                found, places = parts[self.name]
                none = places == (NOWHERE if base == "first" else -1)
                found = np.where(none, found.dtype.type(np.nan), found) if found.dtype.kind in "fc" else found
            elif base in ("argmin", "argmax"):
                found = parts[self.name][1]
            else:
                found = parts[base if base in ("any", "all") else self.name][0]
            enough = parts["rows"][0] > 0
            if self.least:
                enough = enough & (parts["count"][0] >= self.least)
            if base in ("argmin", "argmax"):
                enough = enough & (found != NOWHERE)
            found = found.astype(self.result, copy=False)
            return np.where(enough, found, np.asarray(self.fill, self.result)[()]).astype(self.result, copy=False)


ROWS = Part(
    lambda s, at: (s.lengths().astype("i8"),),
    lambda left, right: (left[0] + right[0],),
    ((0, np.dtype("i8")),),
)
"""Number of rows of each group: it has one column."""


def _truth(x: Any) -> Any:
    return x != 0


# -- Kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GroupReduction(Fold):
    """Functions of the elements of each group, as a fold of an array and its keys.

    Each result follows the axes that are not reduced, and then the groups of each key. In a trial `few` groups may
    stand for all of them: what is kept of these may be more than there is room for.
    """

    groups: Groups
    functions: tuple[Function, ...]
    extents: Shape
    few: int | None = None
    parts_of: dict[str, Part] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[str, Part] = {}
        for function in self.functions:
            found |= function.parts()
        object.__setattr__(self, "parts_of", found)

    @property
    def state_size(self) -> float:
        """See `Kernel.state_size`."""
        return float(sum(len(part.nothing) for part in self.parts_of.values()))

    @property
    def _placed(self) -> bool:
        return any(f.base in ("first", "last", "argmin", "argmax") for f in self.functions)

    @property
    def _number(self) -> int:
        """How many groups are kept."""
        return self.groups.number if self.few is None else self.few

    def _kept(self, shape: Shape) -> Shape:
        return tuple([n for a, n in enumerate(shape) if a not in self.groups.axes])

    def keeping(self, nbytes: int, elements: int) -> GroupReduction:
        columns = max(1, min(elements, math.prod(self._kept(self.extents))))
        few = max(1, nbytes // (COPIES * 8 * columns * len(self.parts_of)))
        return self if few >= self._number else replace(self, few=few)

    def lengthened(self, shapes: Sequence[Shape]) -> list[Shape]:
        keys = len(self.groups.shape)
        return [(*shape[:-keys], *self.groups.shape) for shape in shapes]

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        return self._folded(value, blocks, box)

    def _folded(self, value: Value | None, blocks: Sequence[Any], box: Region) -> Value:
        x, *keys = blocks
        table, codes = self.groups.table(x), self.groups.codes(keys, x.shape)
        value = self._nothing(x) if value is None else value
        if not len(value[0]):  # there is no group
            return value
        slots = value[0][:, 0]  # the numbers of rows, which come first
        by_group = rows_of(table, codes, self.groups.all_of(x.shape), slots)
        at = self.groups.positions(x.shape, self.extents, box) if self._placed else None
        there, first = by_group.present if self.few is None else by_group.present % len(slots), 0
        rows: list[Any] = []
        with np.errstate(all="ignore"):
            for part in self.parts_of.values():
                known = tuple([a[there] for a in value[first : first + len(part.nothing)]])
                rows += part.merged(known, part.made(by_group, at))
                first += len(part.nothing)
        for whole, row in zip(value, rows, strict=True):  # nothing fails from here on
            whole[there] = row
        return value

    def _nothing(self, x: Any) -> Value:
        columns = math.prod(self._kept(x.shape))
        number, columns = (self._number, columns) if self.groups.shared else (self._number * columns, 1)
        return tuple(
            [
                np.full_like(x, fill, dtype=dtype, shape=(number, 1 if part is ROWS else columns))
                for part in self.parts_of.values()
                for fill, dtype in part.nothing
            ]
        )

    def combine(self, left: Value, right: Value) -> Value:
        found: list[Any] = []
        with np.errstate(all="ignore"):
            for part in self.parts_of.values():
                place = slice(len(found), len(found) + len(part.nothing))
                found += part.merged(left[place], right[place])
        return tuple(found)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        found = self._finished(value, box)
        return tuple(found) if len(found) > 1 else found[0]

    def at_once(self, blocks: Sequence[Any]) -> list[Any]:
        """The results of blocks that have the reduced axes in full."""
        box = everything(blocks[0].shape)
        return self._finished(self._folded(None, blocks, box), box)

    def _finished(self, value: Value, box: Region) -> list[Any]:
        parts, first = {}, 0
        for name, part in self.parts_of.items():
            parts[name] = value[first : first + len(part.nothing)]
            first += len(part.nothing)
        kept = self._kept(shape_of(box))
        shape = self.groups.shape if self.few is None else (self.few, *[1] * (len(self.groups.shape) - 1))
        found = []
        for function in self.functions:
            result = function.of(parts)
            if self.groups.shared:
                result = np.broadcast_to(result, (self._number, math.prod(kept)))
                result = np.moveaxis(result.reshape(self._number, *kept), 0, -1)
            found.append(result.reshape(*kept, *shape))
        return found


@dataclass(frozen=True, eq=False)
class GroupQuantiles:
    """Quantiles of the elements of each group, of blocks that have the reduced axes in full: a function for `map`.

    Attributes
    ----------
    groups : Groups
    rule : callable
        Gives the rule of so many elements.
    of_lines : callable, optional
        The same of lines with NaN, which are left out.
    single : bool
        Whether there is one quantile, without an axis for it.
    number : int
        How many quantiles there are.
    result : numpy.dtype
    fill, least : number, int
        As of a `Function`.
    """

    groups: Groups
    rule: Callable[[int], Rule]
    of_lines: LineRule | None
    single: bool
    number: int
    result: np.dtype
    fill: Any
    least: int
    any_length: ClassVar[bool] = True

    def __call__(self, block: Any, *keys: Any) -> Any:
        groups = self.groups.all_of(block.shape)
        segments = Segments(self.groups.table(block), self.groups.codes(keys, block.shape), groups)
        kept = [n for a, n in enumerate(block.shape) if a not in self.groups.axes]
        columns = segments.rows.shape[1]
        found = np.full_like(block, self.fill, dtype=self.result, shape=(self.number, groups, columns))
        for places, lines in segments.lines() if groups else ():
            number = lines.shape[-1]
            some = (
                number - np.isnan(lines).sum(-1) if segments.float else np.full_like(segments.order, number, shape=())
            )
            if self.of_lines is None:
                result = self.rule(number).result(
                    lambda ranks: np.moveaxis(lines[..., np.asarray(ranks, like=lines)], -1, 0)  # noqa: B023
                )
            else:
                result = self.of_lines(on_host(some)).result(lambda ranks: along_first(lines, ranks))  # noqa: B023
            found[:, places] = np.where(some >= self.least, result, self.fill)
        shape = (self.number, *kept, *self.groups.shape)
        if self.groups.shared:
            found = np.moveaxis(found.reshape(self.number, groups, *kept), 1, -1)
        found = found.reshape(shape)
        return found[0] if self.single else found


@dataclass(frozen=True, eq=False)
class GroupStatistics:
    """Quantiles of each group beside other functions, of blocks that have the reduced axes in full: one for `map`.

    Attributes
    ----------
    quantiles : mapping
        By the place of its result.
    others : GroupReduction
        Its results take the places that are left, in order.
    """

    quantiles: Mapping[int, GroupQuantiles]
    others: GroupReduction
    any_length: ClassVar[bool] = True

    def __call__(self, block: Any, *keys: Any) -> tuple[Any, ...]:
        rest = iter(self.others.at_once((block, *keys)) if self.others.functions else ())
        number = len(self.quantiles) + len(self.others.functions)
        return tuple([self.quantiles[i](block, *keys) if i in self.quantiles else next(rest) for i in range(number)])

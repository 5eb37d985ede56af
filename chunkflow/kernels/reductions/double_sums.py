"""Sums of a block in double precision by compiled loops, which convert elements as they add them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chunkflow.system.native import sums as loops

Axes = tuple[int, ...]

_ITSELF, _OFF, _SQUARE = range(3)
"""What is added of each element (`_sums.c`)."""

Call = tuple[int, int, int, int, int, int]
"""What a loop is told of a block: the address, planes and their distance, rows and theirs, elements of a row."""

LEAST, SHORT = 1 << 14, 16
"""Elements of a block, and of its rows, from which on the loops are quicker."""

PER_CALL = 1 << 14
"""Elements that a call of a loop should have, on average."""

BETWEEN = 32
"""Bytes of a block to one of sums that are added up in turn: a small block on trial does not take these."""


@dataclass(frozen=True)
class _Group:
    """Axes that follow one another in memory, and that are all reduced, or all kept: elements, distance in bytes."""

    length: int
    stride: int
    reduced: bool


_ONE = _Group(1, 0, reduced=False)


def summed(x: np.ndarray, axes: Axes) -> np.ndarray | None:
    """Sums along axes, which are kept with one element; None of a block that NumPy sums as quickly.

    >>> found = summed(np.full((128, 256), 0.5, "f4"), (0,))
    >>> found is None or (found.shape, float(found.sum())) == ((1, 256), 16384.0)  # None where nothing was compiled
    True
    """
    if x.dtype == np.dtype("c8"):
        return _complex(x, axes)
    if x.dtype != np.dtype("f4"):
        return None
    found = _found(x, axes, [_ITSELF])
    return found[0] if found is not None else _apart(x, axes)


def centred(x: np.ndarray, means: np.ndarray, axes: Axes, *, off: bool) -> list[np.ndarray] | None:
    """Sums of squared differences from `means`, in which reduced axes have one element; and with `off` of differences.

    None as for `summed`.
    """
    known = x.dtype in (np.dtype("f4"), np.dtype("f8"))
    return _found(x, axes, [_SQUARE, _OFF] if off else [_SQUARE], means) if known else None


def is_quick(x: np.ndarray, axes: Axes) -> bool:
    """Whether `summed` takes a block, and `centred`."""
    return x.dtype == np.dtype("f4") and layout_of(x, axes) is not None


@dataclass(frozen=True)
class Layout:
    """How a block lies: rows of a `length` in planes, which a call takes, and groups of axes before these.

    Axes are in this `order`, from the slowest on. Rows are reduced `along` their length, or added to one another.
    """

    order: list[int]
    lead: list[_Group]
    planes: _Group
    rows: _Group
    length: int
    along: bool

    @property
    def held(self) -> list[int]:
        """The shape of the sums that calls make."""
        return [*(group.length for group in (*self.lead, self.planes)), self.rows.length if self.along else self.length]

    @property
    def left(self) -> Axes:
        """Axes of these sums that are still to be reduced."""
        groups = [*self.lead, self.planes, *([self.rows] * self.along)]
        return tuple([i for i, group in enumerate(groups) if group.reduced])

    def calls(self, x: np.ndarray) -> Iterator[tuple[int, Call]]:
        """For each call of a loop the place of its sums, in bytes, and what it is told of the block."""
        sides = self.planes.length, self.planes.stride, self.rows.length, self.rows.stride, self.length
        for number, index in enumerate(itertools.product(*(range(group.length) for group in self.lead))):
            at = x.ctypes.data + sum(i * group.stride for i, group in zip(index, self.lead, strict=True))
            yield number * math.prod(self.held[-2:]) * 8, (at, *sides)

    def placed(self, sums: np.ndarray, x: np.ndarray, axes: Axes) -> np.ndarray:
        """The sums that calls made, reduced along what is left, with the axes of the block in their order."""
        whole = np.add.reduce(sums, axis=self.left) if self.left else sums
        return whole.reshape([1 if a in axes else x.shape[a] for a in self.order]).transpose(np.argsort(self.order))


def layout_of(x: np.ndarray, axes: Axes, words: int = 1, *, apart: bool = False) -> Layout | None:
    """How a block lies; None if its sums are left to NumPy. Each result has `words` of eight bytes.

    Elements of a row lie side by side, or `apart` if rows are reduced.
    """
    if loops is None or x.size < LEAST or not axes or not x.flags.aligned:
        return None
    order = sorted(range(x.ndim), key=lambda a: (x.shape[a] > 1, -x.strides[a]))
    groups = _groups(x, axes, order)
    if not groups or any(group.stride <= 0 for group in groups):
        return None
    step, rest = divmod(groups[-1].stride, x.itemsize)
    if rest or (step != 1 and not (apart and groups[-1].reduced)):
        return None
    *lead, last = groups
    if last.length < SHORT or not (last.reduced or (lead and lead[-1].reduced)):
        return None
    rows = lead.pop() if lead else _ONE
    planes = lead.pop() if lead else _ONE
    found = Layout(order, lead, planes, rows, last.length, last.reduced)
    between = math.prod(found.held) * BETWEEN * 8 * words if found.left else 0
    calls = math.prod(group.length for group in lead)
    return found if between <= x.nbytes and calls * PER_CALL <= x.size else None


def _found(x: np.ndarray, axes: Axes, what: list[int], means: np.ndarray | None = None) -> list[np.ndarray] | None:
    """Sums of each of `what`."""
    layout = layout_of(x, axes)
    if layout is None or loops is None:
        return None
    lead, planes, rows, held = layout.lead, layout.planes, layout.rows, layout.held
    if means is not None:
        whole = [1 if group.reduced else group.length for group in (*lead, planes, rows)]
        whole.append(1 if layout.along else layout.length)
        means = means.astype("f8", copy=False).transpose(layout.order).reshape(whole)
        means = np.ascontiguousarray(np.broadcast_to(means[..., 0] if layout.along else means[..., 0, :], held))
    found = []
    for one in what:
        sums = np.empty(held)
        for place, call in layout.calls(x):
            to, mean = sums.ctypes.data + place, 0 if means is None else means.ctypes.data + place
            loops.add(one, x.itemsize, layout.along, *call, to, mean)
        found.append(layout.placed(sums, x, axes))
    return found


def _apart(x: np.ndarray, axes: Axes) -> np.ndarray | None:
    """Sums along rows whose elements do not lie side by side."""
    layout = layout_of(x, axes, apart=True)
    if layout is None or loops is None:
        return None
    step = min(x.strides[a] for a in axes if x.shape[a] > 1) // x.itemsize
    sums = np.empty(layout.held)
    for place, call in layout.calls(x):
        loops.add_rows(step, *call, sums.ctypes.data + place)
    return layout.placed(sums, x, axes)


def _complex(x: np.ndarray, axes: Axes) -> np.ndarray | None:
    """Sums of complex numbers, part by part: those of columns are sums of twice as many."""
    layout = layout_of(x, axes, words=2)
    if layout is None or loops is None:
        return None
    sums = np.empty(layout.held, "c16")
    for place, (*sides, length) in layout.calls(x):
        to = sums.ctypes.data + 2 * place
        if layout.along:
            loops.add_rows(0, *sides, length, to)
        else:
            loops.add(_ITSELF, 4, False, *sides, 2 * length, to, 0)
    return layout.placed(sums, x, axes)


def _groups(x: np.ndarray, axes: Axes, order: list[int]) -> list[_Group]:
    """The axes of more than one element, from the slowest on, those together that are as one in memory."""
    groups: list[_Group] = []
    for axis in order:
        if x.shape[axis] == 1:
            continue
        one = _Group(x.shape[axis], x.strides[axis], axis in axes)
        if groups and groups[-1].reduced == one.reduced and groups[-1].stride == one.stride * one.length:
            one = _Group(groups.pop().length * one.length, one.stride, one.reduced)
        groups.append(one)
    return groups

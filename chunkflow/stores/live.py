"""A live source: slabs that come one after the other, from a generator, an iterator or a queue.

It is pulled only while somebody asks for rows, in the caller's thread. It holds one slab of which rows are left, and
the rows that it has given last.
"""

from __future__ import annotations

import inspect
import math
import os
import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec, Storage, default_chunks
from chunkflow.core.units import format_bytes
from chunkflow.core.unknown import ENDLESS, Unknown
from chunkflow.errors import ArgumentError, ReadError
from chunkflow.stores.checks import check_unmasked, numeric_dtype
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.memory import ArraySource
from chunkflow.stores.protocol import Source, Unviewed
from chunkflow.system import interrupts
from chunkflow.system.thread_pool import in_threads

_NAME = "live source"
_MOST = 1 << 50
"""Bytes that an array of unknown length is taken to have, about, before its end is known."""

CHUNK = 1 << 20
"""Bytes of a new output's chunks, about, where nothing else says how long they are."""


ENOUGH = 2
"""A slab is computed by itself, and not copied behind others, if it has one part in so many of a batch."""

COPYING = 16
"""Most threads that put slabs together."""

LEAST_COPIED = 4 << 20
"""Bytes for each of them: fewer are copied before another thread wakes up."""


class Live:
    """Slabs of an array, in order along its first axis; `chunkflow.live` makes one.

    Attributes
    ----------
    length : int or None
        Rows that it will give in all: None if that is not known.
    batch : int or None
        Most rows that are taken before they are computed.
    """

    def __init__(
        self,
        slabs: Iterable[Any] | Any,
        shape: Shape | None,
        dtype: np.dtype | None,
        length: int | None,
        batch: int | None,
        *,
        frames: bool,
    ) -> None:
        self.length, self.batch = length, batch
        self._rest_shape, self._dtype, self._frames = shape, dtype, frames
        self._queue: Any = slabs if is_queue(slabs) else None
        self._slabs = None if self._queue is not None else iter(slabs)
        self._first: np.ndarray | None = None
        """A slab that was looked at, and not taken yet."""
        self._left: np.ndarray | None = None
        """Rows of the last slab that are not taken yet."""
        self._buffer: np.ndarray | None = None
        self._number = self._taken = 0
        self._begun = self._over = False

    # -- What it is ------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        """The elements' dtype. It may take the first slab to tell, which is kept."""
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The whole shape, with None in the place of a length that is not known."""
        return (self.length, *self.spec.shape[1:])

    @property
    def spec(self) -> ArraySpec:
        """What is known of it. An unknown length is taken for one that no array has."""
        if self._rest_shape is None or self._dtype is None:
            self._look()
        rest, dtype = self._rest_shape, self._dtype
        if rest is None or dtype is None:
            raise ArgumentError(
                "the live source has ended before its first slab, so its shape and dtype are unknown: give shape= "
                "and dtype= to live"
            )
        return ArraySpec(_NAME, (self._endless if self.length is None else self.length, *rest), dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        spec = self.spec
        return max(1, int(np.prod(spec.shape[1:], dtype=object)) * spec.dtype.itemsize)

    @property
    def _endless(self) -> int:
        """Stands for a length that is not known."""
        assert self._rest_shape is not None
        assert self._dtype is not None
        row = int(np.prod(self._rest_shape, dtype=object)) * self._dtype.itemsize
        return Unknown(max(ENDLESS, _MOST // max(1, row)))

    def __chunkflow_spec__(self) -> ArraySpec:
        return self.spec

    def __chunkflow_source__(self) -> Source:
        return _UnreadableSource(self.spec)

    def __repr__(self) -> str:
        return f"<live source, {self._taken} rows taken{'' if self.length is None else f' of {self.length}'}>"

    # -- What it gives ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the one pass over it."""
        self.check_unread()
        self._begun = True

    def check_unread(self) -> None:
        """Refuse a second pass."""
        if self._begun:
            raise ArgumentError(
                "the live source has been read: it gives its slabs once. Store them first, by "
                "chunkflow.copy(live, 'slabs.zarr'), and read that as often as you like"
            )

    def sample(self, length: int, rows: int, *, lies: bool = False) -> Sample:
        """What stands for it in a trial: the rows of its first slab, over and over. It is not taken by that.

        With `lies` it is planned as rows that lie in memory.
        """
        return Sample(self, length, rows, lies)

    def _look(self) -> np.ndarray | None:
        """The first slab, which stays the next one."""
        if self._first is None and not self._number:
            self._first = self._fetch()
        return self._first

    def take(self, rows: int, unit: int = 1) -> np.ndarray:
        """The next rows: fewer at the end, and so many of a slab that it is not worth copying for more.

        They are a multiple of `unit` but at the end, and hold until the next call.

        Raises
        ------
        ReadError
            A slab is not what it should be, or there are more or fewer rows than was said.
        """
        if self.length is not None:
            rows = min(rows, self.length - self._taken)
        slab = self._next() if rows else None
        whole = min(rows, 0 if slab is None else len(slab) // unit * unit)
        is_last = slab is None
        if slab is None:
            found = np.empty((0, *self.spec.shape[1:]), self.dtype)
        elif whole == rows or (self.batch is None and ENOUGH * whole >= rows):
            found = slab[:whole]
            self._left = None if len(slab) == whole else slab[whole:]
        else:
            if self._buffer is None or len(self._buffer) < rows:
                self._buffer = np.empty((rows, *slab.shape[1:]), slab.dtype)
            filled = 0
            while slab is not None and filled < rows:
                taken = min(len(slab), rows - filled)
                _copy(slab[:taken], self._buffer[filled : filled + taken])
                filled += taken
                self._left = slab[taken:] if taken < len(slab) else None
                slab = self._next() if filled < rows else None
            found = self._buffer[:filled]
            is_last = filled < rows
        self._taken += len(found)
        self._check_length(is_last)
        return found

    def _next(self) -> np.ndarray | None:
        """What is left of the last slab, or the next one; None at the end."""
        left, self._left = self._left, None
        if left is not None:
            return left
        first, self._first = self._first, None
        return self._fetch() if first is None else first

    def _check_length(self, ended: bool) -> None:
        """Compare what came with what was said; after the last row the producer is asked whether it ends."""
        if self.length is None:
            return
        if ended and self._taken < self.length:
            raise ReadError(
                f"the live source ended after {self._taken} of {self.length} rows, in {self._number} slabs: give the "
                "length that it has, or none if that is not known"
            )
        if self._taken < self.length:
            return
        # Whoever fills a queue need not say that it is over, where the length does.
        if self._left is None and self._queue is None:
            self._left = self._fetch()
        if self._left is not None:
            raise ReadError(
                f"slab {self._number - 1} of the live source goes beyond its length of {self.length} rows: give the "
                "length that it has, or none if that is not known; itertools.islice takes a part of an iterator"
            )

    def _fetch(self) -> np.ndarray | None:
        """The next slab of the producer, checked; None at the end. Slabs of no rows are passed over."""
        while not self._over:
            with interrupts.allowed():
                item = self._asked()
            if item is None:
                self._over = True
                break
            self._number += 1
            slab = self._checked(item)
            if len(slab):
                return slab
        return None

    def _asked(self) -> Any:
        """What the producer gives; None at the end."""
        try:
            if self._slabs is not None:
                item = next(self._slabs, _END)
                if item is None:
                    raise ReadError(f"slab {self._number} of the live source is None: end an iterator by returning")
                return None if item is _END else item
            assert self._queue is not None
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            return item
        except _SHUT_DOWN:
            return None
        except BaseException as error:
            self._over = True
            error.add_note(f"chunkflow: the live source was asked for slab {self._number}")
            raise

    def _checked(self, item: Any) -> np.ndarray:
        number = self._number - 1
        check_unmasked(item)
        if not isinstance(item, np.ndarray | np.generic) and not hasattr(item, "__array__"):
            raise ReadError(f"slab {number} of the live source is a {type(item).__name__}, not an array")
        slab = np.asarray(item)
        slab = slab[None] if self._frames else slab
        if slab.ndim == 0:
            raise ReadError(f"slab {number} of the live source has no axis: frames=True gives each of them one")
        if self._dtype is None:
            self._dtype = numeric_dtype(slab.dtype, f"slab {number} of the live source")
        if self._rest_shape is None:
            self._rest_shape = slab.shape[1:]
        if slab.shape[1:] != self._rest_shape:
            rows = () if self._frames else ("rows",)
            shape = ", ".join(map(str, (*rows, *self._rest_shape)))
            raise ReadError(
                f"slab {number} of the live source has the shape {np.shape(item)} and not ({shape}), as those before "
                f"it, or as shape= says{self._other_axes(slab.ndim - 1 - len(self._rest_shape))}"
            )
        if slab.dtype.newbyteorder("=") != self._dtype:
            raise ReadError(
                f"slab {number} of the live source is of {slab.dtype}, and not of {self._dtype} as those before it, or "
                "as dtype= says: convert it with astype"
            )
        return slab

    def _other_axes(self, more: int) -> str:
        """Advice on a slab that has so many axes more than the others."""
        if self._frames:
            return ": frames=True is for slabs that are single frames" if more == 1 else ""
        return ": frames=True is for slabs without the axis of the rows" if more == -1 else ""

    def close(self) -> None:
        """End the generator, so that its `finally` runs. Its own errors then are its user's to see."""
        self._left = self._first = self._buffer = None
        self._over = True
        if inspect.isgenerator(self._slabs):
            self._slabs.close()


def _copy(slab: np.ndarray, place: np.ndarray) -> None:
    """Copy rows by several threads: one reaches a small part of what memory gives."""
    number = min(COPYING, len(os.sched_getaffinity(0)), slab.nbytes // LEAST_COPIED)
    step = -(-len(slab) // max(1, number))
    parts = [slice(start, start + step) for start in range(0, len(slab), step)]
    in_threads(lambda part: np.copyto(place[part], slab[part]), parts, len(parts))


_END = object()
_SHUT_DOWN: tuple[type[Exception], ...] = tuple(getattr(queue, name) for name in ("ShutDown",) if hasattr(queue, name))
"""What a queue raises that was shut down: Python has it from 3.13 on."""


def chunks_of(spec: ArraySpec, axis: int, rows: int) -> Shape:
    """Chunks of a new output whose rows along an axis come in batches. Blocks have whole ones, several at once.

    Their lengths are powers of two, so that those of several outputs are multiples of one another.
    """
    found = list(default_chunks((*spec.shape[:axis], 1, *spec.shape[axis + 1 :]), spec.dtype.itemsize))
    row = spec.dtype.itemsize * math.prod((*spec.shape[:axis], *spec.shape[axis + 1 :]))
    most = max(1, min(rows // 4, CHUNK // max(row, 1)))
    found[axis] = 1 << (most.bit_length() - 1)
    return tuple(found)


def is_queue(slabs: Any) -> bool:
    """Whether slabs come by `get`, as of `queue.Queue` and its likes."""
    return callable(getattr(slabs, "get", None)) and callable(getattr(slabs, "put", None))


@dataclass(frozen=True)
class Sample:
    """Stands for a live source of this `length` in trials and plans: its first slab, over and over.

    A new output whose chunks nobody chose gets some of so many `rows`.
    """

    live: Live
    length: int
    rows: int
    lies: bool = False

    def __chunkflow_spec__(self) -> ArraySpec:
        spec = self.live.spec
        shape = (self.length, *spec.shape[1:])
        if self.lies:
            return replace(spec, shape=shape, storage=Storage(in_memory=True))
        chunks = chunks_of(replace(spec, shape=shape), 0, self.rows)
        return replace(spec, shape=shape, chunks=chunks, storage=Storage(raw=True, copies=0.0))  # in memory, in fact

    def __chunkflow_source__(self) -> Source:
        return _SampleSource(self.__chunkflow_spec__(), self.live._look)


class _SampleSource(Unviewed):
    """Source of a `Sample`."""

    footprint: Footprint | None = None

    def __init__(self, spec: ArraySpec, look: Callable[[], np.ndarray | None]) -> None:
        self.spec, self._look = spec, look

    def read(self, region: Region, out: np.ndarray) -> None:
        slab = self._look()
        if slab is None:  # it has ended
            out[...] = 0
            return
        places = np.arange(region[0].start, region[0].stop) % len(slab)
        ArraySource(slab[(slice(None), *region[1:])][places]).read(tuple(slice(0, n) for n in out.shape), out)

    def close(self) -> None:
        """See `Source.close`: the producer is closed after its pass."""


class _UnreadableSource(Unviewed):
    """What a live source is to whoever would read regions of it."""

    footprint: Footprint | None = None

    def __init__(self, spec: ArraySpec) -> None:
        self.spec = spec

    def read(self, region: Region, out: np.ndarray) -> None:
        raise ReadError(
            f"a live source is read once and in order, by one pass: this reads {format_bytes(out.nbytes)} of it at a "
            "place of its own. Store it first, by chunkflow.copy(live, 'slabs.zarr'), and read that",
            region=region,
        )

    def close(self) -> None:
        """See `Source.close`."""

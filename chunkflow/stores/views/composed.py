"""A source that rearranges the elements of other sources. Elements are moved when they are read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from chunkflow.core.arrangement import ArrangedBox, Arrangement, IndexRunPart
from chunkflow.core.grid import Region, Shape, fit, permuted, regions, shape_of, shift, within
from chunkflow.core.pieces import LEAST_ROW
from chunkflow.core.spec import ArraySpec, ByteRun, Storage
from chunkflow.core.units import listed
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint, Scattered
from chunkflow.stores.new_array import StoredLabels, labels_of
from chunkflow.stores.protocol import Source, Unviewed, boxes_of, cold_bytes, keep_chunks, run_of, seen_of
from chunkflow.stores.strides import memory_order, part, run_in_memory

V = TypeVar("V")

MOST = 32
"""Boxes from which on a region is read whole: each is moved by itself. An array of three axes with edges has 27."""

NARROW = 16
"""Part of a region that may lie in boxes of short rows, such as edges: these are moved slowly."""

FILLED = 16 << 10
"""Bytes of a row of a value, from which compiled loops fill boxes."""

STRIP = 256 << 10
"""Bytes that are copied at once from one place of a block to another."""


class ComposedSource(Unviewed):
    """Several sources as one of (native) `dtype`, put together by an arrangement. They are closed with this one.

    Elements are cast by any rule: whoever asks for a dtype has checked it.

    `chunks` is a box that is read at no loss. Sources may lack the axis `new`, along which each of them has one place.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        arrangement: Arrangement,
        dtype: np.dtype,
        chunks: Shape | None = None,
        new: int | None = None,
    ) -> None:
        self._sources, self._arrangement, self._new = list(sources), arrangement, new
        self.how = arrangement, new, dtype
        name = listed([source.spec.name for source in self._sources])
        orders = {source.spec.order for source in self._sources}
        order = orders.pop() if len(orders) == 1 and new is None else ()
        spec = ArraySpec(name, arrangement.shape, dtype, chunks, order)
        self.spec = replace(spec, storage=_storage(spec, [source.spec for source in self._sources]))
        self._rows: dict[bytes, np.ndarray] = {}
        # Even of one source never the same elements in the same order.
        self.footprint: Footprint | None = Scattered.of(source.footprint for source in self._sources)

    @property
    def parts(self) -> Sequence[Source]:
        """The sources that are put together."""
        return self._sources

    def labels(self) -> StoredLabels:
        """Names of dimensions on which the first source and the last one agree. The axis that they lack has none."""
        first, last = (labels_of(source).dimension_names for source in (self._sources[0], self._sources[-1]))
        if first is None or first != last:
            return StoredLabels()
        names = list(first)
        if self._new is not None:
            names.insert(self._new, None)
        return StoredLabels(None, tuple(names) if len(names) == len(self.spec.shape) else None)

    def read(self, region: Region, out: np.ndarray) -> None:
        for piece in self._arrangement.pieces(region):
            place = part(out, within(piece.place, region))
            if piece.fill is not None:
                place[...] = piece.fill
            elif place.size:
                self._read(piece, place)

    def boxes(self, region: Region) -> Sequence[Region]:
        """See `chunkflow.stores.protocol.Boxes`."""
        pieces = self._arrangement.pieces(region)
        found = list(itertools.islice(itertools.chain.from_iterable(map(self._boxes, pieces)), MOST))
        if not 1 < len(found) < MOST:
            return [region]
        last, total = self.spec.order[-1], math.prod(shape_of(region))
        width = min(region[last].stop - region[last].start, -(-LEAST_ROW // self.spec.dtype.itemsize))
        narrow = sum(math.prod(shape_of(box)) for box in found if box[last].stop - box[last].start < width)
        return found if narrow * NARROW <= total else [region]

    def run(self, region: Region) -> ByteRun | None:
        """See `chunkflow.stores.protocol.ByteRuns`: of a region that is one box of an array in memory, or one value."""
        pieces = list(itertools.islice(self._arrangement.pieces(region), MOST))
        fills = [piece.fill for piece in pieces]
        if pieces and None not in fills and len(pieces) < MOST and len(set(fills)) == 1:
            return self._filled(fills[0])
        if len(pieces) != 1:
            return None
        found = self._seen(pieces[0])
        if found is None:
            return None
        times = [side.stop - side.start for side in region]
        return run_in_memory(found, self.spec.order, [n // max(m, 1) for n, m in zip(times, found.shape, strict=True)])

    def _filled(self, fill: Any) -> ByteRun:
        """A row of a value, which comes again and again."""
        value = np.asarray(fill).astype(self.spec.dtype)
        key = value.tobytes()
        if key not in self._rows:
            self._rows.setdefault(key, np.full(FILLED // value.itemsize, value))
        row = self._rows[key]
        return ByteRun(row.ctypes.data, row.nbytes)

    def _boxes(self, piece: ArrangedBox) -> Iterable[Region]:
        """The boxes of a piece: those of its source, where that is put together too and goes in as it is."""
        plain = piece.fill is None and self._new is None and all(p.times == 1 and not p.back for p in piece.parts)
        if not plain:
            return itertools.product(*map(_even, piece.parts))
        offset = [place.start - own.start for place, own in zip(piece.place, piece.source, strict=True)]
        return [shift(box, offset) for box in boxes_of(self._sources[piece.number], piece.source)]

    def _seen(self, piece: ArrangedBox) -> np.ndarray | None:
        """A view of what a piece's source holds, without repeats; None if it lies not in memory as it is."""
        source = self._sources[piece.number]
        if piece.fill is not None or source.spec.dtype != self.spec.dtype:
            return None
        found = seen_of(source, self._own(piece.source))
        if found is None or any(len(_even(p)) > 1 for p in piece.parts):
            return None
        if self._new is not None:
            found = np.expand_dims(found, self._new)
        return part(found, tuple(slice(None, None, -1 if p.back else 1) for p in piece.parts))

    def seen(self, region: Region) -> np.ndarray | None:
        """See `chunkflow.stores.protocol.Boxes`."""
        pieces = list(itertools.islice(self._arrangement.pieces(region), 2))
        found = self._seen(pieces[0]) if len(pieces) == 1 else None
        return found if found is not None and found.shape == shape_of(region) else None

    def keep(self, lately: DecodedChunks) -> None:
        """See `Keeping.keep`: two of all that there are, however many sources."""
        for source in self._sources:
            keep_chunks(source, lately)

    def cold(self, region: Region) -> int:
        """See `Filed.cold`: sources of which only a part is read count whole."""
        return cold_bytes(self._sources)

    def _read(self, piece: ArrangedBox, place: np.ndarray) -> None:
        """Fill a place with a piece of a source."""
        if self._new is not None:
            place = np.moveaxis(place, self._new, 0)[0, ...]
        parts = self._own(piece.parts)
        place = part(place, tuple(slice(None, None, -1 if p.back else 1) for p in parts))
        _fill(self._sources[piece.number], self._own(piece.source), place, [(p.times, p.skip) for p in parts])

    def _own(self, axes: tuple[V, ...]) -> tuple[V, ...]:
        """Of values for all axes those that the sources have."""
        return axes if self._new is None else (*axes[: self._new], *axes[self._new + 1 :])

    def close(self) -> None:
        for source in self._sources:
            source.close()


def _storage(spec: ArraySpec, parts: Sequence[ArraySpec]) -> Storage:
    """How what is composed of such arrays is kept: as the one that takes most to be read."""
    chunked = [part for part in parts if part.chunks is not None]
    found = Storage(beside=max(part.storage.beside + STRIP * _by_strips(part, spec.dtype) for part in parts))
    if spec.chunks is None or not chunked:
        return found
    raw = all(part.storage.raw for part in chunked)
    if all(part.storage.parted for part in chunked):
        copies = max(part.storage.copies * part.dtype.itemsize for part in chunked) / spec.dtype.itemsize
        return replace(found, raw=raw, parted=True, copies=copies)
    copies = max(part.storage.copies * part.chunk_bytes for part in chunked) / max(spec.chunk_bytes, 1)
    widest = max(part.dtype.itemsize for part in parts)
    if widest > spec.dtype.itemsize:  # they are read to a place of their own
        copies += widest / spec.dtype.itemsize
    return replace(found, raw=raw, copies=copies)


def _even(run: IndexRunPart) -> list[slice]:
    """Parts of a run's place in which each element comes equally often."""
    start, stop, times = run.place.start, run.place.stop, run.times
    if run.source.stop - run.source.start == 1:
        return [run.place]
    first = start + -run.skip % times
    return [slice(*cut) for cut in itertools.pairwise(sorted({start, first, stop - (stop - first) % times, stop}))]


def _fill(source: Source, region: Region, place: np.ndarray, repeats: Sequence[tuple[int, int]]) -> None:
    """Fill a place with a region of a source, each element `times` along each axis, the first one `skip` times fewer.

    Elements are read into every `times`-th element of the place, then copied from there.
    """
    for axis, (times, skip) in enumerate(repeats):
        side, n = region[axis], place.shape[axis]
        if side.stop - side.start > -(-n // times):
            # The first element and the last one come so seldom that they are no whole number of steps apart.
            first, others = slice(side.start, side.start + 1), slice(side.start + 1, side.stop)
            rest = times - skip
            for cut, one, left in ((slice(rest), first, skip), (slice(rest, None), others, 0)):
                _fill(source, _with(region, axis, one), _at(place, axis, cut), _with(repeats, axis, (times, left)))
            return
    steps = tuple(slice(None, None, times) for times, _ in repeats)
    _read(source, region, part(place, steps))
    for axis in reversed(range(len(repeats))):
        _spread(part(place, steps[:axis]), axis, *repeats[axis])


def _read(source: Source, region: Region, place: np.ndarray) -> None:
    """Read a region, cast to the place's dtype."""
    dtype, order = source.spec.dtype, source.spec.order
    if dtype == place.dtype:
        source.read(region, place)
    elif (found := source.view(region)) is not None:
        np.copyto(place, found, casting="unsafe")
    elif _by_strips(source.spec, place.dtype) or run_of(source, region) is not None:
        # No chunk is decoded, nobody asked, once for each strip.
        strip = np.empty(STRIP // dtype.itemsize, dtype)
        start = [side.start for side in region]
        for box in _strips(place, order, max(dtype.itemsize, place.itemsize)):
            shape = permuted(shape_of(box), order)
            found = strip[: math.prod(shape)].reshape(shape).transpose(np.argsort(order))
            source.read(shift(box, start), found)
            np.copyto(part(place, box), found, casting="unsafe")
    elif dtype.itemsize > place.itemsize:
        wide = np.empty(place.shape, dtype)
        source.read(region, wide)
        np.copyto(place, wide, casting="unsafe")
    else:
        # Into the first bytes of each number of the place.
        one = {"names": ["found"], "formats": [dtype], "offsets": [0], "itemsize": place.itemsize}
        found = place.view(np.dtype(one))["found"]  # type: ignore[call-overload]
        source.read(region, found)
        _copy(found, place)


def _by_strips(spec: ArraySpec, dtype: np.dtype) -> bool:
    """Whether an array of parted chunks, whose elements become narrower, is read some at a time."""
    return spec.storage.parted and spec.dtype.itemsize > dtype.itemsize


def _spread(place: np.ndarray, axis: int, times: int, skip: int) -> None:
    """Copy every `times`-th element along an axis to its repetitions beside it."""
    n = place.shape[axis]
    starts = range(0, n, times)
    if times <= len(starts):
        for i in range(1, times):
            first, others = (i + skip) // times * times, _at(place, axis, slice(i, None, times))
            _copy(_at(place, axis, slice(first, first + others.shape[axis] * times, times)), others)
        return
    for start in starts:
        low, high = max(start - skip, 0), min(start - skip + times, n)
        for cut in (slice(low, start), slice(start + 1, high)):
            _copy(_at(place, axis, slice(start, start + 1)), _at(place, axis, cut))


def _copy(found: np.ndarray, place: np.ndarray) -> None:
    """Copy, and broadcast, an array into another part of the same memory.

    By strips: where NumPy can't tell whether the two overlap, it copies what it is given first.
    """
    found = np.broadcast_to(found, place.shape)
    for box in _strips(place, memory_order(place.shape, place.strides), place.itemsize):
        np.copyto(part(place, box), part(found, box), casting="unsafe")


def _strips(place: np.ndarray, order: Sequence[int], itemsize: int) -> Iterator[Region]:
    """Boxes that cover a place, of at most `STRIP` bytes in all elements. The last axis of `order` grows first."""
    sides = fit(place.shape, [1] * place.ndim, order, STRIP // itemsize)
    return regions(place.shape, sides)


def _at(array: np.ndarray, axis: int, cut: slice) -> np.ndarray:
    """View of a part along one axis."""
    return part(array, (*[slice(None)] * axis, cut))


def _with(values: Sequence[V], axis: int, value: V) -> tuple[V, ...]:
    """`values` with another entry for an axis."""
    return (*values[:axis], value, *values[axis + 1 :])

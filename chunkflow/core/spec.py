"""What a plan knows of an array without touching its data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Shape

COPIES = 2.0
"""Copies of a chunk that coding takes with zarr's default codec: gathered, and encoded."""


RUN = 256 << 10
"""Shortest run of a file, in bytes, that is read or written at a position if there are several. Shorter ones of a new
file go through a mapping."""


class ByteRun(NamedTuple):
    """Where a region lies, its elements in memory order: from a `position` of an open file, or of memory.

    A region that is not one run is rows of `width` bytes at a distance of `pitch`, and after `height` of them those of
    the next plane, at a distance of `plane`. `fd` is the file's descriptor, None for the process's memory. Memory that
    is a mapping is not to be touched unless the file `mapped` has `size` bytes. Of numbers in the other byte order the
    bytes are reversed on the way, `swap` at a time. Where `rows` are given, those of each plane begin so many bytes
    from its own begin, in place of a regular pitch.
    """

    position: int
    width: int = 1 << 62
    height: int = 1
    pitch: int = 0
    plane: int = 0
    fd: int | None = None
    mapped: int | None = None
    size: int = 0
    swap: int = 0
    rows: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class ChunkFiles:
    """Files that hold pieces of a region as they are, from a place on; no name where there is no such file.

    Each has `size` bytes. None may have been changed after the time `since`, in nanoseconds; 0 for any. `swap` is that
    of a `ByteRun`. Where `fill` are the bytes of a number, as they are stored, pieces that hold nothing else are not
    kept in files.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    size: int
    swap: int = 0
    fill: bytes = b""
    since: int = 0


@dataclass(frozen=True)
class Behind:
    """Chunks that a library decodes, in memory of its own, for each read of an array that any region may be read of.

    Attributes
    ----------
    chunks : tuple of int
    seconds : float
        That it takes to decode one.
    kept : int
        How many it keeps for the next reads.
    """

    chunks: Shape
    seconds: float
    kept: int = 0


@dataclass(frozen=True)
class Storage:
    """How a store keeps an array, as far as a plan depends on it.

    Attributes
    ----------
    in_memory : bool
        Whether the store can hand out a read-only view of any region without copying.
    how : str
        How the store reads or writes the elements where it has a choice, and why, for people.
    instead : str
        Why reading a chunk takes much memory, and what reads it in less, for people, where there is such.
    remote : bool
        Whether the elements come over a network. A request takes long there, and many at once take no longer.
    sharded : bool
        Whether neighbouring chunks come with one request.
    copies : float
        Memory that coding a chunk takes, in decoded chunks: encoded, decoded and in between. Where chunks are `parted`,
        that which reading a part takes besides, in parts.
    beside : int
        Bytes of memory that reading or writing a region takes besides, however large it is.
    asking : float
        Seconds that a read takes whatever its bytes: of each chunk, or of each block where there are none. They are
        known by the kind of source, and not measured, so that plans are the same each time.
    behind : Behind or None
        Chunks that another library decodes for a read, besides `asking`, where the array has no `chunks` here.
    pieces : int
        Chunks of the store that are decoded for one of `chunks`: those of a view that has few elements of each.
    decoded : float
        Bytes that are decoded for each byte of `chunks`.
    raw : bool
        Whether chunks are stored unencoded.
    separate : bool
        Whether each of these chunks is a file of its own (`chunkflow.stores.protocol.Separate`).
    parted : bool
        Whether of a chunk that is cut only the wanted part is read, and no more of it is held.
    kept : bool
        Whether a decoded chunk can be kept for the next block that has a part of it.
    fresh : bool
        Whether the elements are written to a single new file.
    codec : str
        The only codec of each chunk of a source, where some device may decode it; "" elsewhere.
    matches : float
        Matches that the decoder follows one after the other, per byte of a decoded chunk, estimated from a sample.
    """

    in_memory: bool = False
    how: str = ""
    instead: str = ""
    remote: bool = False
    sharded: bool = False
    copies: float = 3.0
    beside: int = 0
    asking: float = 0.0
    behind: Behind | None = None
    pieces: int = 1
    decoded: float = 1.0
    raw: bool = False
    separate: bool = False
    parted: bool = False
    kept: bool = False
    fresh: bool = False
    codec: str = ""
    matches: float = 0.0

    @property
    def encoded(self) -> bool:
        """Whether chunks are stored encoded. Where they are not, functions may decode their elements all the same."""
        return not (self.raw or self.parted)


@dataclass(frozen=True)
class ArraySpec:
    """Shape, dtype and layout of a source or a sink.

    Attributes
    ----------
    name : str
        Path, or the kind of object, for plans and errors. It does not count in comparisons: plans are kept.
    shape : tuple of int
    dtype : numpy.dtype
        In native byte order: the store swaps bytes itself.
    chunks : tuple of int or None
        Box that the store reads or writes whole (chunk or shard); None where any region will do.
    order : tuple of int
        Axes from the slowest to the fastest varying in the store.
    storage : Storage
        How the store keeps it.
    """

    name: str = field(compare=False)
    shape: Shape
    dtype: np.dtype
    chunks: Shape | None = None
    order: Shape = ()
    storage: Storage = Storage()

    def __post_init__(self) -> None:
        if len(self.order) != len(self.shape):
            object.__setattr__(self, "order", tuple(range(len(self.shape))))
        if not self.dtype.isnative:
            object.__setattr__(self, "dtype", self.dtype.newbyteorder("="))

    def with_storage(self, **changes: Any) -> ArraySpec:
        """The same array, with these attributes of its `storage` changed."""
        return replace(self, storage=replace(self.storage, **changes))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array, decoded."""
        return self.size * self.dtype.itemsize

    @property
    def by_parts(self) -> bool:
        """Whether any region is read by itself: there are no chunks, or none is read whole for a part of it."""
        return self.chunks is None or self.storage.parted

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk, of as much of it as the array has."""
        return math.prod(map(min, self.chunks or (), self.shape)) * self.dtype.itemsize

    def scatters(self, block: Shape) -> bool:
        """Whether a block of it lies in short runs.

        >>> x = ArraySpec("x", (1000, 4096), np.dtype("f4"))
        >>> x.scatters((100, 1024)), x.scatters((100, 4096)), x.scatters((1, 64))
        (True, False, False)
        """
        run = self.dtype.itemsize
        for axis in reversed(self.order):
            run *= block[axis]
            if block[axis] < self.shape[axis]:
                break
        return run < min(RUN, math.prod(block) * self.dtype.itemsize)


def default_chunks(shape: Shape, itemsize: int, target: int = 8 << 20) -> Shape:
    """Chunk of at most `target` bytes: the longest side is halved until it fits.

    >>> default_chunks((4096, 2048, 1000), 4)
    (128, 128, 125)
    """
    sides = [max(1, n) for n in shape]
    while sides and max(sides) > 1 and math.prod(sides) * itemsize > target:
        longest = sides.index(max(sides))
        sides[longest] = -(-sides[longest] // 2)
    return tuple(sides)

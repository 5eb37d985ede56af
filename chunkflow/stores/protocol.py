"""The protocols that every store follows: sources are read, targets are opened into sinks.

A store knows regions and NumPy arrays; it knows no device, plan or operation. Regions are tuples of
slices with explicit bounds and step 1 in the array's own axes. `read` and `write` are called from
several threads at once; the regions of concurrent writes never share a chunk.

A run that fails calls `Sink.abort`, one that succeeds `Sink.commit`, exactly one of the two, once.
Foreign exceptions are translated here, and only here, into `ReadError` and `WriteError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from chunkflow.core.encoded_chunks import Place
from chunkflow.core.grid import Region, Shape, whole
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ArraySpec, ByteRun, ChunkFiles
from chunkflow.stores.footprint import Footprint


class Source(Protocol):
    """An array that can be read by regions."""

    @property
    def spec(self) -> ArraySpec:
        """What a plan may know of the array."""

    @property
    def footprint(self) -> Footprint | None:
        """Where the elements live: of several arrays that are read, `Scattered`. None where that cannot be known."""

    def read(self, region: Region, out: np.ndarray) -> None:
        """Fill `out` (the region's shape, the spec's native dtype, any strides).

        Raises
        ------
        ReadError
            The region could not be read whole. `out` is then undefined and never used.
        """

    def view(self, region: Region) -> np.ndarray | None:
        """Read-only view of a region in the spec's dtype, or None unless ``spec.storage.in_memory``."""

    def close(self) -> None:
        """Release what the source itself opened. Idempotent."""


class ByteRuns(Protocol):
    """A source or a sink, some of whose regions are runs of bytes that others may move."""

    def run(self, region: Region) -> ByteRun | None:
        """Where the region's elements follow one another in the spec's order and dtype; None where they do not.

        Their bytes may be in the other order (`ByteRun.swap`). It holds as long as the store is open, and it is no
        promise that a file is as long.
        """


def run_of(store: object, region: Region) -> ByteRun | None:
    """The region's run, if the store knows such things."""
    run = getattr(store, "run", None)
    return run(region) if run is not None else None


class Separate(Protocol):
    """A source or a sink whose chunks are files as they are, that others may read or write (`Storage.separate`)."""

    def files(self, start: Shape, pieces: tuple[Piece, ...]) -> ChunkFiles | None:
        """The files of those pieces of a block that are whole chunks, or a source's runs of one.

        The block begins at `start`.

        Their elements are in the spec's order and dtype, their bytes maybe in the other order (`ChunkFiles.swap`). It
        is no promise that there are such files.
        """


def files_of(store: object, region: Region, pieces: tuple[Piece, ...]) -> ChunkFiles | None:
    """The files of a region's pieces, if the store knows such things."""
    files = getattr(store, "files", None)
    return files(tuple([side.start for side in region]), pieces) if files is not None else None


class Keeping(Protocol):
    """A source that can keep chunks which it has decoded."""

    def keep(self, lately: Any) -> None:
        """Keep them in a `chunkflow.stores.caches.decoded_chunks.DecodedChunks`, beside others', until it is closed.

        Blocks are smaller than chunks, and several threads read parts of the same.
        """


def keep_chunks(source: object, lately: Any) -> None:
    """Let a source keep chunks that it has decoded, if it can."""
    keep = getattr(source, "keep", None)
    if keep is not None:
        keep(lately)


class Encoded(Protocol):
    """A source whose chunks can be had as they are stored, for a device that decodes them."""

    codec: str
    """What chunks are encoded with, where that is all that is done to them; else empty."""

    def matches(self) -> float:
        """Matches per decoded byte in the longest chain of them that a decoder follows; 0 where nobody knows."""

    def places(self, indices: Sequence[Shape]) -> Sequence[Place | None]:
        """Where in files chunks lie, by their indices.

        Decoded each is all of a chunk, in the spec's dtype and order. None where only `read` can tell what the chunk
        holds, or what is wrong with it.
        """


class Filed(Protocol):
    """A source whose bytes come from files."""

    def cold(self, region: Region) -> int:
        """Bytes of the files that are not in the system's memory, about, and are needed to read a region.

        It is no error if there is no such file.
        """


def cold_bytes(sources: Iterable[Source]) -> int:
    """Bytes that have to come from a disk before sources can be read, as far as these know; of the same array once."""
    found: dict[object, int] = {}
    for source in sources:
        cold = getattr(source, "cold", None)
        if cold is not None:
            found[source.footprint or source] = int(cold(whole(source.spec.shape)))
    return sum(found.values())


def spec_for(source: Source, decodes: Callable[[str], object]) -> ArraySpec:
    """What is known of a source, and of how its chunks are encoded if whoever computes `decodes` such."""
    codec = str(getattr(source, "codec", ""))
    if not codec or not decodes(codec):
        return source.spec
    return source.spec.with_storage(codec=codec, matches=cast(Encoded, source).matches())


class Sink(Protocol):
    """An array that is being written by regions."""

    @property
    def spec(self) -> ArraySpec:
        """What a plan may know of the array."""

    def write(self, region: Region, block: np.ndarray) -> None:
        """Store `block` (the region's shape, the spec's native dtype, any strides).

        Raises
        ------
        WriteError
            The region could not be stored.
        """

    def commit(self) -> Any:
        """Make the array appear under its final name and return it, opened for the user."""

    def abort(self) -> None:
        """Remove everything that the run itself created. Idempotent; never raises."""


class Target(Protocol):
    """Where an output is to go, checked but not yet touched."""

    @property
    def name(self) -> str:
        """Path, or the kind of object."""

    @property
    def footprint(self) -> Footprint | None:
        """Where the elements will live; None for a target that the run creates."""

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        """Spec of the sink that `open` would give, for a result of this shape and dtype.

        `chunks` is a wish that only targets created by the run follow. Creates nothing.

        Raises
        ------
        ArgumentError
            The target exists and its shape is another one.
        ArgumentTypeError
            The target exists and its dtype cannot take the result (NumPy's ``same_kind`` rule).
        """

    def open(self, spec: ArraySpec) -> Sink:
        """Create (under a temporary name, where the target is a path) or wrap the sink."""

"""Contracts of stores: a source is read by regions; a target is checked first, then opened as a sink and written.

A region is a tuple of slices, one for each axis, with explicit bounds and step 1. `read` and `write` are called from
several threads at once. The regions of concurrent writes never share a chunk.

A run calls `Sink.commit` if it succeeds, `Sink.abort` if it fails: one of the two, once. Stores translate foreign
exceptions into `ReadError` and `WriteError`; nobody else does.

`Source`, `Sink` and `Target` are the minimum. The other protocols say what a store may offer beyond it, for speed.
The examples are the smallest of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np

from chunkflow.core.encoded_chunks import Place
from chunkflow.core.grid import Region, Shape, whole
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ArraySpec, ByteRun, ChunkFiles
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.gaps import Gaps
from chunkflow.stores.identity import Guard
from chunkflow.stores.publication.claim import Claim


class Source(Protocol):
    """An array that is read by regions.

    >>> class Zeros:
    ...     footprint = None
    ...
    ...     def __init__(self, shape):
    ...         self.spec = ArraySpec("zeros", shape, np.dtype("f4"))
    ...
    ...     def read(self, region, out):
    ...         out[...] = 0
    ...
    ...     def view(self, region):
    ...         return None
    ...
    ...     def close(self):
    ...         pass
    >>> source: Source = Zeros((2, 3))
    >>> source.read((slice(0, 1), slice(0, 2)), out := np.ones((1, 2), "f4"))
    >>> out
    array([[0., 0.]], dtype=float32)
    """

    @property
    def spec(self) -> ArraySpec:
        """Shape, dtype and layout, for the planner."""

    @property
    def footprint(self) -> Footprint | None:
        """Where the elements lie (`Scattered` for several arrays); None if that cannot be known."""

    def read(self, region: Region, out: np.ndarray) -> None:
        """Fill `out` (the region's shape, the spec's native dtype, any strides).

        Raises
        ------
        ReadError
            The region could not be read in full. `out` is then undefined and never used.
        """

    def view(self, region: Region) -> np.ndarray | None:
        """Read-only view of a region in the spec's dtype, or None unless ``spec.storage.in_memory``."""

    def close(self) -> None:
        """Release what the source itself opened. Idempotent."""


class Unviewed:
    """What sources share whose elements are always copied. `attributes` are what a format stores besides.

    ``labels()`` gives all attributes and names of dimensions, where the format has such.
    """

    attributes: Mapping[str, Any] = MappingProxyType({})
    labels: Callable[[], Any] | None = None
    short = ""
    """What is missing at the end of an array that others continue; empty if nothing."""

    def view(self, region: Region) -> np.ndarray | None:
        return None


class ByteRuns(Protocol):
    """Optional: a source or a sink that tells where a region's bytes lie, so that compiled loops can move them."""

    def run(self, region: Region) -> ByteRun | None:
        """Place of a region's bytes; None if its elements do not follow one another in the spec's order and dtype.

        Their byte order may be the other one (`ByteRun.swap`). The place is right as long as the store is open, but
        the file may turn out to be shorter.
        """


def run_of(store: object, region: Region) -> ByteRun | None:
    """`ByteRuns.run` of a store that has it; else None."""
    run = getattr(store, "run", None)
    return run(region) if run is not None else None


class MemoryRuns(Protocol):
    """Optional: a source that gathers a region from several runs of memory, so that compiled loops can do it."""

    def runs(self, region: Region) -> np.ndarray | None:
        """Addresses and bytes of the runs, a row for each, of which the first holds the first elements in the order.

        They are in the spec's dtype. None of a region that does not lie so, or is better read. The runs stay where they
        are as long as the source is open.
        """


def memory_runs(store: object, region: Region) -> np.ndarray | None:
    """`MemoryRuns.runs` of a store that has it; else None."""
    runs = getattr(store, "runs", None)
    return runs(region) if runs is not None else None


def lasting_view(source: Source, region: Region) -> np.ndarray | None:
    """A source's view of a region whose memory stays where it is, since the source tells of it (`ByteRuns`).

    None of another source, which may make its views for whoever asks.
    """
    return source.view(region) if hasattr(source, "run") else None


class Boxes(Protocol):
    """Optional: a source of which regions are made of several boxes, each of which may be a `ByteRuns.run`."""

    def boxes(self, region: Region) -> Sequence[Region]:
        """Regions that make up a region; it alone where its boxes are too many, or too narrow, to be moved apart."""

    def seen(self, region: Region) -> np.ndarray | None:
        """A view of a region that is one box of an array in memory, each element once; None of another."""


def seen_of(source: Source, region: Region) -> np.ndarray | None:
    """`Boxes.seen` of a source that has it; else `lasting_view`."""
    seen = getattr(source, "seen", None)
    return lasting_view(source, region) if seen is None else seen(region)


def boxes_of(store: object, region: Region) -> Sequence[Region]:
    """`Boxes.boxes` of a source that has it; else the region."""
    boxes = getattr(store, "boxes", None)
    return boxes(region) if boxes is not None else [region]


class Separate(Protocol):
    """Optional: a source or a sink whose chunks are unencoded files that others may read or write.

    `Storage.separate` says so.
    """

    def files(self, start: Shape, pieces: tuple[Piece, ...]) -> ChunkFiles | None:
        """Files of those pieces of a block that are whole chunks, or, of a source, one run of a chunk.

        The block begins at `start`. Elements are in the spec's order and dtype; their byte order may be the other one
        (`ChunkFiles.swap`). The files need not exist.
        """


def files_of(store: object, region: Region, pieces: tuple[Piece, ...]) -> ChunkFiles | None:
    """`Separate.files` of a store that has it; else None."""
    files = getattr(store, "files", None)
    return files(tuple([side.start for side in region]), pieces) if files is not None else None


class Keeping(Protocol):
    """Optional: a source that can keep decoded chunks, for blocks that are smaller than chunks."""

    def keep(self, lately: Any) -> None:
        """Keep decoded chunks in a `chunkflow.stores.caches.decoded_chunks.DecodedChunks` until the source is closed.

        Several sources may share it, and several threads read parts of one chunk.
        """


def keep_chunks(source: object, lately: Any) -> None:
    """Call `Keeping.keep` of a source that has it."""
    keep = getattr(source, "keep", None)
    if keep is not None:
        keep(lately)


class Unpaged(Protocol):
    """Optional: a sink whose memory may be new."""

    def make_pages(self) -> None:
        """Make the pages of new memory, so that nobody who stores waits for them."""


def make_pages(sinks: Iterable[object]) -> None:
    """Call `Unpaged.make_pages` of the sinks that have it."""
    for sink in sinks:
        if hasattr(sink, "make_pages"):
            sink.make_pages()


class Joined(Protocol):
    """Optional: a source that is made of others."""

    @property
    def parts(self) -> Sequence[Source]:
        """The sources that it reads."""

    @property
    def how(self) -> Any:
        """What is done with them, equal in another process for the same: `chunkflow.kernels.digest` takes it."""


def leaves(sources: Iterable[object]) -> Iterator[object]:
    """The sources that others are made of, themselves if of none."""
    for source in sources:
        parts = getattr(source, "parts", None)
        if parts is None:
            yield source
        else:
            yield from leaves(parts)


class Holding(Protocol):
    """Optional: a source or a target that needs things in memory which the library has made."""

    @property
    def held(self) -> Sequence[Any]:
        """These things: arrays, or what has its bytes as `held`. Several sources may share one."""


def bytes_held(sources: Iterable[object]) -> int:
    """Bytes of what arrays, and those that they are made of, have as `Holding.held`. The same thing counts once."""
    found: dict[int, int] = {}
    todo = list(sources)
    while todo:
        source = todo.pop()
        for thing in getattr(source, "held", ()):
            found[id(thing)] = thing.nbytes if isinstance(thing, np.ndarray) else int(thing.held)
        todo += getattr(source, "parts", None) or ()
    return sum(found.values())


class Guarded(Protocol):
    """Optional: a source that knows what it was when it was opened."""

    @property
    def guard(self) -> Guard | None:
        """Tells whether it still is that; None if nobody can."""


def guards_of(sources: Iterable[object]) -> list[Guard]:
    """`Guarded.guard` of all the sources that have it."""
    found = (getattr(leaf, "guard", None) for leaf in leaves(sources))
    return [guard for guard in found if guard is not None]


class Sparse(Protocol):
    """Optional: a source whose chunks may be missing."""

    @property
    def gaps(self) -> Gaps:
        """The missing chunks that were met."""

    def refuse_doubtful(self) -> None:
        """Raise a `ReadError` if all chunks were missing, and it may be that the store only failed to find them."""


def gaps_of(sources: Iterable[object]) -> list[tuple[str, Gaps]]:
    """`Sparse.gaps` of all the sources that have it, with their names."""
    found = [(cast(Source, leaf).spec.name, getattr(leaf, "gaps", None)) for leaf in leaves(sources)]
    return [(name, gaps) for name, gaps in found if gaps is not None]


def refuse_doubtful(sources: Iterable[object]) -> None:
    """`Sparse.refuse_doubtful` of all the sources that have it."""
    for leaf in leaves(sources):
        if getattr(leaf, "gaps", None) is not None:
            cast(Sparse, leaf).refuse_doubtful()


class Indexed(Protocol):
    """Optional: a source whose file says where its chunks lie."""

    def learn(self) -> object:
        """Read where they lie: while an output is written to the same file, it may be locked."""


def learn_indices(sources: Iterable[object]) -> None:
    """`Indexed.learn` of all the sources that have it."""
    for leaf in leaves(sources):
        if (learn := getattr(leaf, "learn", None)) is not None:
            learn()


class Located(Protocol):
    """Optional: a source that tells where elements lie, and what guards them."""

    @property
    def checksums(self) -> str:
        """Names of the checksums that are verified on reading, for people; empty if there are none."""

    def where(self, region: Region) -> str:
        """The file or object that has a region's first element, and from which byte on if that is known."""


def where(source: Source, region: Region) -> str:
    """`Located.where` of a source that has it; else its name."""
    found = getattr(source, "where", None)
    return source.spec.name if found is None else str(found(region))


def stored_chunks_of(source: Source) -> Shape | None:
    """The chunks that an array has in its file. Its spec has none where any part of a chunk is read by itself."""
    found: Shape | None = getattr(source, "stored_chunks", source.spec.chunks)
    return found


def checksums_of(source: Source) -> str:
    """`Located.checksums` of a source that has it."""
    return str(getattr(source, "checksums", ""))


class Encoded(Protocol):
    """Optional: a source that hands out chunks as they are stored, so that a device can decode them."""

    codec: str
    """The only codec of the chunks; empty if they have none, or if more is done to them."""

    def matches(self) -> float:
        """Matches per decoded byte in the longest chain of them that a decoder follows; 0 if unknown."""

    @property
    def checked(self) -> bool:
        """Whether each chunk is followed by its CRC-32C."""

    @property
    def since(self) -> int:
        """Time in nanoseconds: no file that was changed after it may be read. 0 if any may."""

    def places(self, indices: Sequence[Shape]) -> Sequence[Place | None]:
        """Where chunks lie in files, by their indices.

        Each decodes to all of a chunk, in the spec's dtype and order. None if only `read` can tell what the chunk
        holds, or what is wrong with it.
        """


class Filed(Protocol):
    """Optional: a source whose bytes come from files."""

    def cold(self, region: Region) -> int:
        """Estimated bytes that have to come from a disk to read a region: they are not in the page cache.

        A file that is missing is no error.
        """


def cold_bytes(sources: Iterable[Source]) -> int:
    """Sum of `Filed.cold` of whole sources. The same array counts once."""
    found: dict[object, int] = {}
    for source in sources:
        cold = getattr(source, "cold", None)
        if cold is not None:
            found[source.footprint or source] = int(cold(whole(source.spec.shape)))
    return sum(found.values())


def spec_for(source: Source, rated: Callable[[str], object], decodes: Callable[[str], object]) -> ArraySpec:
    """Spec of a source, with the codec that a device may decode: not one that is `rated` and then does not decode."""
    codec = str(getattr(source, "codec", ""))
    if codec and rated(codec) is None:
        return source.spec.with_storage(codec=codec)
    if not codec or not decodes(codec):
        return source.spec
    return source.spec.with_storage(codec=codec, matches=cast(Encoded, source).matches())


class Sink(Protocol):
    """An array that is being written by regions.

    >>> class Total:
    ...     def __init__(self, spec):
    ...         self.spec, self.total = spec, 0.0
    ...
    ...     def write(self, region, block):
    ...         self.total += block.sum()
    ...
    ...     def commit(self):
    ...         return self.total
    ...
    ...     def abort(self):
    ...         pass
    >>> sink: Sink = Total(ArraySpec("total", (4,), np.dtype("f4")))
    >>> sink.write((slice(0, 4),), np.ones(4, "f4"))
    >>> float(sink.commit())
    4.0
    """

    @property
    def spec(self) -> ArraySpec:
        """Shape, dtype and layout, for the planner."""

    def write(self, region: Region, block: np.ndarray) -> None:
        """Store `block` (the region's shape, the spec's native dtype, any strides).

        Raises
        ------
        WriteError
            The region could not be stored.
        """

    def commit(self) -> Any:
        """Make the array appear under its final name and return it, opened for the user for writing.

        Raises
        ------
        OutputExistsError
            Something appeared under the name during the run, and may not be overwritten.
        WriteError
            The array cannot be finished.
        """

    def abort(self) -> None:
        """Remove everything that the run itself created. Idempotent; never raises."""


class Placed(Protocol):
    """Optional: a sink whose elements lie in memory, so that a block can be made where it belongs."""

    def place(self, region: Region) -> np.ndarray | None:
        """The elements of a region, to be written to, in the spec's dtype; None where they lie otherwise."""


def place_of(sink: Sink, region: Region) -> np.ndarray | None:
    """`Placed.place` of a sink that has it; else None."""
    place = getattr(sink, "place", None)
    return None if place is None else cast(Placed, sink).place(region)


class Growing(Protocol):
    """Optional: a sink whose array can be read before it has its name. Its target has ``grows = True``."""

    def so_far(self) -> Any:
        """What has been written, as an array that can be a source."""


class Publishing(Protocol):
    """Optional: a sink whose array has a hidden name, so that all outputs of a call get their names together.

    `commit` does both for one sink alone.
    """

    def ready(self) -> Sequence[Claim]:
        """Finish the array under its hidden name: nothing but its names is lacking then. Errors as of `commit`."""

    def published(self) -> Any:
        """The array under its name, opened for the user."""

    def unpublish(self) -> None:
        """Close what `published` has opened: the name will be taken back. Idempotent."""


Encoder = Callable[[np.ndarray], object]
"""Encodes a block of at most a chunk, of any sides, as a sink encodes its chunks. It stores nothing."""


class Encoding(Protocol):
    """Optional: a target that tells how its sink encodes, so that it can be tried before a run."""

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        """The encoder of a result of this spec; None if it is unknown, or if chunks are stored as they are."""


def encoder_of(target: object, spec: ArraySpec) -> Encoder | None:
    """`Encoding.encoder` of a target that has it; else None."""
    encoder = getattr(target, "encoder", None)
    return encoder(spec) if encoder is not None else None


class Practising(Protocol):
    """Optional: a target that has a sink to practise with, so that writing can be tried before a run."""

    def practice(self, spec: ArraySpec) -> Sink | None:
        """A sink that writes as that of a result of this spec, into memory that is gone after its `abort`."""


def practice_of(target: object, spec: ArraySpec) -> Sink | None:
    """`Practising.practice` of a target that has it; else None."""
    practice = getattr(target, "practice", None)
    return practice(spec) if practice is not None else None


class Changing(Protocol):
    """Optional: a target that writes into a file or folder that exists."""

    @property
    def writes(self) -> str:
        """Its path; empty if there is none."""


def written_by(targets: Iterable[object]) -> list[str]:
    """`Changing.writes` of all the targets that have it."""
    return [path for target in targets if (path := getattr(target, "writes", ""))]


class Target(Protocol):
    """Where an output is to go, checked but not yet touched.

    A target of a new array in one piece may have an attribute ``takes_order = True``: its elements lie in the memory
    order of the spec that it opens with, which is then the sources'. Others open with the spec they describe.

    >>> class Anywhere:
    ...     name, footprint = "anywhere", None
    ...
    ...     def describe(self, shape, dtype, chunks):
    ...         return ArraySpec(self.name, shape, dtype)
    ...
    ...     def open(self, spec):
    ...         raise NotImplementedError
    >>> target: Target = Anywhere()
    >>> target.describe((2, 3), np.dtype("f4"), None).nbytes
    24
    """

    @property
    def name(self) -> str:
        """Path, or kind of object."""

    @property
    def footprint(self) -> Footprint | None:
        """Where the elements will lie; None for an array that the run creates."""

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        """Spec that the sink of a result of this shape and dtype would have. Creates nothing.

        Only arrays that the run creates follow the wish for `chunks`. If `dtype` is `chunkflow.core.unknown.ANY_DTYPE`
        the result's is not known yet, and nothing is refused for it.

        Raises
        ------
        ArgumentError
            The target exists, and its shape is another one.
        ArgumentTypeError
            The target exists, and its dtype cannot hold the result (NumPy's ``same_kind`` rule).
        """

    def open(self, spec: ArraySpec) -> Sink:
        """Create the array (at a path under a temporary name), or wrap the one that exists.

        Raises
        ------
        ArgumentError
            The process has the file open for reading only.
        WriteError
            The array cannot be created, or the disk has no room for it.
        HostMemoryError
            The array is larger than the host memory that is available now.
        """

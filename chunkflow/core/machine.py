"""A machine as the planner sees it: rates and sizes of a device and of its host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST_PIECES = 4
"""Pieces of the usual size that a chunk may have to go through pinned memory as one, however large that is
(`Machine.whole`): of such slots not all would stay in the cache, nor pinned until the next run."""


@dataclass(frozen=True)
class Decoding:
    """How fast a device decodes the chunks of a codec, all those of a block at once.

    Attributes
    ----------
    codec : str
    chunk : float
        Bytes per second of one chunk, which is decoded no faster however few there are beside it.
    start, step : float, int
        Seconds that a chunk takes besides if it has so many bytes, or more; if it has less, as much less.
    match : float
        Seconds that each of its matches takes besides.
    peak : float
        Bytes per second of all together, at most.
    temporary : callable
        Bytes of device memory that the decoder takes for so many items, of so many bytes each at most, and in all.
    host : float
        How much faster than an ordinary codec's the host's decoder is.
    item : int
        Bytes that the parts have, on average, into which a chunk is cut and shuffled before these are encoded, or more;
        0 for codecs that don't.
    """

    codec: str
    chunk: float
    peak: float
    temporary: Callable[[int, int, int], int]
    host: float = 1.0
    item: int = 0
    start: float = 0.0
    step: int = 1
    match: float = 0.0

    def seconds(self, number: int, nbytes: int, matches: float = 0.0) -> float:
        """Of so many chunks of so many bytes, with so many matches for each of these.

        >>> d = Decoding("zstd", chunk=10, peak=100, temporary=max, start=3, step=20, match=2)
        >>> d.seconds(1, 10), d.seconds(1, 30), d.seconds(1, 30, 0.5), d.seconds(40, 30)
        (2.5, 6.0, 36.0, 12.0)
        """
        one = self.start * min(nbytes / self.step, 1) + nbytes * (1 / self.chunk + matches * self.match)
        return max(one, number * nbytes / self.peak)


@dataclass(frozen=True)
class Machine:
    """Rates of a device and its host, in bytes per second, and what a block costs besides, in seconds.

    Attributes
    ----------
    read, upload, compute, download, write : float
        Rates of the stages. Compute counts every byte of a block's inputs, results and workspace.
    overhead, handling : float
        Seconds of host work per block, and per chunk that is read; a chunk in a shard takes it twice.
    lanes : int
        Blocks that compute at the same time.
    depths : tuple of int
        Slots per operand to consider, best overlap first.
    staged : bool
        Whether data reach the device through pinned memory; False where it shares the host's.
    cache : int
        Bytes of a lane's working set that stay in the cache, beyond which compute slows down by `spill`; 0 for
        no such bound.
    spill : float
        Factor on the compute rate for what lies beyond the cache.
    piece : int
        Bytes of a piece of a staged transfer.
    whole : int
        Bytes of a chunk up to which it goes through pinned memory as one, even if it is `MOST_PIECES` usual pieces
        and more.
    apart : int
        Bytes of a chunk that is a file as it is from which on it is a piece by itself, where staged; 0: none is.
    threads, slots : int
        Threads of staging, which its two directions share, and pinned slots for each.
    host_limit : int
        Bytes of pinned memory that each direction may take.
    page : int
        Bytes by which device memory is handed out.
    decode, encode : float
        Rates at which chunks are decoded and encoded, besides being read and written: an ordinary codec's, for
        which one it is nobody knows before.
    create : float
        Rate at which a new file is written by all lanes, as the system makes its pages for one writer at a time; 0
        for as others.
    scatter : float
        The same of short runs, which go through a mapping; 0 for as `create`.
    separate : float
        The same of chunks that are files of their own, whose pages it makes side by side.
    load : float
        Rate at which a lane reads files that are in the system's memory; 0 for as `read`.
    disk : float
        Rate at which bytes of files come that are not in the system's memory; 0: as fast as others. No plan counts it,
        since results would differ in their last bits by what is there, but what `chunkflow.engine.observe.analysis`
        expects of a run.
    fresh : float
        Rate at which a lane, or where staged all threads together, is given memory of the host that it has not used
        before; 0: in no time. As with `disk`, no plan counts it: a run takes such memory but once, however long it is.
    multiply : float
        Multiply-adds per second in products of matrices, of the whole device; 0 for what is usual.
    accumulates : bool
        Whether products of matrices are added to a tile without memory besides.
    decodings : tuple of Decoding
        Codecs that the device decodes itself.
    """

    read: float
    upload: float
    compute: float
    download: float
    write: float
    overhead: float
    lanes: int = 1
    depths: tuple[int, ...] = (3, 2, 1)
    staged: bool = True
    cache: int = 0
    spill: float = 1.0
    piece: int = 8 << 20
    whole: int = 0
    apart: int = 0
    threads: int = 16
    slots: int = 2
    host_limit: int = 1 << 30
    page: int = 512
    decode: float = 6e9
    encode: float = 2e9
    handling: float = 0.0
    create: float = 0.0
    scatter: float = 0.0
    separate: float = 0.0
    load: float = 0.0
    disk: float = 2e9
    fresh: float = 0.0
    multiply: float = 0.0
    accumulates: bool = False
    decodings: tuple[Decoding, ...] = ()

    @property
    def most(self) -> int:
        """Bytes of what goes through pinned memory as one, at most."""
        return max(self.whole, MOST_PIECES * self.piece)

    def decoding(self, codec: str) -> Decoding | None:
        """How the device decodes a codec, if it does."""
        return next((d for d in self.decodings if d.codec == codec), None)

    @property
    def loading(self) -> float:
        """Bytes of files per second that reach the device where nothing else holds them up."""
        return min(self.read, self.upload)

    @property
    def products(self) -> float:
        """Multiply-adds per second. On the CPU, BLAS itself uses every core, however many lanes there are."""
        return self.multiply or (2e13 if self.staged else 4e10 * self.lanes)

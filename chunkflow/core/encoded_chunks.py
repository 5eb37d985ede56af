"""Encoded chunks of a block, for a device that decodes them: they are fetched, and listed in the table of their batch.

Most codecs make one part of a chunk. Blosc cuts chunks into blocks, and blocks into items, with the bytes or the bits
of their elements shuffled: those of one significance beside each other. All that can be checked without decoding is
checked in C (`system/native/_chunks.c`), on the very bytes that are uploaded: a dozen threads check thousands of chunks
a second. Without the compiled code the host decodes all chunks; with it, only those that are stored in unusual ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chunkflow.system import native

CODECS = ("zstd", "lz4", "blosc-lz4", "blosc-zstd", "gzip")
"""Codecs, by their numbers in ``_chunks.c``."""

ALIGNMENT = 16
"""Alignment of chunks in a buffer, in bytes: a multiple of every dtype's size, as some chunks come decoded."""

PLAIN, BYTES, BITS = 0, 1, 2
"""How a block's elements are shuffled: not at all; first bytes first; first bits first."""

FACTS = 5
"""Numbers by which a device knows a chunk's layout, if it is put together of items: how many items come before; bytes
of each block but the last, multiples of 4 if there are several; items of equal length in each such block, where a
shorter last one has a single item; bytes of an element; and how these are shuffled.
"""

KEPT = 2
"""Decoded chunks of an operand that are kept at once: one for the block being read, one for the next."""


class Stamp(NamedTuple):
    """Identity of a file's content: the inode, the time of the last change in ns, and the size."""

    inode: int
    modified: int
    size: int


Place = tuple[str, int, int] | tuple[str, int, int, Stamp]
"""A path, a position in the file, and a number of bytes (-1 for all). With a stamp, only that very file will do.

A plain tuple: one is made for each chunk before any is read, and C takes it apart.
"""


class Tabled(NamedTuple):
    """Contents of a table.

    Attributes
    ----------
    decoded, items : int
        Items that are to be decoded, and all of them: where chunks are put together, some are stored as they are.
    sizes : ndarray of int64
        Bytes that each is to be decoded to.
    checksums : ndarray of int64
        Their CRC-32; -1 where it is not known.
    ends : ndarray of int64
        For each chunk, the number of those up to its last one.
    """

    decoded: int
    items: int
    sizes: np.ndarray
    checksums: np.ndarray
    ends: np.ndarray


class Packed:
    """Chunks by their numbers, each of which decodes to so many bytes. Threads may fetch different ones side by side.

    Parameters
    ----------
    places : sequence of (str, int, int), with a stamp or without, or None
        Where each lies; what those are that lie nowhere only the host can tell.
    codec : str
        Of `CODECS`.
    nbytes : int
        Bytes of a decoded chunk.
    most : int
        Items that a chunk may have.
    room : int
        Bytes of a buffer for each chunk, of which an encoded one may take all: a multiple of `ALIGNMENT`.
    since : int
        Time in nanoseconds: chunks whose files were changed after it are left to the host. 0 for none.
    checked : bool
        Whether each is followed by its CRC-32C. Those where it does not match are left to the host.
    """

    def __init__(
        self,
        places: Sequence[Place | None],
        codec: str,
        nbytes: int,
        most: int,
        room: int,
        since: int = 0,
        *,
        checked: bool = False,
    ) -> None:
        assert native.chunks is not None, "nothing comes encoded without"
        self._c, self.number, self.room = native.chunks, len(places), room
        self._chunks = self._c.chunks(list(places), CODECS.index(codec), nbytes, most, room, since, checked)

    def fetch(self, first: int, number: int, out: np.ndarray) -> None:
        """Read chunks into flat bytes, one behind the other. The bytes go to the first chunk's place in the buffer.

        A chunk is left to the host if its file is not there, if it takes more than its room or has more items than it
        may, or is not quite as it should be.
        """
        self._c.fetch(self._chunks, first, number, out)

    def missed(self, first: int, number: int) -> tuple[int, list[int]]:
        """Bytes of chunks that were fetched by one call, and which of these chunks are left to the host."""
        end, missed = self._c.missed(self._chunks, first, number)
        return end, missed

    def tabulate(self, out: np.ndarray, source: int, target: int, *, together: bool) -> Tabled:
        """Fill the table of a batch of all chunks, which lie at the address `source` and go to `target`.

        With `together` chunks are put together of their items. Behind these it then says where each lies once all are
        decoded, and has the chunks' layouts (see `FACTS`). Without room for all items it is a `ValueError`.
        """
        decoded, items, *arrays = self._c.tabulate(self._chunks, out, source, target, together)
        return Tabled(decoded, items, *[np.frombuffer(each, np.int64) for each in arrays])

    @property
    def address(self) -> tuple[int, int]:
        """Addresses of the chunks, and of the function that fetches some, for the compiled loops."""
        chunks, fetch = self._c.address(self._chunks)
        return chunks, fetch


ROWS, FILLED = 7, 3
"""Rows of a batch's table, and how many of the last the device fills. A row has 8 bytes for each item."""

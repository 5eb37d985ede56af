"""The contract of a codec: bytes to bytes, decoded to a size that is known before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from chunkflow.stores.kvstore.protocol import ChunkError


class NotDirectError(Exception):
    """Why chunks are left to the library whose format it is: to zarr's own pipeline, or to h5py."""


class NotBuiltError(Exception):
    """Why nothing that is installed can code chunks: a library was built without a part of it."""


class TooMuchError(ChunkError):
    """A chunk that holds more bytes than it may."""


class Codec(Protocol):
    """Bytes to bytes. A codec never makes more bytes than it is told, whatever a chunk claims.

    The smallest one, which does nothing:

    >>> class Identity:
    ...     name, copies = "identity", 0.0
    ...
    ...     def size(self, before):
    ...         return before
    ...
    ...     def decode(self, raw, size, out):
    ...         return raw
    ...
    ...     def encode(self, raw):
    ...         return raw
    >>> decoded(np.arange(3, dtype="u1"), [Identity()], [3, 3], None)
    array([0, 1, 2], dtype=uint8)
    """

    @property
    def name(self) -> str:
        """Name for people."""

    @property
    def copies(self) -> float:
        """Memory that coding takes besides its input and output, as a multiple of the decoded bytes."""

    def size(self, before: int) -> int | None:
        """Encoded size of so many bytes; None if it depends on their values."""

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        """Decode `raw` to `size` bytes (any number for None). The result may be in `out`, but need not be."""

    def encode(self, raw: Any) -> Any:
        """Encode a contiguous buffer."""


@dataclass(frozen=True)
class Compressor:
    """A codec of numcodecs whose encoded size depends on the bytes. Subclasses say how `out` is filled."""

    codec: Any
    copies: ClassVar[float] = 0.0

    @property
    def name(self) -> str:
        return str(self.codec.codec_id)

    def size(self, before: int) -> int | None:
        return None

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        assert size is not None, "what a compressor gives has a known size"
        if out is None:
            out = np.empty(size, np.uint8)
        self.fill(raw, out)
        return out

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        """Decode `raw` into `out`; an error if it holds more bytes or fewer."""
        raise NotImplementedError

    def claimed(self, raw: np.ndarray) -> int | None:
        """Bytes that `raw` says it holds; None if it does not say."""
        return None

    def unpack(self, raw: np.ndarray, most: int) -> np.ndarray:
        """Decode `raw` to at most so many bytes; an error if it holds more."""
        size = self.claimed(raw)
        if size is None:
            raise ChunkError("it does not say how many bytes it holds")
        require_most(size, most)
        out = np.empty(size, np.uint8)
        self.fill(raw, out)
        return out

    def encode(self, raw: Any) -> Any:
        return self.codec.encode(raw)


_SUMS = {"gzip": "crc32", "zlib": "adler32", "deflate": "adler32", "crc32c": "crc32c", "fletcher32": "fletcher32"}
"""The checksums of codecs that always have one."""


def checksum_of(step: Codec) -> str:
    """Name of the checksum that a codec verifies; empty if it has none."""
    found = _SUMS.get(step.name, "")
    if not found and isinstance(step, Compressor) and getattr(step.codec, "checksum", False):
        return f"{step.name}'s checksum"
    return found


def sizes_between(steps: Sequence[Codec], nbytes: int) -> tuple[int | None, ...]:
    """Bytes before the first step and after each; None behind a compressor."""
    sizes: list[int | None] = [nbytes]
    for step in steps:
        before = sizes[-1]
        sizes.append(None if before is None else step.size(before))
    return tuple(sizes)


def decoded(raw: np.ndarray, steps: Sequence[Codec], sizes: Sequence[int | None], out: np.ndarray | None) -> np.ndarray:
    """Undo all steps, the last one first. `sizes` are those of `sizes_between`; the result is in `out`, if given."""
    for number in reversed(range(len(steps))):
        step, size = steps[number], sizes[number]
        if size is None and isinstance(step, Compressor):
            raw = step.unpack(raw, most_encoded(max(known for known in sizes[:number] if known is not None)))
        else:
            raw = step.decode(raw, size, None if number else out)
    if len(raw) != sizes[0]:
        raise ChunkError(f"{len(raw)} bytes, where the chunk has {sizes[0]}")
    if out is not None and raw is not out:
        out[...] = raw
    return raw


def encoded(raw: Any, steps: Sequence[Codec]) -> Any:
    """Take a contiguous buffer through all steps."""
    for step in steps:
        raw = step.encode(raw)
    return raw


def most_encoded(nbytes: int) -> int:
    """Most bytes that so many may take encoded. No codec makes a chunk that much longer."""
    return 2 * nbytes + 65536


def require_most(size: int, most: int) -> None:
    """Raise if what is decoded holds more bytes than it may."""
    if size > most:
        raise TooMuchError(f"it holds {size} bytes or more, where the chunk takes at most {most}")


def require_claim(claimed: int, out: np.ndarray) -> None:
    """Raise if a chunk's header claims another number of bytes than the chunk has."""
    if claimed != out.size:
        raise ChunkError(f"it says that it holds {claimed} bytes, where the chunk has {out.size}")


def flat(array: Any) -> np.ndarray:
    """Bytes of a contiguous array or buffer."""
    if isinstance(array, np.ndarray):
        return array.reshape(-1).view(np.uint8)
    return np.frombuffer(array, np.uint8)


BLOSC_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
"""Numbers that Blosc's ways to shuffle have in all formats."""


def word(value: Any) -> str:
    """A string, or the string that an enumeration's member stands for."""
    return str(getattr(value, "value", value))

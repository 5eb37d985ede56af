"""Filters of HDF5 chunks, in the order in which they encode."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numcodecs
import numpy as np

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
"""Filters of HDF5 itself, as it numbers them (H5Zpublic.h)."""

BLOSC, LZ4, ZSTD = 32001, 32004, 32015
"""Filters that are registered with the HDF Group and that plugins bring."""

_NAMES = {
    DEFLATE: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    4: "szip",
    6: "scaleoffset",
    32000: "lzf",
    BLOSC: "blosc",
    LZ4: "lz4",
    32008: "bitshuffle",
    ZSTD: "zstd",
    32026: "blosc2",
}

_COMPRESSORS = (DEFLATE, BLOSC, LZ4, ZSTD)

_BLOSC_FORMATS = (0, 1, 3, 4)  # BloscLZ, LZ4, zlib and Zstandard; 2 would be Snappy

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ChunkError(ValueError):
    """A chunk whose bytes are not what its dataset's shape and filters say."""


class ForeignChunkError(Exception):
    """A chunk that HDF5 itself has to decode."""


class ChunkLocation(NamedTuple):
    """Where a chunk's bytes lie in the file, and which filters (by bit) it did not go through."""

    address: int
    size: int
    mask: int


@dataclass(frozen=True)
class Hdf5Filter:
    """A step of the pipeline: its number, and the values that it was set up with."""

    code: int
    values: tuple[int, ...] = ()

    def __str__(self) -> str:
        return _NAMES.get(self.code, f"filter {self.code}")


@dataclass(frozen=True)
class FilterPipeline:
    """The filters of a dataset whose chunks hold `nbytes` when decoded, in the order in which they encode."""

    filters: tuple[Hdf5Filter, ...]
    nbytes: int

    def __str__(self) -> str:
        return " + ".join(map(str, self.filters)) or "raw bytes"

    @property
    def decodes(self) -> bool:
        """Whether all of its filters are known here."""
        packed = [step.code for step in self.filters if step.code in _COMPRESSORS]
        known = all(step.code in (SHUFFLE, FLETCHER32, *_COMPRESSORS) for step in self.filters)
        # How large a buffer is that is compressed twice, only its header says.
        return known and len(packed) <= 1 and self._shuffles_elements

    @property
    def encodes(self) -> bool:
        """Whether chunks can be encoded here."""
        return self.decodes and all(step.code in (SHUFFLE, FLETCHER32, DEFLATE) for step in self.filters)

    @property
    def _shuffles_elements(self) -> bool:
        """Whether what is shuffled is whole elements."""
        size: int | None = self.nbytes
        for step in self.filters:
            if step.code == SHUFFLE and (
                size is None or not step.values or not step.values[0] or size % step.values[0]
            ):
                return False
            size = _after(step, size)
        return True

    def decode(
        self, place: ChunkLocation, read: Callable[[np.ndarray], None], out: np.ndarray, *, partial: bool
    ) -> None:
        """Fill `out` (`nbytes` bytes) with a chunk whose bytes `read` puts into a buffer.

        What comes out of each step is known before a byte is decoded, so nothing grows beyond that. `partial` says
        that the chunk sticks out of the array: HDF5 can be told not to filter those, and then says so nowhere.
        """
        steps = [step for i, step in enumerate(self.filters) if not place.mask >> i & 1]
        sizes: list[int | None] = [self.nbytes]  # what each step was given, and what is stored
        for step in steps:
            sizes.append(_after(step, sizes[-1]))
        if steps and partial and place.size == self.nbytes:
            raise ForeignChunkError
        # What cannot be compressed grows a little.
        if place.size > 2 * self.nbytes + 4096 if sizes[-1] is None else place.size != sizes[-1]:
            raise ChunkError(f"a chunk of {self.nbytes} bytes is stored in {place.size}")
        if not steps:
            read(out)
            return
        raw = np.empty(place.size, np.uint8)
        read(raw)
        for number in reversed(range(len(steps))):
            raw = _decode(steps[number], raw, sizes[number], None if number else out)
        if raw is not out:
            out[...] = raw

    def encode(self, whole: np.ndarray) -> Any:
        """Buffer of an encoded chunk."""
        raw: Any = whole
        for step in self.filters:
            if step.code == SHUFFLE:
                raw = numcodecs.Shuffle(step.values[0]).encode(raw)
            elif step.code == DEFLATE:
                raw = zlib.compress(raw, step.values[0] if step.values else -1)
            else:
                raw = numcodecs.Fletcher32().encode(np.frombuffer(raw, np.uint8))
        return raw


def _after(step: Hdf5Filter, size: int | None) -> int | None:
    """Bytes that a step makes of so many; None where that depends on what they are."""
    if size is None or step.code in _COMPRESSORS:
        return None
    return size + 4 if step.code == FLETCHER32 else size


def _decode(step: Hdf5Filter, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
    """Undo a step: the `size` bytes that it was given, in `out` if it can put them there."""
    if step.code == FLETCHER32:
        if len(raw) < 4 or (size is not None and len(raw) != size + 4):
            raise ChunkError(f"{len(raw)} bytes of a chunk are of another number than its checksum is of")
        checked: np.ndarray = np.frombuffer(numcodecs.Fletcher32().decode(raw), np.uint8)
        return checked
    assert size is not None  # the one compressor is given what is known
    if step.code == DEFLATE:
        return _inflate(raw, size)
    made = np.empty(size, np.uint8) if out is None else out
    if step.code == SHUFFLE:
        if len(raw) != size:
            raise ChunkError(f"{len(raw)} bytes of a chunk were shuffled, not {size}")
        numcodecs.Shuffle(step.values[0]).decode(raw, made)
    elif step.code == LZ4:
        _unpack_lz4(raw, made)
    else:
        claimed = _zstd_size(raw) if step.code == ZSTD else int.from_bytes(raw[4:8].tobytes(), "little")
        if step.code == BLOSC and (len(raw) < 16 or raw[2] >> 5 not in _BLOSC_FORMATS):
            raise ForeignChunkError
        if claimed is None:
            raise ForeignChunkError
        if claimed != size:
            raise ChunkError(f"a chunk claims to hold {claimed} bytes, not {size}")
        (numcodecs.zstd if step.code == ZSTD else numcodecs.blosc).decompress(raw, made)
    return made


def _inflate(raw: np.ndarray, size: int) -> np.ndarray:
    inflater = zlib.decompressobj()
    got = inflater.decompress(raw.data, size + 1)  # one more than is right, and no more than that
    if len(got) != size or not inflater.eof:
        raise ChunkError(f"a chunk does not decode to the {size} bytes that it holds")
    return np.frombuffer(got, np.uint8)


def _unpack_lz4(raw: np.ndarray, out: np.ndarray) -> None:
    """Blocks of LZ4, each behind its size; the sizes are big-endian (the HDF Group's filter 32004)."""
    if len(raw) < 12:
        raise ChunkError("a chunk is shorter than its header")
    claimed, side = struct.unpack(">QI", raw[:12].tobytes())
    if claimed != len(out):
        raise ChunkError(f"a chunk claims to hold {claimed} bytes, not {len(out)}")
    done, at = 0, 12
    while done < len(out):
        block = out[done : done + side]
        size = int.from_bytes(raw[at : at + 4].tobytes(), "big")
        body = raw[at + 4 : at + 4 + size]
        if not side or not size or len(body) != size:
            raise ChunkError("a chunk ends before its last block")
        if size == len(block):
            block[...] = body
        else:  # numcodecs wants the decoded size before a block
            numcodecs.lz4.decompress(struct.pack("<I", len(block)) + body.tobytes(), block)
        done, at = done + len(block), at + 4 + size


def _zstd_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a zstd frame, from its header (RFC 8878, section 3.1.1.1); None where it does not say."""
    header = raw[:18].tobytes()
    if len(header) < 6 or header[:4] != _ZSTD_MAGIC:
        raise ChunkError("a chunk is no frame of zstd")
    descriptor = header[4]
    single = descriptor >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width:
        return None
    return int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0)

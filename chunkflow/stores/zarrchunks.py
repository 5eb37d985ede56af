"""Chunks of a local zarr array, decoded straight into their places and encoded from them: the common codecs only.

Zarr's own pipeline takes a chunk through memory of its own, on an event loop and a pool of threads beside
ours, each of which keeps what it once took. Whatever is not plain here (shards, filters, checksums, other
codecs, foreign byte order) is left to it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr.codecs

from chunkflow.grid import Region, Shape, shape_of

MAGIC = b"\x28\xb5\x2f\xfd"
"""How every zstd frame begins (RFC 8878, section 3.1.1)."""

SHUFFLE = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


@dataclass(frozen=True)
class Codec:
    """A numcodecs codec whose buffers say how large they are decoded, so that no claim is believed unseen."""

    codec: Any
    size: Callable[[np.ndarray], int | None]


def zstd_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a zstd frame, from its header (RFC 8878, section 3.1.1.1); None where it does not say.

    >>> import numcodecs
    >>> zstd_size(np.frombuffer(numcodecs.Zstd().encode(bytes(1000)), np.uint8))
    1000
    """
    header = raw[:18].tobytes()
    if len(header) < 5 or header[:4] != MAGIC:
        return None
    descriptor = header[4]
    single = descriptor >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(header) < start + width:
        return None
    return int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0)


def blosc_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a blosc buffer, from its header of 16 bytes."""
    return int.from_bytes(raw[4:8].tobytes(), "little") if len(raw) >= 16 else None


SIZES = {"zstd": zstd_size, "blosc": blosc_size}


@dataclass(frozen=True)
class Chunks:
    """A local array's chunks: `key` names the file of each, `codec` is None where they are stored as they are."""

    folder: str
    key: Callable[[Shape], str]
    extents: Shape
    shape: Shape
    dtype: np.dtype
    fill: np.ndarray
    codec: Codec | None
    keeps_empty: bool

    def read(self, region: Region, out: np.ndarray) -> bool:
        """Fill `out` with a region; False if a chunk turns out to be one for zarr itself."""
        return all(self._read(index, inner, out[place]) for index, inner, place in self._touched(region))

    def write(self, region: Region, block: np.ndarray) -> bool:
        """Store a region; False if it cuts a chunk, which is zarr's affair."""
        parts = list(self._touched(region))
        for index, inner, _ in parts:
            full = [min((i + 1) * c, n) - i * c for i, c, n in zip(index, self.shape, self.extents, strict=True)]
            if shape_of(inner) != tuple(full):
                return False
        for index, inner, place in parts:
            self._write(index, inner, block[place])
        return True

    def _touched(self, region: Region) -> Iterator[tuple[Shape, Region, Region]]:
        """Index of each chunk of a region, what is wanted of the chunk, and where in the region that lies."""
        ranges = [range(s.start // c, -(-s.stop // c)) for s, c in zip(region, self.shape, strict=True)]
        for index in itertools.product(*ranges):
            inner, place = [], []
            for side, chunk, i in zip(region, self.shape, index, strict=True):
                start, stop = max(side.start, i * chunk), min(side.stop, (i + 1) * chunk)
                inner.append(slice(start - i * chunk, stop - i * chunk))
                place.append(slice(start - side.start, stop - side.start))
            yield index, tuple(inner), tuple(place)

    def _path(self, index: Shape) -> str:
        # Not a pathlib.Path: it would intern every name for good.
        return os.path.join(self.folder, self.key(index))

    def _read(self, index: Shape, inner: Region, target: np.ndarray) -> bool:
        try:
            with open(self._path(index), "rb", buffering=0) as file:
                raw = _contents(file)
        except FileNotFoundError:
            target[...] = self.fill
            return True
        straight = shape_of(inner) == self.shape and target.flags.c_contiguous
        whole = target if straight else np.empty(self.shape, self.dtype)
        if (len(raw) if self.codec is None else self.codec.size(raw)) != whole.nbytes:
            return False
        flat = whole.reshape(-1).view(np.uint8)
        if self.codec is None:
            flat[...] = raw
        else:
            self.codec.codec.decode(raw, flat)
        if not straight:
            target[...] = whole[inner]
        return True

    def _write(self, index: Shape, inner: Region, block: np.ndarray) -> None:
        path = self._path(index)
        if not self.keeps_empty and _all_equal(block, self.fill):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        whole = np.ascontiguousarray(block)
        if whole.shape != self.shape:
            whole = np.full(self.shape, self.fill)
            whole[inner] = block
        raw = whole if self.codec is None else self.codec.codec.encode(whole)
        _put(path, raw)


def _put(path: str, raw: Any) -> None:
    """Write a file, which appears under its name when it is complete."""
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.partial"
    try:
        try:
            file = open(temporary, "wb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = open(temporary, "wb", buffering=0)  # noqa: SIM115
        with file:
            left = memoryview(raw).cast("B")
            while len(left):
                left = left[file.write(left) :]
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _contents(file: io.FileIO) -> np.ndarray:
    """What is in a file."""
    raw = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
    done = 0
    while done < raw.size and (count := file.readinto(raw[done:].data)):
        done += count
    return raw[:done]


def _all_equal(block: np.ndarray, fill: np.ndarray) -> bool:
    """Whether every element is the fill value to the bit; its first element settles it for most blocks."""
    bits = np.dtype((np.void, block.dtype.itemsize))
    first = np.asarray(block[(0,) * block.ndim])
    if first.tobytes() != fill.tobytes():
        return False
    return bool((np.ascontiguousarray(block).view(bits) == fill.reshape(1).view(bits)).all())


def plain_chunks(array: Any, folder: Path) -> Chunks | None:
    """How to read and write an array's chunks directly; None where that is zarr's affair."""
    metadata, dtype = array.metadata, np.dtype(array.dtype)
    if sys.byteorder != "little" or not dtype.isnative or array.fill_value is None or not array.shape:
        return None
    if metadata.zarr_format == 2:
        if metadata.filters or array.order != "C":
            return None
        given = metadata.compressor
        codec = given and SIZES.get(given.codec_id) and Codec(given, SIZES[given.codec_id])
    else:
        first, *rest = metadata.codecs
        # Zarr may be told to raise where a chunk is missing, not to fill in.
        strict = not getattr(getattr(array, "config", None), "read_missing_chunks", True)
        plain = isinstance(first, zarr.codecs.BytesCodec) and len(rest) <= 1 and array.shards is None
        if not plain or strict or (getattr(first.endian, "value", None) == "big" and dtype.itemsize > 1):
            return None
        given = rest[0] if rest else None
        codec = _version_3(given)
    if given is not None and not codec:
        return None
    return Chunks(
        str(folder),
        metadata.encode_chunk_key,
        tuple(array.shape),
        tuple(array.chunks),
        dtype,
        np.asarray(array.fill_value, dtype),
        codec or None,
        bool(getattr(getattr(array, "config", None), "write_empty_chunks", True)),
    )


def _word(value: Any) -> str:
    """A string, or the string that an enumeration's member stands for."""
    return str(getattr(value, "value", value))


def _version_3(codec: Any) -> Codec | None:
    """The numcodecs codec behind one of zarr 3."""
    if isinstance(codec, zarr.codecs.ZstdCodec):
        return Codec(numcodecs.Zstd(level=codec.level, checksum=codec.checksum), zstd_size)
    if isinstance(codec, zarr.codecs.BloscCodec):
        shuffle: Any = codec.shuffle
        made = numcodecs.Blosc(_word(codec.cname), codec.clevel, SHUFFLE[_word(shuffle)], codec.blocksize)
        return Codec(made, blosc_size)
    return None

"""nvCOMP's decoders for batches of chunks (extra `nvcomp`), through its C interface of addresses and streams.

nvCOMP does not know Blosc's chunks, but it knows the items in them, which `chunkflow.devices.cuda.unshuffle` joins.

The library is loaded when a source first has chunks for it, and is tried on a small chunk. The host decodes if that
fails, if there is no library, or if it is of another version. ``CHUNKFLOW_NVCOMP=0`` in the environment turns it off.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_bool, c_char, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numcodecs
import numpy as np

from chunkflow.core.encoded_chunks import BYTES, ROWS
from chunkflow.core.machine import Decoding
from chunkflow.core.pieces import Piece, pieces
from chunkflow.devices.protocol import Block, Decoder, Device
from chunkflow.errors import DeviceError

VARIABLE = "CHUNKFLOW_NVCOMP"

LIBRARY = "libnvcomp.so.6"
"""The version with the function arguments that are used here."""

NAMES = {"zstd": "Zstd", "lz4": "LZ4", "gzip": "Gzip"}


@dataclass(frozen=True)
class Known:
    """The figures of a codec for `chunkflow.core.machine.Decoding`, measured on an H200 and an H100."""

    chunk: float
    peak: float
    host: float
    item: int = 0
    start: float = 0.0
    step: int = 1
    match: float = 0.0


CODECS = {
    # The blocks of a frame are decoded side by side, their matches one after the other.
    "zstd": Known(0.75e9, 90e9, 1.3, start=7e-3, step=128 << 10, match=0.09e-6),
    # For data that LZ4 shrinks by a third or half; what it does not shrink is decoded three times as fast.
    "lz4": Known(0.035e9, 250e9, 3.0),
    # Blosc's items are decoded side by side, and joined.
    "blosc-zstd": Known(1.6e9, 50e9, 2.5, 16 << 10),
    "blosc-lz4": Known(1.3e9, 80e9, 4.0, 16 << 10),
    "gzip": Known(0.011e9, 18e9, 0.8),
}
"""The host's rate of LZ4 is an assumption."""

NO_BATCH = 1 << 62
"""More bytes than any device has, for batches that are too large for the library: plans try these too."""

LIKELY = 1 << 20
"""Chunk size for which checksums are computed fast. The host decodes much larger gzip chunks faster."""

TRIED = 64 << 20
"""Most bytes of device memory for the trial of a decoder."""


class Gpu(Device, Protocol):
    """A CUDA device, which also counts the memory of libraries outside every pool."""

    def taken(self) -> int:
        """Bytes of the card that this process has taken."""

    def note_growth(self, nbytes: int) -> None:
        """Add memory that a library took."""

    def __hash__(self) -> int: ...


class _Options(Structure):
    """Options of any decoder: 64 bytes, all 0 for the defaults."""

    _fields_ = [("reserved", c_char * 64)]


class _How(Structure):
    """How to compute checksums: nvcompCRC32KernelConf_t."""

    _fields_ = [("kernel", c_int), ("width", c_int), ("blocks", c_int), ("reserved", c_char * 20)]


class _Sums(Structure):
    """Which checksums, and how: nvcompBatchedCRC32Opts_t."""

    _fields_ = [
        ("poly", c_uint),
        ("init", c_uint),
        ("ref_in", c_bool),
        ("ref_out", c_bool),
        ("xorout", c_uint),
        ("spec_reserved", c_char * 16),
        ("how", _How),
        ("reserved", c_char * 64),
    ]


@cache
def _path() -> str | None:
    """Path of the library, if it is installed and not turned off."""
    if os.environ.get(VARIABLE) == "0":
        return None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.libnvcomp")
        for folder in spec.submodule_search_locations or () if spec else ():
            path = Path(folder, "lib64", LIBRARY)
            if path.is_file():
                return str(path)
    return None


@cache
def _functions(codec: str) -> tuple[Callable[..., int], Callable[..., int]] | None:
    """The functions that give the memory of a batch, and that decode one."""
    path = _path()
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
        name = f"nvcompBatched{NAMES[codec]}Decompress"
        size, decode = getattr(library, f"{name}GetTempSize"), getattr(library, f"{name}Async")
    except (OSError, AttributeError):
        return None
    size.argtypes = [c_size_t, c_size_t, _Options, POINTER(c_size_t), c_size_t, c_void_p]
    decode.argtypes = [*[c_void_p] * 4, c_size_t, c_void_p, c_size_t, c_void_p, _Options, c_void_p, c_void_p]
    size.restype = decode.restype = c_int
    return size, decode


@cache
def _checksums() -> tuple[Callable[..., int], Callable[..., int]]:
    """The functions that configure checksums, and that compute them."""
    library = ctypes.CDLL(_path())
    configure, compute = library.nvcompBatchedCRC32GetHeuristicConf, library.nvcompBatchedCRC32Async
    configure.argtypes = [c_void_p, c_size_t, POINTER(_How), c_size_t, c_void_p]
    compute.argtypes = [c_void_p, c_void_p, c_size_t, c_void_p, _Sums, c_int, c_void_p, c_void_p]
    configure.restype = compute.restype = c_int
    return configure, compute


def decodings(device: Gpu) -> tuple[Decoding, ...]:
    """The codecs that the library decodes, for the planner; none where it is not installed. It is not loaded yet."""
    known = CODECS.items() if _path() is not None else ()
    return tuple(Decoding(name, temporary=partial(_temporary, device, _items(name)), **vars(k)) for name, k in known)


def _items(codec: str) -> str:
    """The codec of the items of a codec's chunks."""
    return codec.removeprefix("blosc-")


@cache
def _temporary(device: Gpu, codec: str, number: int, most: int, total: int) -> int:
    """Bytes that a decoder needs for `number` items, from the library; `NO_BATCH` if it cannot decode so many."""
    functions = _functions(codec)
    assert functions is not None, "asked only where there is a decoder"
    found = c_size_t()
    with device.attach():
        status = functions[0](number, most, _Options(), byref(found), total, None)
    return NO_BATCH if status else found.value


def _decode(device: Gpu, codec: str, number: int, columns: int, table: int, temporary: int, room: int) -> None:
    """See `chunkflow.devices.protocol.Decoder`. The work is enqueued on the current stream."""
    functions = _functions(codec)
    assert functions is not None, "asked only where there is a decoder"
    source, sizes, rooms, target, made, statuses, sums = (table + row * columns * 8 for row in range(ROWS))
    stream = device.caller_lane().pointer  # type: ignore[attr-defined]
    status = functions[1](source, sizes, rooms, made, number, temporary, room, target, _Options(), statuses, stream)
    if status:
        raise DeviceError(
            f"nvCOMP refuses a batch of {number} {codec} items (status {status}): CHUNKFLOW_NVCOMP=0 decodes them on "
            "the host"
        )
    if codec == "gzip":  # nvCOMP does not check the sum at the end
        _checksum(number, target, rooms, sums, stream)


def _checksum(number: int, target: int, sizes: int, sums: int, stream: int) -> None:
    """Compute the CRC-32 of decoded chunks."""
    configure, compute = _checksums()
    options = _Sums(poly=0x04C11DB7, init=0xFFFFFFFF, ref_in=True, ref_out=True, xorout=0xFFFFFFFF)
    if configure(None, number, byref(options.how), LIKELY, None):
        raise DeviceError("nvCOMP cannot compute checksums: CHUNKFLOW_NVCOMP=0 computes them on the host")
    if status := compute(target, sizes, number, sums, options, 0, None, stream):
        raise DeviceError(
            f"nvCOMP refuses to compute the checksums of {number} chunks (status {status}): CHUNKFLOW_NVCOMP=0 "
            "computes them on the host"
        )


@cache
def decoder(device: Gpu, codec: str) -> Decoder | None:
    """The decoder of a codec on a device, after a trial; None where it does not work."""
    if codec not in CODECS or _functions(_items(codec)) is None:
        return None
    found, before = partial(_decode, device, _items(codec)), device.taken()
    try:
        right = _tried(found, device, _items(codec)) and (not CODECS[codec].item or _put_together(device))
        return found if right else None
    except Exception:  # for another device or driver, or no memory is left: the host decodes
        return None
    finally:
        device.note_growth(device.taken() - before)


def _tried(decode: Decoder, device: Gpu, codec: str) -> bool:
    """Whether a chunk is decoded correctly. The library allocates its own memory now."""
    plain = np.arange(4096, dtype=np.uint16).view(np.uint8)
    raw = np.frombuffer(numcodecs.get_codec({"id": codec}).encode(plain), np.uint8)
    raw = raw[4:] if codec == "lz4" else raw
    with device.attach():
        pool = device.pool(device.reserve + TRIED)
        lane, buffers = device.caller_lane(), pool.host_buffers(1, plain.nbytes)
        try:
            room = _temporary(device, codec, 1, plain.nbytes, plain.nbytes)
            out, temporary = pool.allocate(plain.nbytes), pool.allocate(max(room, 1))
            address = device.address
            with pool.active():
                coded = device.to_device(raw)
                rows = [address(coded), raw.nbytes, plain.nbytes, address(out), 0, 0xFFFFFFFF, 0]
                table = device.to_device(np.array(rows, np.uint64))
            lane.call(partial(decode, 1, 1, address(table), address(temporary), room)).result()
            buffers[0].pin()
            [whole] = pieces((plain.nbytes,), (0,), plain.nbytes)
            lane.download(Block(out, (0,), out), whole, buffers[0], None)
            lane.synchronize()
            right = bool((buffers[0].array[: plain.nbytes] == plain).all())
            if codec == "gzip":
                lane.download(Block(table, (0,), table), Piece((slice(6, 7),), (1,), 1, 6), buffers[0], None)
                lane.synchronize()
                right = right and int(buffers[0].array[:4].view(np.uint32)[0]) == zlib.crc32(plain.data)
            return right
        finally:
            pool.release_host(buffers)
            coded = table = out = temporary = None  # else the pool cannot free their memory
            pool.close()


def _put_together(device: Gpu) -> bool:
    """Whether a chunk with shuffled bytes is joined correctly. The kernel is compiled now."""
    if device.unshuffle is None:
        return False
    plain = np.arange(1024, dtype=np.uint32)
    with device.attach():
        pool = device.pool(device.reserve + TRIED)
        try:
            with pool.active():
                stored = device.to_device(plain.view(np.uint8).reshape(-1, 4).T.copy())
                where = device.to_device(np.array([device.address(stored)], np.uint64))
                facts = device.to_device(np.array([0, plain.nbytes, 1, 4, BYTES], np.uint64))
                out = pool.allocate(plain.nbytes).view(np.uint32)
                device.unshuffle(device.address(where), device.address(facts), plain.nbytes, out)
                return bool((out == device.to_device(plain)).all())
        finally:
            stored = where = facts = out = None
            pool.close()

"""nvCOMP's decoders for batches of chunks (extra `nvcomp`), through its C interface: addresses and streams, no arrays.

The library is loaded when a source first has something for it, and tried on a small chunk: where that fails, or there
is none, or another one than is known here, the host decodes. ``CHUNKFLOW_NVCOMP=0`` in the environment does without.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_char, c_int, c_size_t, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np

from chunkflow.cost import Decoding
from chunkflow.devices.base import Block, Decoder, Device
from chunkflow.errors import DeviceError
from chunkflow.grid import pieces

VARIABLE = "CHUNKFLOW_NVCOMP"

LIBRARY = "libnvcomp.so.6"
"""The version whose functions have the arguments that are given here."""

NAMES = {"zstd": "Zstd", "lz4": "LZ4"}

RATES = {"zstd": (0.33e9, 90e9), "lz4": (0.11e9, 250e9)}
"""Bytes per second of one chunk (of zstd, one that shrinks by a third), and of many at once, as measured on an H200."""

HOST = {"zstd": 1.8, "lz4": 3.0}
"""How much faster than an ordinary codec's the host's decoders are: zstd's as measured, LZ4's as it is taken to be."""

NO_BATCH = 1 << 62
"""More bytes than any device has: a plan tries batches that are too large for the library, too."""

TRIED = 64 << 20
"""Bytes of device memory that the trial of a decoder may take."""


class Gpu(Device, Protocol):
    """A CUDA device, which also counts what libraries take outside every pool."""

    def note_growth(self, nbytes: int) -> None:
        """Add what a library took."""

    def __hash__(self) -> int: ...


class _Options(Structure):
    """Of any decoder: 64 bytes, all of them 0 for what is usual."""

    _fields_ = [("reserved", c_char * 64)]


@cache
def _path() -> str | None:
    """Where the library is, if it is installed and wanted."""
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
    """The functions that say how much memory a batch takes, and that decode one."""
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


def decodings(device: Gpu) -> tuple[Decoding, ...]:
    """What the library does on a device, as plans know it; nothing where it isn't installed. It is not loaded yet."""
    known = RATES.items() if _path() is not None else ()
    return tuple(Decoding(codec, *rates, partial(_temporary, device, codec), HOST[codec]) for codec, rates in known)


@cache
def _temporary(device: Gpu, codec: str, number: int, nbytes: int) -> int:
    """Bytes that the decoder takes for so many chunks of so many bytes, as the library says; `NO_BATCH` if it can't."""
    functions = _functions(codec)
    assert functions is not None, "asked only where there is a decoder"
    found = c_size_t()
    with device.attach():
        status = functions[0](number, nbytes, _Options(), byref(found), number * nbytes, None)
    return NO_BATCH if status else found.value


def _decode(device: Gpu, codec: str, number: int, columns: int, table: int, temporary: int, room: int) -> None:
    """See `chunkflow.devices.base.Decoder`: what follows on the present stream."""
    functions = _functions(codec)
    assert functions is not None, "asked only where there is a decoder"
    source, sizes, rooms, target, made, statuses = (table + row * columns * 8 for row in range(6))
    stream = device.caller_lane().pointer  # type: ignore[attr-defined]
    status = functions[1](source, sizes, rooms, made, number, temporary, room, target, _Options(), statuses, stream)
    if status:
        raise DeviceError(f"nvCOMP refuses a batch of {number} {codec} chunks: status {status}")


@cache
def decoder(device: Gpu, codec: str) -> Decoder | None:
    """The decoder of a codec on a device, once it has been seen to work there; None where it doesn't."""
    if codec not in NAMES or _functions(codec) is None:
        return None
    found, before = partial(_decode, device, codec), device.free_memory()
    try:
        return found if _tried(found, device, codec) else None
    except Exception:  # made for another device or driver, or no memory is left: the host can decode
        return None
    finally:
        device.note_growth(before - device.free_memory())


def _tried(decode: Decoder, device: Gpu, codec: str) -> bool:
    """Whether a chunk is decoded to what it was. What the library takes for itself it takes now."""
    plain = np.arange(4096, dtype=np.uint16).view(np.uint8)
    raw = np.frombuffer(getattr(importlib.import_module("numcodecs"), NAMES[codec])().encode(plain), np.uint8)
    raw = raw[4:] if codec == "lz4" else raw
    with device.attach():
        pool = device.pool(device.reserve + TRIED)
        lane, slots = device.caller_lane(), pool.host_slots(1, plain.nbytes)
        try:
            room = _temporary(device, codec, 1, plain.nbytes)
            out, temporary = pool.allocate(plain.nbytes), pool.allocate(max(room, 1))
            address = device.address
            with pool.active():
                coded = device.to_device(raw)
                rows = [address(coded), raw.nbytes, plain.nbytes, address(out), 0, 0xFFFFFFFF]
                table = device.to_device(np.array(rows, np.uint64))
            lane.call(partial(decode, 1, 1, address(table), address(temporary), room)).result()
            slots[0].pin()
            [whole] = pieces((plain.nbytes,), (0,), plain.nbytes)
            lane.download(Block(out, (0,), out), whole, slots[0], None)
            lane.synchronize()
            return bool((slots[0].array[: plain.nbytes] == plain).all())
        finally:
            pool.release_host(slots)
            coded = table = out = temporary = None  # else the pool can't give their memory back
            pool.close()

"""The CPU in the place of a device that decodes: numcodecs' decoders, which are told addresses as nvCOMP's are."""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import replace
from functools import partial
from typing import Any

import numcodecs
import numpy as np
from support.compiled import CompiledDevice
from support.devices import machine

from chunkflow.core.encoded_chunks import BITS, BYTES, FACTS, PLAIN, ROWS
from chunkflow.core.machine import Decoding, Machine
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.protocol import Decoder

FAILED = 12
"""nvCOMP's status of a chunk that it could not decode."""


def _bytes(address: int, number: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * number).from_address(address)) if number else np.empty(0, "u1")


def temporary(number: int, most: int, total: int) -> int:
    """Memory that the decoder takes: all of it is written to."""
    return total + number * 24


CODECS = ("zstd", "lz4", "blosc-zstd", "blosc-lz4", "gzip")


def decoding_machine(*, chosen: bool = True, **sizes: Any) -> Machine:
    """Rates of a device that decodes so fast, or if it isn't `chosen` so slowly, that plans are in no doubt."""
    slow, fast = 1e3, 1e12
    here, there = (slow, fast) if chosen else (fast, slow)
    decodings = tuple(Decoding(c, there, there, temporary, item=256 * c.startswith("blosc")) for c in CODECS)
    return replace(machine(staged=True, **sizes), decode=here, decodings=decodings)


def unshuffled(block: np.ndarray, width: int, shuffled: int) -> np.ndarray:
    """What `chunkflow.testing.devices.shuffle` was given."""
    number = len(block) // width
    if shuffled == PLAIN or (shuffled == BITS and number % 8):
        return block
    rows, rest = block[: number * width], block[number * width :]
    if shuffled == BYTES:
        return np.concatenate([rows.reshape(width, number).T.ravel(), rest])
    bits = np.unpackbits(rows.reshape(8 * width, -1), axis=1, bitorder="little").T
    return np.concatenate([np.packbits(bits, axis=1, bitorder="little").ravel(), rest])


class Decodes:
    """`batches` has the number of items of each batch so far; only so many items more (`left`) are decoded."""

    batches: list[int]
    left: int

    def decoder(self, codec: str) -> Decoder | None:
        return partial(self._decode, codec.removeprefix("blosc-")) if codec in CODECS else None

    @staticmethod
    def unshuffle(where: int, facts: int, nbytes: int, out: np.ndarray) -> None:
        chunks = out.view("u1").reshape(-1, nbytes)
        for chunk, fact in zip(
            chunks, _bytes(facts, 8 * FACTS * len(chunks)).view("u8").reshape(-1, FACTS), strict=True
        ):
            first, side, items, width, shuffled = fact.tolist()
            for n, begin in enumerate(range(0, nbytes, side)):
                block = chunk[begin : begin + side]
                parts = items if len(block) == side else 1
                places = _bytes(where + 8 * (first + n * items), 8 * parts).view("u8")
                stored = np.concatenate([_bytes(place, len(block) // parts) for place in places.tolist()])
                block[...] = unshuffled(stored, width, shuffled)

    def _decode(self, codec: str, number: int, columns: int, table: int, address: int, room: int) -> None:
        self.batches.append(number)
        rows = _bytes(table, ROWS * 8 * columns).view(np.uint64).reshape(ROWS, columns)
        _bytes(address, room)[...] = 0xA5
        statuses = rows[5].view(np.int32)
        for n in range(number):
            source, length, size, target = map(int, rows[:4, n])
            raw = bytes(_bytes(source, length))
            self.left -= 1
            try:
                if self.left < 0:
                    raise RuntimeError("the device is tired")
                if codec == "lz4":
                    found = numcodecs.LZ4().decode(size.to_bytes(4, "little") + raw)
                elif codec == "gzip":  # which is not asked about the sum
                    found = zlib.decompressobj(-15).decompress(raw[10:-8])
                    rows[6].view(np.uint32)[n] = zlib.crc32(found)
                else:
                    found = numcodecs.Zstd().decode(raw)
            except (RuntimeError, zlib.error):
                statuses[n], rows[4, n] = FAILED, 0
                _bytes(target, size)[...] = 0x5A  # whatever it had so far
                continue
            assert len(found) == size or codec == "gzip", "else the host has seen that it is"
            _bytes(target, size)[: len(found)] = np.frombuffer(found, np.uint8)[:size]
            statuses[n], rows[4, n] = 0, len(found)


class DecodingDevice(Decodes, NumpyDevice):
    """After `fail_after` decoded chunks all others fail."""

    def __init__(self, *, fail_after: int = 1 << 62, chosen: bool = True, **options: Any) -> None:
        super().__init__(staged=True, machine=decoding_machine(chosen=chosen), **options)
        self.batches, self.left = [], fail_after


class CompiledDecodingDevice(Decodes, CompiledDevice):
    """The same with the compiled loops."""

    def __init__(self, *, fail_after: int = 1 << 62, **options: Any) -> None:
        super().__init__(machine=decoding_machine(), **options)
        self.batches, self.left = [], fail_after

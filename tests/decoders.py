"""The CPU in the place of a device that decodes: numcodecs' decoders, which are told addresses as nvCOMP's are."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial
from typing import Any

import numcodecs
import numpy as np
from devices import machine

from chunkflow.cost import Decoding
from chunkflow.devices.base import Decoder
from chunkflow.devices.numpy import NumpyDevice

FAILED = 12
"""nvCOMP's status of a chunk that it could not decode."""


def _bytes(address: int, number: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * number).from_address(address)) if number else np.empty(0, "u1")


def temporary(number: int, nbytes: int) -> int:
    """Memory that the decoder takes: all of it is written to."""
    return number * (nbytes + 24)


class DecodingDevice(NumpyDevice):
    """`batches` has the number of chunks of each batch so far; after `fail_after` decoded chunks all others fail.

    Plans let it decode if it is `chosen`.
    """

    def __init__(self, *, fail_after: int = 1 << 62, chosen: bool = True, **options: Any) -> None:
        sizes = {key: options.pop(key) for key in ("piece", "lanes", "depths") if key in options}
        slow, fast = 1e3, 1e12  # so that there is no doubt which of them a plan chooses
        here, there = (slow, fast) if chosen else (fast, slow)
        decodings = tuple(Decoding(codec, there, there, temporary) for codec in ("zstd", "lz4"))
        made = replace(machine(staged=True, **sizes), decode=here, decodings=decodings)
        super().__init__(staged=True, machine=made, **options)
        self.batches: list[int] = []
        self._left = fail_after

    def decoder(self, codec: str) -> Decoder | None:
        return partial(self._decode, codec) if codec in ("zstd", "lz4") else None

    def _decode(self, codec: str, number: int, columns: int, table: int, address: int, room: int) -> None:
        self.batches.append(number)
        rows = _bytes(table, 6 * 8 * columns).view(np.uint64).reshape(6, columns)
        _bytes(address, room)[...] = 0xA5
        statuses = rows[5].view(np.int32)
        for n in range(number):
            source, length, size, target, _, _ = map(int, rows[:, n])
            raw = bytes(_bytes(source, length))
            self._left -= 1
            try:
                if self._left < 0:
                    raise RuntimeError("the device is tired")
                if codec == "lz4":
                    found = numcodecs.LZ4().decode(size.to_bytes(4, "little") + raw)
                else:
                    found = numcodecs.Zstd().decode(raw)
            except RuntimeError:
                statuses[n], rows[4, n] = FAILED, 0
                _bytes(target, size)[...] = 0x5A  # whatever it had so far
                continue
            assert len(found) == size
            _bytes(target, size)[...] = np.frombuffer(found, np.uint8)
            statuses[n], rows[4, n] = 0, size

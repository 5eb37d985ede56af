"""CRC-32C behind the bytes (zarr 3's ``crc32c``)."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chunkflow.stores.codecs.step import NotDirectError, flat
from chunkflow.stores.kvstore.protocol import ChunkError
from chunkflow.system import native


def _checksum() -> Callable[[Any], int] | None:
    """The compiled CRC-32C, or that of the package on which zarr itself depends, the second up to zarr 3.1.3.

    These hold Python's lock: a dozen threads would wait for one another.
    """
    if native.chunks is not None:
        compiled: Callable[[Any], int] = native.chunks.crc32c
        return compiled
    for package, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        with contextlib.suppress(ImportError):
            found: Callable[[Any], int] = getattr(importlib.import_module(package), name)
            return found
    return None


CHECKSUM = _checksum()
"""The function that computes it; None if nothing is installed that has one."""


@dataclass(frozen=True)
class Crc32c:
    """CRC-32C, computed by `of`, in the last 4 bytes."""

    of: Callable[[Any], int]
    name: ClassVar[str] = "crc32c"
    copies: ClassVar[float] = 0.0

    @classmethod
    def installed(cls) -> Crc32c:
        """The codec, if a package is installed that computes the checksum."""
        if CHECKSUM is None:
            raise NotDirectError("codec crc32c")
        return cls(CHECKSUM)

    def size(self, before: int) -> int | None:
        return before + 4

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        if len(raw) < 4:
            raise ChunkError(f"{len(raw)} bytes have no room for a checksum")
        body = raw[:-4]
        stored, computed = int.from_bytes(raw[-4:].tobytes(), "little"), self.of(body)
        if stored != computed:
            raise ChunkError(f"the checksum (crc32c) is {computed:08x}, not {stored:08x} as stored")
        return body

    def encode(self, raw: Any) -> np.ndarray:
        body = flat(raw)
        out = np.empty(body.size + 4, np.uint8)
        out[:-4] = body
        out[-4:] = np.frombuffer(self.trailer(body), np.uint8)
        return out

    def trailer(self, raw: Any) -> bytes:
        """The checksum as it is stored."""
        return self.of(flat(raw)).to_bytes(4, "little")

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


def _checksum() -> Callable[[Any], int] | None:
    """CRC-32C from the package that zarr itself depends on, which is the second up to zarr 3.1.3."""
    for package, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        with contextlib.suppress(ImportError):
            found: Callable[[Any], int] = getattr(importlib.import_module(package), name)
            return found
    return None


CHECKSUM = _checksum()
"""The function that computes it; None if no package is installed that has one."""


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
        out[-4:] = np.frombuffer(self.of(body).to_bytes(4, "little"), np.uint8)
        return out

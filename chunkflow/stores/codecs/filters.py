"""Filters of zarr's format 2: numcodecs' own, which make numbers of numbers before these are compressed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.stores.codecs.shuffle import Shuffle
from chunkflow.stores.codecs.step import Codec, NotDirectError, flat

KEEPS_TEMPORARIES = sys.version_info >= (3, 14)
"""Whether NumPy makes a new array for each step of `x / a + b`: it cannot see there that nobody else has `x / a`."""


@dataclass(frozen=True)
class ZarrFilter:
    """A filter of numcodecs: from numbers of dtype `plain` to as many numbers of dtype `coded`."""

    name: str
    codec: Any
    plain: np.dtype
    coded: np.dtype

    @property
    def copies(self) -> float:
        """See `Codec.copies`: integers are scaled in double precision, and into floats from it."""
        if self.name != "fixedscaleoffset":
            return 1.0
        doubles = 8 / self.plain.itemsize
        if self.plain.kind in "iu":
            return 2 * doubles
        return max(1.0, doubles) if KEEPS_TEMPORARIES else 1.0

    def size(self, before: int) -> int | None:
        return before // self.plain.itemsize * self.coded.itemsize

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        return flat(self.codec.decode(raw.view(self.coded)))

    def encode(self, raw: Any) -> Any:
        return np.ascontiguousarray(self.codec.encode(flat(raw).view(self.plain)))


def filters(codecs: Any, dtype: np.dtype) -> tuple[Codec, ...]:
    """Codecs for the filters of an array, for chunks of (stored) `dtype`.

    `NotDirectError` if one is unknown here, or does not suit the numbers that it gets.
    """
    found: list[Codec] = []
    plain = dtype
    for codec in codecs or ():
        name = str(codec.codec_id)
        if name == "shuffle":
            found.append(Shuffle(codec.elementsize))
            continue
        if name in ("delta", "fixedscaleoffset", "quantize"):
            given, coded = codec.dtype, codec.astype
        elif name == "astype":
            given, coded = codec.decode_dtype, codec.encode_dtype
        elif name == "bitround":
            given = coded = plain
        else:
            raise NotDirectError(f"filter {name}")
        if given.itemsize != plain.itemsize or any(each.kind not in "biufc" for each in (given, coded)):
            raise NotDirectError(f"filter {name} of {given} to {coded}")
        found.append(ZarrFilter(name, codec, given, coded))
        plain = coded
    return tuple(found)

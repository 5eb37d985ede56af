"""Filters of HDF5 chunks, in the order in which they encode. The codecs themselves are in `chunkflow.stores.codecs`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from chunkflow.stores.codecs.registry import HDF5
from chunkflow.stores.codecs.step import (
    Codec,
    Compressor,
    NotDirectError,
    TooMuchError,
    decoded,
    encoded,
    most_encoded,
    require_most,
    sizes_between,
)
from chunkflow.stores.kvstore.protocol import ChunkError

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
"""Filters of HDF5 itself, as it numbers them (H5Zpublic.h)."""

_OPTIONAL = 1
"""A chunk that the filter cannot shrink is stored without it (H5Z_FLAG_OPTIONAL). HDF5 ends the program otherwise."""

_NAMES = {
    DEFLATE: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    307: "bzip2",
    32000: "lzf",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}


_CLAIMS: dict[int, Callable[[np.ndarray, tuple[int, ...]], int]] = {
    4: lambda raw, values: int.from_bytes(raw[:4].tobytes(), "little"),
    5: lambda raw, values: values[2] if len(values) > 2 else 0,
    6: lambda raw, values: values[2] if len(values) > 2 else 0,
    32008: lambda raw, values: int.from_bytes(raw[:8].tobytes(), "big") if len(values) > 4 and values[4] else 0,
}
"""Bytes, or elements, that a chunk says it holds to filters that are not decoded here (szip, nbit, scaleoffset,
bitshuffle)."""


class ChunkLocation(NamedTuple):
    """Where a chunk's bytes lie in the file, and which filters (by bit) it did not go through."""

    address: int
    size: int
    mask: int


@dataclass(frozen=True)
class Hdf5Filter:
    """A filter of a dataset: its number, and the values that it was set up with."""

    code: int
    values: tuple[int, ...] = ()

    def __str__(self) -> str:
        return _NAMES.get(self.code, f"filter {self.code}")

    def put(self, made: Any) -> None:
        """Add it to the properties of a dataset that is to be created."""
        if self.code == DEFLATE:
            made.set_deflate(*self.values)
        elif self.code == SHUFFLE:
            made.set_shuffle()
        elif self.code == FLETCHER32:
            made.set_fletcher32()
        else:
            made.set_filter(self.code, _OPTIONAL, self.values)


@dataclass(frozen=True)
class FilterPipeline:
    """The filters of a dataset whose chunks hold `nbytes` when decoded, in the order in which they encode."""

    filters: tuple[Hdf5Filter, ...]
    nbytes: int

    def __str__(self) -> str:
        return " + ".join(map(str, self.filters)) or "raw bytes"

    @cached_property
    def steps(self) -> tuple[Codec, ...] | None:
        """The codec of each filter; None if one is unknown here, or if their sizes cannot be told beforehand."""
        if any(each.code not in HDF5 or (each.code == SHUFFLE and not each.values) for each in self.filters):
            return None
        steps = tuple(HDF5[each.code](each.values) for each in self.filters)
        # What is shuffled has to be whole elements.
        for each, size in zip(self.filters, sizes_between(steps, self.nbytes), strict=False):
            if each.code == SHUFFLE and (size is None or not each.values[0] or size % each.values[0]):
                return None
        return steps

    @property
    def decodes(self) -> bool:
        """Whether chunks can be decoded here."""
        return self.steps is not None

    @property
    def encodes(self) -> bool:
        """Whether chunks can be encoded here."""
        return self.decodes and all(each.code in (SHUFFLE, FLETCHER32, DEFLATE) for each in self.filters)

    def decode(
        self, place: ChunkLocation, read: Callable[[np.ndarray], None], out: np.ndarray, *, partial: bool
    ) -> None:
        """Fill `out` (`nbytes` bytes) with a chunk whose bytes `read` puts into a buffer.

        Sizes are known before a byte is decoded, so nothing grows beyond them. `partial` says that the chunk sticks out
        of the array: HDF5 can be told not to filter such chunks, and then says so nowhere. `NotDirectError` if only
        HDF5 can decode the chunk.
        """
        steps, sizes = self.checked(place, partial=partial)
        if not steps:
            read(out)
            return
        raw = np.empty(place.size, np.uint8)
        read(raw)
        self._undo(raw, steps, sizes, out)

    def decode_bytes(self, place: ChunkLocation, raw: np.ndarray, out: np.ndarray, *, partial: bool) -> None:
        """The same of a chunk's bytes."""
        steps, sizes = self.checked(place, partial=partial)
        if steps:
            self._undo(raw, steps, sizes, out)
        else:
            out[...] = raw

    def checked(self, place: ChunkLocation, *, partial: bool) -> tuple[tuple[Codec, ...], tuple[int | None, ...]]:
        """The steps that a chunk went through, and the bytes between them; raises if it is stored in too many bytes."""
        assert self.steps is not None
        steps, sizes = self.steps, self._sizes
        if place.mask:
            steps = tuple([step for i, step in enumerate(steps) if not place.mask >> i & 1])
            sizes = sizes_between(steps, self.nbytes)
        if steps and partial and place.size == self.nbytes:
            raise NotDirectError("a chunk beyond the edge, which may not be filtered")
        # What cannot be compressed grows a little.
        if place.size > 2 * self.nbytes + 4096 if sizes[-1] is None else place.size != sizes[-1]:
            raise ChunkError(f"a chunk of {self.nbytes} bytes is stored in {place.size}")
        return steps, sizes

    def _undo(self, raw: np.ndarray, steps: tuple[Codec, ...], sizes: tuple[int | None, ...], out: np.ndarray) -> None:
        try:
            decoded(raw, steps, sizes, out)
        except ChunkError as error:
            raise ChunkError(f"a chunk of {self.nbytes} bytes: {error}") from error

    @cached_property
    def _sizes(self) -> tuple[int | None, ...]:
        return sizes_between(self.steps or (), self.nbytes)

    def check(self, size: int, mask: int, load: Callable[[], Any], *, partial: bool) -> None:
        """Raise if a chunk of `size` bytes, which `load` gives, would make HDF5 decode more than the chunk has.

        HDF5 decodes as much as there is. What its filters of others say themselves is believed. Damage of another kind
        is left to HDF5 to tell. It alone knows which `partial` chunks, those beyond the edge, are not filtered.
        """
        if partial and size == self.nbytes:
            return
        try:
            self._measure(size, mask, load)
        except TooMuchError:
            raise
        except Exception:
            return

    def _measure(self, size: int, mask: int, load: Callable[[], Any]) -> None:
        found = [each for i, each in enumerate(self.filters) if not mask >> i & 1]
        most = most_encoded(self.nbytes)
        require_most(size, most if found else self.nbytes)
        if not found or (found[-1].code not in HDF5 and found[-1].code not in _CLAIMS):
            return
        raw = np.frombuffer(load(), np.uint8)
        for each in reversed(found):
            if each.code in _CLAIMS:
                require_most(_CLAIMS[each.code](raw, each.values), most)
            if each.code not in HDF5 or (each.code == SHUFFLE and not each.values):
                return
            step = HDF5[each.code](each.values)
            raw = step.unpack(raw, most) if isinstance(step, Compressor) else step.decode(raw, None, None)

    def encode(self, whole: np.ndarray) -> Any:
        """Buffer of an encoded chunk."""
        assert self.steps is not None
        return encoded(whole, self.steps)

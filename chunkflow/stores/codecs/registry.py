"""Codecs by their names and numbers. A new codec is one file, and a row for each format that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numcodecs

from chunkflow.stores.codecs.blosc import Blosc
from chunkflow.stores.codecs.crc32c import Crc32c
from chunkflow.stores.codecs.deflate import Gzip, Zlib
from chunkflow.stores.codecs.fletcher32 import Fletcher32
from chunkflow.stores.codecs.lz4 import Lz4, Lz4Blocks
from chunkflow.stores.codecs.shuffle import Shuffle
from chunkflow.stores.codecs.step import BLOSC_SHUFFLES, Codec, Compressor, NotDirectError, word
from chunkflow.stores.codecs.streams import Bz2Stream, LzmaStream
from chunkflow.stores.codecs.zstd import Zstd

Configured = Callable[[dict[str, Any]], Codec]
"""Makes a codec, given its configuration in the metadata of an array."""


def _blosc_3(how: dict[str, Any]) -> Codec:
    options = {key: how[key] for key in ("clevel", "blocksize") if key in how}
    return Blosc(numcodecs.Blosc(cname=word(how["cname"]), shuffle=BLOSC_SHUFFLES[word(how["shuffle"])], **options))


def _of_numcodecs(id: str) -> Configured:
    return lambda how: compressor(numcodecs.get_codec({"id": id, **how}))


ZARR_2: dict[str, Callable[[Any], Compressor]] = {
    "zstd": Zstd,
    "blosc": Blosc,
    "lz4": Lz4,
    "gzip": Gzip,
    "zlib": Zlib,
}
"""Compressors of zarr's format 2, by the ids of numcodecs' codecs, which they wrap."""

ZARR_3: dict[str, Configured] = {
    "zstd": lambda how: Zstd(numcodecs.Zstd(**how)),
    "gzip": lambda how: Gzip(numcodecs.GZip(**how)),
    "blosc": _blosc_3,
    "crc32c": lambda how: Crc32c.installed(),
    **{f"numcodecs.{id}": _of_numcodecs(id) for id in ZARR_2},
}
"""Codecs of zarr's format 3, by their names."""

BOUNDED: dict[str, Callable[[Any], Compressor]] = {**ZARR_2, "bz2": Bz2Stream, "lzma": LzmaStream}
"""What decodes to at most so many bytes, by the ids of numcodecs' codecs. Zarr's pipeline decodes by these."""

HDF5: dict[int, Callable[[tuple[int, ...]], Codec]] = {
    1: lambda values: Zlib(numcodecs.Zlib(values[0] if values else -1)),
    2: lambda values: Shuffle(values[0]),
    3: lambda values: Fletcher32(),
    32001: lambda values: Blosc(numcodecs.Blosc()),
    32004: lambda values: Lz4Blocks(numcodecs.LZ4()),
    32015: lambda values: Zstd(numcodecs.Zstd()),
}
"""Filters of HDF5, by their numbers (H5Zpublic.h, and those registered with the HDF Group); `values` set them up."""


def compressor(given: Any) -> Compressor:
    """Compressor for a codec of numcodecs."""
    kind = str(given.codec_id)
    if kind not in ZARR_2:
        raise NotDirectError(f"codec {kind}")
    return ZARR_2[kind](given)


def step_3(codec: Mapping[str, Any]) -> Codec:
    """Codec of format 3, as the metadata name and configure it."""
    name = str(codec["name"])
    if name not in ZARR_3:
        raise NotDirectError(f"codec {name}")
    return ZARR_3[name](dict(codec.get("configuration") or {}))

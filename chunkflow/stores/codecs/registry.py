"""Codecs of zarr chunks, bytes to bytes: each decodes to as many bytes as it is told, and never makes one more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numcodecs

from chunkflow.stores.codecs.blosc import SHUFFLE, _blosc
from chunkflow.stores.codecs.crc32c import CHECKSUM, Checksum
from chunkflow.stores.codecs.deflate import _gzip, _zlib
from chunkflow.stores.codecs.lz4 import _lz4
from chunkflow.stores.codecs.step import Codec, Compressor, NotDirectError, word
from chunkflow.stores.codecs.zstd import _zstd

FILLS = {"zstd": _zstd, "blosc": _blosc, "lz4": _lz4, "gzip": _gzip, "zlib": _zlib}


def compressor(given: Any) -> Compressor:
    """Step for a numcodecs codec."""
    kind = str(given.codec_id)
    if kind not in FILLS:
        raise NotDirectError(f"codec {kind}")
    return Compressor(f"blosc-{given.cname}" if kind == "blosc" else kind, given, FILLS[kind])


def step_3(codec: Mapping[str, Any]) -> Codec:
    """Step for a codec of format 3, as the metadata name and configure it."""
    name, how = str(codec["name"]), dict(codec.get("configuration") or {})
    if name == "crc32c" and CHECKSUM is not None:
        return Checksum(CHECKSUM)
    if name == "blosc":
        how = {key: how[key] for key in ("clevel", "blocksize") if key in how} | {
            "cname": word(codec["configuration"]["cname"]),
            "shuffle": SHUFFLE[word(codec["configuration"]["shuffle"])],
        }
    elif name.startswith("numcodecs.") and name.removeprefix("numcodecs.") in FILLS:
        name = name.removeprefix("numcodecs.")
    elif name not in ("zstd", "gzip"):
        raise NotDirectError(f"codec {name}")
    return compressor(numcodecs.get_codec({"id": name, **how}))

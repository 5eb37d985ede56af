"""Which arrays are read and written directly, from their metadata, and why others are left to zarr."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape, permuted
from chunkflow.stores.codecs.chain import CodecChain
from chunkflow.stores.codecs.filters import filters
from chunkflow.stores.codecs.registry import compressor, step_3
from chunkflow.stores.codecs.step import Codec, NotDirectError, word
from chunkflow.stores.kvstore.protocol import Objects
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.stores.zarr.shards import Shards


def direct(array: Any, objects: Objects) -> Chunks | Shards:
    """What reads and writes the chunks of a zarr array directly; `NotDirectError` says why they are left to zarr."""
    metadata, config = array.metadata, getattr(array, "config", None)
    if not getattr(config, "read_missing_chunks", True):
        raise NotDirectError("missing chunks are errors")
    try:
        inner = tuple(array.chunks)
        shards = array.shards and tuple(array.shards)
    except NotImplementedError:
        raise NotDirectError("chunks of unequal sizes") from None
    dtype = np.dtype(array.dtype)
    # Where format 2 names no fill value, zarr reads zeros, and stores every chunk.
    unfilled = array.fill_value is None
    fill = np.asarray(0 if unfilled else array.fill_value, dtype.newbyteorder("="))
    extents, keeps_empty = tuple(array.shape), unfilled or bool(getattr(config, "write_empty_chunks", True))
    version_2 = metadata.zarr_format == 2
    codecs: list[Mapping[str, Any]] = [] if version_2 else [codec.to_dict() for codec in metadata.codecs]
    if shards is None:
        chain = chain_2(metadata, inner, dtype, fill) if version_2 else chain_3(codecs, inner, dtype, fill)
        return Chunks(objects, metadata.encode_chunk_key, extents, chain, keeps_empty)
    if len(codecs) != 1 or codecs[0]["name"] != "sharding_indexed":
        raise NotDirectError("codecs around the shards")
    how = codecs[0]["configuration"]
    chain = chain_3(how["codecs"], inner, dtype, fill)
    where = word(how.get("index_location", "end"))
    if where not in ("start", "end"):
        raise NotDirectError(f"index location {where}")
    index = _index(how["index_codecs"], shards, inner)
    return Shards(objects, metadata.encode_chunk_key, extents, chain, keeps_empty, shards, index, where == "start")


def _index(codecs: Any, shards: Shape, inner: Shape) -> CodecChain:
    shape = (*(n // c for n, c in zip(shards, inner, strict=True)), 2)
    dtype = np.dtype(np.uint64)
    chain = chain_3(codecs, shape, dtype, np.zeros((), dtype))
    if chain.sizes[-1] is None:
        raise NotDirectError("a compressed index")
    return chain


def chain_2(metadata: Any, shape: Shape, dtype: np.dtype, fill: np.ndarray) -> CodecChain:
    """Chain of an array of format 2."""
    order = tuple(range(len(shape)))
    given = metadata.compressor
    steps: tuple[Codec, ...] = (*filters(metadata.filters, dtype), *((compressor(given),) if given is not None else ()))
    if metadata.order == "F":
        order = order[::-1]
    return CodecChain(shape, dtype.newbyteorder("="), fill, not dtype.isnative, order, steps)


def chain_3(codecs: Sequence[Mapping[str, Any]], shape: Shape, dtype: np.dtype, fill: np.ndarray) -> CodecChain:
    """Chain of an array of format 3, from the codecs in its metadata."""
    dtype = dtype.newbyteorder("=")
    order = tuple(range(len(shape)))
    rest = iter(codecs)
    for codec in rest:
        name, how = codec["name"], codec.get("configuration") or {}
        if name == "bytes":
            break
        if name != "transpose" or sorted(how["order"]) != sorted(order):
            raise NotDirectError(f"codec {name}")
        order = permuted(order, how["order"])
    else:
        raise NotDirectError("no codec that makes bytes")
    swapped = how.get("endian") is not None and word(how["endian"]) != sys.byteorder and dtype.itemsize > 1
    return CodecChain(shape, dtype, fill, swapped, order, tuple(map(step_3, rest)))

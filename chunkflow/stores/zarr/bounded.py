"""Arrays that zarr's pipeline reads, with bounds on what a chunk may be: its bytes stored, and decoded.

The pipeline decodes as much as a chunk says that it holds. So its compressors are put in a wrapper, which decodes by
codecs of ours, and its store in one that looks at an object's size first.
"""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numcodecs
import numpy as np
import zarr
from numcodecs.abc import Codec as NumcodecsCodec
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.store import ByteRequest
from zarr.codecs import ShardingCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, StorePath, WrapperStore

from chunkflow.stores.codecs.registry import BOUNDED
from chunkflow.stores.codecs.step import Compressor, flat, most_encoded, require_most
from chunkflow.stores.kvstore.fsspec import get_object, is_remote
from chunkflow.system.files import open_regular

PLAIN = {"zstd": "zstd", "gzip": "gzip", "blosc": "blosc"}
"""Compressors of zarr's format 3 by name, with numcodecs' ids. Others have their ids behind "numcodecs."."""


def bounded(array: Any) -> Any:
    """The same array, to be read by zarr's pipeline within bounds. What the user registered decodes as it does."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        most = most_encoded(math.prod(array.chunks) * _widest(metadata, np.dtype(array.dtype)))
        wrapped = [_bounded_2(codec, most) for codec in metadata.filters or ()]
        metadata = replace(metadata, filters=wrapped or None, compressor=_bounded_2(metadata.compressor, most))
    else:
        metadata = replace(metadata, codecs=tuple(map(_bounded_3, metadata.codecs)))
        try:
            sides = array.shards or array.chunks
        except NotImplementedError:  # chunks of unequal sizes
            sides = array.shape
        most = most_encoded(most_encoded(math.prod(sides) * np.dtype(array.dtype).itemsize))
    where = StorePath(BoundedStore(array.store, most), array.path)
    return zarr.Array(zarr.AsyncArray(metadata, where, getattr(array, "config", None)))


def _widest(metadata: Any, dtype: np.dtype) -> int:
    """Bytes of an element where filters make it widest, or of its text in base64."""
    names = ("dtype", "astype", "encode_dtype", "decode_dtype")
    given = [codec.get_config().get(name) for codec in metadata.filters or () for name in names]
    return max(2 * int(dtype.itemsize), *(int(np.dtype(each).itemsize) for each in given if each is not None), 2)


def _bounded_2(codec: Any, most: int) -> Any:
    kind = BOUNDED.get(str(codec.codec_id)) if codec is not None else None
    return codec if kind is None else BoundedCodec2(codec, kind(codec), most)


def _bounded_3(codec: Any) -> Any:
    if isinstance(codec, ShardingCodec):
        parts = (tuple(map(_bounded_3, each)) for each in (codec.codecs, codec.index_codecs))
        inner, index = parts
        return replace(codec, codecs=inner, index_codecs=index)
    if not isinstance(codec, BytesBytesCodec):
        return codec
    told: dict[str, Any] = dict(codec.to_dict())
    name, how = str(told["name"]), dict(told.get("configuration") or {})
    own = name.startswith("numcodecs.")
    id = name.removeprefix("numcodecs.") if own else PLAIN.get(name, "")
    if id not in BOUNDED:
        return codec
    return BoundedCodec3(codec, BOUNDED[id](numcodecs.get_codec({"id": id, **(how if own else {})})))


class BoundedCodec2(NumcodecsCodec):  # type: ignore[misc]
    """A compressor of format 2 that decodes to at most so many bytes."""

    codec_id = "bounded"  # zarr looks for one in the class; an object has that of the codec inside

    def __init__(self, codec: Any, unpacks: Compressor, most: int) -> None:
        self.codec_id, self._codec, self._unpacks, self._most = codec.codec_id, codec, unpacks, most

    def encode(self, buf: Any) -> Any:
        return self._codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        return self._unpacks.unpack(flat(np.asarray(buf)), self._most)

    def get_config(self) -> Any:
        """See `numcodecs.abc.Codec`: that of the codec inside."""
        return self._codec.get_config()


@dataclass(frozen=True)
class BoundedCodec3(BytesBytesCodec):
    """A compressor of format 3 that decodes to no more bytes than a chunk of the shape at hand may take."""

    codec: Any
    unpacks: Compressor
    is_fixed_size = False

    def to_dict(self) -> dict[str, Any]:
        """What metadata say of the codec inside."""
        found: dict[str, Any] = self.codec.to_dict()
        return found

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """See `zarr.abc.codec.Codec`: that of the codec inside."""
        return int(self.codec.compute_encoded_size(input_byte_length, chunk_spec))

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: Any) -> Buffer:
        dtype = chunk_spec.dtype
        native = dtype if isinstance(dtype, np.dtype) else dtype.to_native_dtype()  # zarr 3.0 has NumPy's
        most = most_encoded(math.prod(chunk_spec.shape) * native.itemsize)
        raw = flat(np.asarray(chunk_data.as_numpy_array()))
        found = await asyncio.to_thread(self.unpacks.unpack, raw, most)
        return chunk_spec.prototype.buffer.from_array_like(found)  # type: ignore[no-any-return]

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: Any) -> Buffer | None:
        found: Buffer | None = await self.codec._encode_single(chunk_data, chunk_spec)
        return found


class BoundedStore(WrapperStore[Any]):
    """A store that gives no object of more bytes than a chunk may have."""

    def __init__(self, store: Any, most: int) -> None:
        super().__init__(store)
        self.most = most

    def _with_store(self, store: Any) -> BoundedStore:
        return type(self)(store, self.most)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if isinstance(self._store, LocalStore):
            await asyncio.to_thread(self._look, self._store.root / key, byte_range is None)
        if is_remote(self._store):
            raw = await get_object(self._store, key, byte_range, self.most)
            return None if raw is None else prototype.buffer.from_bytes(bytes(raw))
        found: Buffer | None = await self._store.get(key, prototype, byte_range)
        return found

    def _look(self, path: Any, whole: bool) -> None:
        """Raise if a file is none, or has more bytes than a chunk."""
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if whole:
            require_most(size, self.most)

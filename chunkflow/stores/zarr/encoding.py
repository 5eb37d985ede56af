"""How a new zarr array is encoded: arguments of `zarr.create_array` for what is said of it, and its spec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numcodecs
import numpy as np
import zarr
from zarr.abc.codec import Codec
from zarr.codecs import Crc32cCodec, TransposeCodec
from zarr.storage import LocalStore, MemoryStore, StorePath

from chunkflow.core.grid import Shape
from chunkflow.core.spec import COPIES, ArraySpec, Storage, default_chunks
from chunkflow.core.unknown import is_known_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError
from chunkflow.stores import checksums
from chunkflow.stores.checks import conversion, numeric_dtype
from chunkflow.stores.codecs.named import listed, named
from chunkflow.stores.kvstore.fsspec import SENT
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.zarr.allowed import check_codec
from chunkflow.stores.zarr.array import spec_of_new
from chunkflow.stores.zarr.dimensions import ATTRIBUTE

Version = Literal[2, 3]


def created_spec(
    name: str,
    shape: Shape,
    dtype: np.dtype,
    chunks: Shape | None,
    said: NewArray,
    version: Version,
    *,
    remote: bool = False,
) -> ArraySpec:
    """Spec of an array that is to be created, with the desired chunks, if none are said.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        What is said of it does not suit its shape or dtype. `ANY_DTYPE` suits all.
    """
    dtype = numeric_dtype(dtype, "the result")
    if dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize):
        advice = conversion("complex128" if dtype.kind == "c" else "float64")
        raise ArgumentTypeError(f"the result has dtype {dtype}, which zarr cannot store: {advice}")
    said.check_shape(shape, name)
    if said.shards is not None:
        said.inside_shards(shape)
    chunks = said.chunks_of(shape, chunks)
    if chunks is None:
        chunks = default_chunks(shape, dtype.itemsize)
    elif len(chunks) != len(shape) or any(side < 1 for side in chunks):
        raise ArgumentError(f"chunks {tuple(chunks)} do not suit a result of shape {tuple(shape)}")
    sides = tuple(min(side, max(1, n)) for side, n in zip(chunks, shape, strict=True))
    copies = COPIES + SENT * remote
    spec = ArraySpec(name, tuple(shape), dtype, chunks=sides, storage=Storage(remote=remote, copies=copies))
    if not said.said:
        return spec
    if said.shards is not None:
        spec = replace(spec, chunks=said.shards)
    if not is_known_dtype(dtype):
        return spec
    array = described(spec, said, version)
    found = spec_of_new(zarr.Array(zarr.AsyncArray(array.metadata, StorePath(LocalStore(name)))), spec)
    return found.with_storage(remote=True, copies=found.storage.copies + SENT) if remote else found


def check_group(name: str, said: NewArray, version: int) -> None:
    """Refuse an array of another format than the group that it lies in."""
    if said.zarr_format not in (None, version):
        raise ArgumentError(
            f"zarr_format={said.zarr_format}: the output {name} lies in a group of format {version}, and readers look "
            "there for members of that format alone"
        )


def described(spec: ArraySpec, said: NewArray, version: Version, **options: Any) -> Any:
    """The array in a store in memory, with its metadata alone.

    Raises
    ------
    ArgumentError
        Zarr does not take what is said.
    """
    made = arguments(spec, said, version)
    try:
        return zarr.create_array(MemoryStore(), **made | options)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise ArgumentError(
            f"the output {spec.name} cannot be created, of shape {spec.shape}, dtype {spec.dtype} and with "
            f"{', '.join(f'{name}={value!r}' for name, value in said.said.items())}: {error}"
        ) from error


def arguments(spec: ArraySpec, said: NewArray, version: Version) -> dict[str, Any]:
    """Arguments of `zarr.create_array`, but for the store, names of dimensions that follow from others, and keys."""
    known: dict[str, Any] = {
        "shape": spec.shape,
        "dtype": spec.dtype,
        "chunks": (spec.chunks if said.shards is None else said.inside_shards(spec.shape)) or "auto",
        "shards": said.shards,
        "zarr_format": version,
        "attributes": dict(said.attributes or {}),
        **_compressors(spec, said, version),
        **_filters(said, version, spec),
    }
    if "fill_value" in said.said:
        known["fill_value"] = said.fill_value
    elif version == 2:
        known["fill_value"] = None  # else xarray takes elements of that value for missing ones
    if said.order is not None and version == 2:
        known["order"] = said.order
    return known | dimensions_of(said.dimension_names, version, known["attributes"])


def dimensions_of(
    names: tuple[str | None, ...] | None, version: Version, attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Names of dimensions, as an argument of `zarr.create_array`."""
    if names is None:
        return {}
    return {"attributes": {**attributes, ATTRIBUTE: list(names)}} if version == 2 else {"dimension_names": names}


def _compressors(spec: ArraySpec, said: NewArray, version: Version) -> dict[str, Any]:
    """How chunks are compressed: as is said, else as zarr does, with a checksum.

    It is of the encoded bytes, so it costs less than one of the elements, and a device can still decode the chunks.
    Format 2 has none of that kind: there zstd's own is of the elements, and only asked for.
    """
    plain = isinstance(said.compressors, str) and said.compressors == "auto"
    if version == 2:
        if plain:
            return {"compressors": numcodecs.Zstd(checksum=True)} if checksums.wanted(default=False) else {}
        checksums.refuse_if_wanted(spec.name, "format 2 has none beside the compressor that is said", "Take format 3")
        given = listed(said.compressors)
        if len(given) > 1:
            raise ArgumentError(
                f"compressors={said.compressors!r}: format 2 has one compressor; give what comes before it as filters="
            )
        return {"compressors": _codec(given[0], 2, "compressors") if given else None}
    if not plain:
        made = tuple([_codec(each, 3, "compressors") for each in listed(said.compressors)])
        return {"compressors": (*made, *([Crc32cCodec()] if checksums.wanted(default=False) else []))}
    return {"compressors": (*_defaults(spec.dtype), Crc32cCodec())} if checksums.wanted(default=True) else {}


@cache
def _defaults(dtype: np.dtype) -> tuple[Any, ...]:
    """What zarr compresses chunks of format 3 with."""
    return tuple(zarr.create_array({}, shape=(1,), chunks=(1,), dtype=dtype, zarr_format=3).compressors)


def _filters(said: NewArray, version: Version, spec: ArraySpec) -> dict[str, Any]:
    """What is done before chunks are compressed. Format 3 has no order of elements but by such a step."""
    plain = isinstance(said.filters, str) and said.filters == "auto"
    made = [] if plain else [_codec(each, version, "filters", spec.dtype.itemsize) for each in listed(said.filters)]
    for codec in made if version == 2 else ():
        _check_shuffle(codec, spec)
    ndim = len(spec.shape)
    if version == 3 and said.order == "F" and ndim > 1:
        made = [TransposeCodec(order=tuple(range(ndim))[::-1]), *made]
    return {"filters": tuple(made)} if made or not plain else {}


def _check_shuffle(codec: Any, spec: ArraySpec) -> None:
    """Refuse to shuffle elements of another size, of which a chunk does not hold a whole number."""
    size = getattr(codec, "elementsize", 1)
    if spec.chunks is not None and math.prod(spec.chunks) * spec.dtype.itemsize % size:
        raise ArgumentError(
            f"filters={codec!r}: chunks of {spec.chunks} {spec.dtype} hold no whole number of {size} bytes: give "
            f'"shuffle", which takes the {spec.dtype.itemsize} bytes of an element'
        )


def _codec(given: Any, version: Version, option: str, itemsize: int = 1) -> Any:
    """A codec of a format, as zarr takes it; only what may be read again."""
    codec = named(given)
    known = codec.as_zarr_2 if version == 2 else codec.as_zarr_3
    if version == 2 and known["id"] == "shuffle":
        known = {"elementsize": itemsize, **known}  # format 3 takes it from the dtype
    name, how = (known["id"], known) if version == 2 else (known["name"], known["configuration"])
    try:
        check_codec(name, how, version, "")
        if isinstance(given, Codec) and version == 3:
            return given  # what it has left to the dtype is not in its words
        words = known if version == 2 else codec.as_zarr_2
        made = numcodecs.get_codec(words) if version == 2 or name.startswith("numcodecs.") else None
        return made if version == 2 else known
    except ReadError as error:
        raise ArgumentError(
            f"{option}={given!r}: format {version} of zarr has no codec {name!r} of numbers or bytes: the usual ones "
            "are zstd, blosc, lz4 and gzip. One of your own is known after "
            f"{'numcodecs.register_codec' if version == 2 else 'zarr.registry.register_codec'}"
        ) from error
    except (TypeError, ValueError, KeyError) as error:
        raise ArgumentError(f"{option}={given!r} is no complete codec {name!r}: {error}") from error

"""Which codecs and dtypes metadata may name. Nothing else in them reaches zarr or numcodecs, which load what is named.

A codec is allowed if it turns numbers or bytes into such, and is one of zarr's or numcodecs' own. Those of others are
allowed if the user's own code has registered them: then it is that code that was trusted, and not the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numcodecs.registry
import numpy as np
import zarr.registry

from chunkflow.errors import ArgumentTypeError, ReadError
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.codecs.named import OF_ZARR_3

BYTES_2 = ("blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma", "shuffle", "base64")
NUMBERS_2 = ("delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits")
CHECKSUMS_2 = ("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3")

CODECS_2 = frozenset([*BYTES_2, *NUMBERS_2, *CHECKSUMS_2])
"""Codecs of format 2, by numcodecs' ids. Those that make objects are missing, and those whose sizes have no bound."""

CODECS_3 = frozenset([*OF_ZARR_3, *(f"numcodecs.{id}" for id in CODECS_2)])
"""Codecs of format 3, by name."""

OBJECTS = frozenset(["pickle", "json2", "msgpack2", "categorize", "vlen-array", "vlen-bytes", "vlen-utf8"])
"""Codecs that make Python's objects. The first runs what the data say."""

INTEGERS_3 = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))

DTYPES_3 = frozenset(["bool", *INTEGERS_3, "float16", "float32", "float64", "complex64", "complex128"])
"""Numbers of format 3."""

TIMES_3, TEXTS_3 = ("numpy.datetime64", "numpy.timedelta64"), ("fixed_length_utf32", "null_terminated_bytes")

OTHERS_3 = frozenset([*TIMES_3, *TEXTS_3, "structured", "raw_bytes"])
"""What zarr has besides, without objects: `numeric_dtype` refuses these, with advice."""

REQUIRED = {
    2: ("shape", "chunks", "dtype", "fill_value"),
    3: ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
}
"""What the metadata of an array have, by zarr's format, and cannot be without."""

DEEPEST = 8
"""Most shards inside shards."""

_INTEGERS = re.compile(r"[<>|=]?[iu][1248]|u?int(8|16|32|64)")
_NUMBERS_2 = re.compile(r"[<>|=]?[biufc]\d{1,2}")
_UNKNOWN = "is not known here, and is not looked for because a file says so. If it is yours, or you trust it"
_REGISTERED = 2
"""NumPy's word for a dtype of another package: bfloat16, where ml_dtypes was imported."""

_SETTINGS = ("dtype", "astype", "encode_dtype", "decode_dtype")


def check_metadata(metadata: Mapping[str, Any], name: str) -> None:
    """Check what the metadata of an array name, before zarr sees them.

    Raises
    ------
    ArgumentTypeError
        Its elements are no numbers.
    ReadError
        A codec is not allowed, or they are no metadata of an array.
    """
    is_old = metadata.get("zarr_format") == 2
    _check_complete(metadata, name, REQUIRED[2 if is_old else 3], ".zarray" if is_old else "zarr.json")
    try:
        if is_old:
            _check_dtype_2(metadata["dtype"], name)
            for codec in [*(metadata.get("filters") or ()), *filter(None, [metadata.get("compressor")])]:
                _check_codec_2(str(codec["id"]), codec, name)
        else:
            _check_dtype_3(metadata["data_type"], name)
            _check_extensions(metadata, name)
            for codec in _every(metadata["codecs"]):
                _check_codec_3(*codec, name)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ArgumentTypeError):
            raise
        why = f"its metadata are damaged ({error!r})"
        raise ReadError(f"cannot open the zarr array {name}: {why}", path=name) from error


def _check_complete(metadata: Mapping[str, Any], name: str, required: Sequence[str], document: str) -> None:
    """Check what every array has, which zarr takes for granted."""
    lacks = [key for key in required if key not in metadata]
    grid = metadata.get("chunks", metadata.get("chunk_grid"))
    configuration = grid.get("configuration") if isinstance(grid, Mapping) else None
    sides = configuration.get("chunk_shape") if isinstance(configuration, Mapping) else grid
    if lacks:
        why = f"{document} has no {' and no '.join(lacks)}, which each array has: say it there"
    elif isinstance(sides, list | tuple) and 0 in sides and 0 not in metadata["shape"]:
        why = f"{document} says that chunks are {tuple(sides)}, and each side has one element or more: mend it there"
    elif _is_beyond(fill := metadata["fill_value"], dtype := metadata.get("dtype", metadata.get("data_type"))):
        why = f"{document} says that missing elements are {fill!r}, which {dtype} does not hold: mend it there"
    else:
        return
    raise ReadError(f"cannot open the zarr array {name}: {why}, or write the array anew", path=name)


def _is_beyond(fill: Any, dtype: Any) -> bool:
    """Whether a dtype of integers does not hold a number.

    >>> _is_beyond(256, "u1"), _is_beyond(255, "uint8"), _is_beyond(300, "<f4")
    (True, False, False)
    """
    if not isinstance(dtype, str) or not isinstance(fill, int | float) or not _INTEGERS.fullmatch(dtype):
        return False
    held = np.iinfo(np.dtype(dtype))
    return not held.min <= fill <= held.max


def check_codec(codec: str, how: Mapping[str, Any], version: int, name: str) -> None:
    """Check a codec of a new array, in the words of a format's metadata: a `ReadError` if it is not allowed."""
    (_check_codec_2 if version == 2 else _check_codec_3)(codec, how, name)


def check_array(array: Any, name: str) -> None:
    """Refuse an array that the user opened if its codecs make objects: to decode those may run what the data say."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        names = [str(codec.codec_id) for codec in (*(metadata.filters or ()), metadata.compressor) if codec is not None]
    else:
        names = [name for name, _ in _every([codec.to_dict() for codec in metadata.codecs])]
    for each in names:
        if each.removeprefix("numcodecs.") in OBJECTS:
            raise _refused(each, name, "makes objects, which are not decoded: the pickles among them run what data say")


def _every(codecs: Any, depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and configurations of codecs, and of those inside shards."""
    if depth > DEEPEST:
        raise ValueError(f"more than {DEEPEST} shards in one another")
    for codec in codecs:
        if isinstance(codec, str):
            yield codec, {}
            continue
        how = codec.get("configuration") or {}
        yield str(codec["name"]), how
        if codec["name"] == "sharding_indexed":
            yield from _every(how["codecs"], depth + 1)
            yield from _every(how.get("index_codecs", ()), depth + 1)


def _check_codec_2(id: str, how: Mapping[str, Any], name: str) -> None:
    if id in OBJECTS:
        raise _refused(id, name, "makes objects, and no numbers: it is not decoded")
    if id in CODECS_2:
        _check_settings(id, how, name)
    elif _is_foreign(numcodecs.registry.codec_registry.get(id)):
        return
    else:
        raise _refused(
            id,
            name,
            f"{_UNKNOWN}, call numcodecs.register_codec with it before",
        )


def _check_codec_3(codec: str, how: Mapping[str, Any], name: str) -> None:
    if codec.removeprefix("numcodecs.") in OBJECTS:
        raise _refused(codec, name, "makes objects, and no numbers: it is not decoded")
    if codec in CODECS_3:
        _check_settings(codec, how, name)
        return
    if not any(map(_is_foreign, (registered().get(codec) or {}).values())):
        raise _refused(
            codec,
            name,
            f"{_UNKNOWN}, call zarr.registry.register_codec with it before",
        )


def registered() -> dict[str, Any]:
    """What zarr knows of each codec's name; nothing is loaded. Its own function loads the entry points of others."""
    names = ("_codec_registries", "__codec_registries")  # since zarr 3.4, and before
    return next(zarr.registry.__dict__[name] for name in names if name in zarr.registry.__dict__)


def _is_foreign(codec: Any) -> bool:
    """Whether a codec was registered, by others than zarr and numcodecs themselves."""
    return codec is not None and codec.__module__.partition(".")[0] not in ("zarr", "numcodecs")


def _check_settings(codec: str, how: Mapping[str, Any], name: str) -> None:
    """Check the dtypes that a codec is set up with."""
    for setting in _SETTINGS:
        given = how.get(setting)
        if given is not None and not _NUMBERS_2.fullmatch(np.dtype(str(given)).str):
            raise _refused(codec, name, f"would make {given!r} of the elements, which are no numbers")


def _refused(codec: str, name: str, why: str) -> ReadError:
    return ReadError(f"cannot open the zarr array {name}: it names the codec {codec!r}, which {why}", path=name)


def _check_dtype_2(given: Any, name: str) -> None:
    if isinstance(given, str) and _NUMBERS_2.fullmatch(given):
        return
    try:
        found = np.dtype([tuple(field) for field in given] if isinstance(given, list) else str(given))
    except (TypeError, ValueError):
        raise no_dtype(given, name) from None
    if found.isbuiltin == _REGISTERED:
        raise no_dtype(given, name)
    numeric_dtype(found, name)


def _check_dtype_3(given: Any, name: str) -> None:
    kind = given["name"] if isinstance(given, dict) else given
    if kind in ("string", "variable_length_bytes"):
        numeric_dtype(np.dtype("O"), name)
    if kind not in DTYPES_3 | OTHERS_3 and not re.fullmatch(r"r\d+", str(kind)):
        raise no_dtype(given, name)


def no_dtype(given: Any, name: str) -> ArgumentTypeError:
    """The error for a dtype that zarr does not have."""
    plain = "int64" if re.match("u?int", str(given)) else "float32"
    return ArgumentTypeError(
        f"the zarr array {name} has a dtype that zarr-python does not have ({given}): open it with tensorstore.open, "
        f"and pass what its .astype({plain!r}) gives"
    )


def _check_extensions(metadata: Mapping[str, Any], name: str) -> None:
    """Check the other names by which code might be looked up."""
    for key, known in (("chunk_grid", ("regular", "rectilinear")), ("chunk_key_encoding", ("default", "v2"))):
        given = metadata[key]
        kind = given if isinstance(given, str) else given["name"]
        if kind not in known:
            why = f"it has a {key} of the kind {kind!r}, and only {' and '.join(known)} are known"
            raise ReadError(f"cannot open the zarr array {name}: {why}", path=name)

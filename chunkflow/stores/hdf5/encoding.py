"""How a new HDF5 dataset is encoded: its filters, for the codecs that are said."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import h5py
import numpy as np
from h5py import h5z

from chunkflow.errors import ArgumentError
from chunkflow.stores.codecs.named import listed, named, numbered
from chunkflow.stores.codecs.step import BLOSC_SHUFFLES, word
from chunkflow.stores.hdf5.filters import DEFLATE, FLETCHER32, SHUFFLE, Hdf5Filter
from chunkflow.stores.new_array import NewArray

_INSIDE = {"blosclz": 0, "lz4": 1, "lz4hc": 2, "zlib": 4, "zstd": 5}
"""Blosc's own codecs, by its filter's numbers (hdf5-blosc, blosc_filter.c)."""

_GZIP, _ZSTD, _BLOSC = 4, 3, 5
"""Levels where none are said: h5py's, and those of the filters."""


def _level(how: dict[str, Any], usual: int) -> int:
    return int(how.get("level", usual))


def _blosc(how: dict[str, Any]) -> tuple[int, ...]:
    shuffle = how.get("shuffle", 1)
    turned = shuffle if isinstance(shuffle, int) else BLOSC_SHUFFLES[word(shuffle)]
    return (0, 0, 0, 0, int(how.get("clevel", _BLOSC)), max(0, turned), _INSIDE[word(how.get("cname", "lz4"))])


_COMPRESSORS: dict[str, Callable[[dict[str, Any]], Hdf5Filter]] = {
    "gzip": lambda how: Hdf5Filter(DEFLATE, (_level(how, _GZIP),)),
    "zlib": lambda how: Hdf5Filter(DEFLATE, (_level(how, _GZIP),)),
    "lzf": lambda how: Hdf5Filter(h5z.FILTER_LZF),
    "zstd": lambda how: Hdf5Filter(32015, (_level(how, _ZSTD),)),
    "lz4": lambda how: Hdf5Filter(32004),
    "blosc": lambda how: Hdf5Filter(32001, _blosc(how)),
    "bz2": lambda how: Hdf5Filter(307, (_level(how, 9),)),
}
"""Filters of HDF5 that compress, by numcodecs' names of the codecs."""

_FILTERS: dict[str, Callable[[dict[str, Any]], Hdf5Filter]] = {
    "shuffle": lambda how: Hdf5Filter(SHUFFLE),
    "fletcher32": lambda how: Hdf5Filter(FLETCHER32),
}

_REGISTERED = 256
"""Filters from this number on are not HDF5's own (H5Zpublic.h)."""


def filters_of(said: NewArray, name: str, *, checksums: bool) -> tuple[Hdf5Filter, ...]:
    """The filters of a new dataset, in the order in which they encode.

    Raises
    ------
    ArgumentError
        HDF5 has no filter for a codec, or not here.
    """
    found = [
        *_made(said.filters, "filters", _FILTERS, name),
        *_made(said.compressors, "compressors", _COMPRESSORS, name),
    ]
    if checksums and all(each.code != FLETCHER32 for each in found):
        found.append(Hdf5Filter(FLETCHER32))
    for each in found:
        if not _available(each.code):
            raise ArgumentError(
                f"the output {name} needs the filter {each} ({each.code}), which is not built into HDF5 here: "
                "pip install hdf5plugin adds most filters, and 'gzip' needs none"
            )
    return tuple(sorted(found, key=lambda each: each.code == FLETCHER32))  # of what is stored


def _available(code: int) -> bool:
    """Whether HDF5 has a filter. Those of hdf5plugin are taken before others.

    netCDF4 names a directory of filters to every HDF5 of the process. They fit only its own: blosc fails in another.
    """
    if code >= _REGISTERED and importlib.util.find_spec("hdf5plugin"):
        plugin = importlib.import_module("hdf5plugin")
        names = [name for name, number in plugin.FILTERS.items() if number == code]
        if names and plugin.get_config().registered_filters.get(names[0], "unknown") == "unknown":  # another's
            plugin.register(names[0], force=True)
    return bool(h5z.filter_avail(code))


def _made(
    given: Any, option: str, known: Mapping[str, Callable[[dict[str, Any]], Hdf5Filter]], name: str
) -> list[Hdf5Filter]:
    if isinstance(given, str) and given == "auto":
        return []
    made = []
    for each in listed(given):
        if (numbers := numbered(each)) is not None:
            made.append(Hdf5Filter(*numbers))
            continue
        codec = named(each)
        if codec.name not in known:
            raise ArgumentError(
                f"{option}={each!r}: the output {name} is in the format HDF5, which takes {', '.join(known)}"
                f"{', and what hdf5plugin has' if option == 'compressors' else ''}"
            )
        try:
            made.append(known[codec.name](codec.how))
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{option}={each!r}: HDF5's filter {codec.name} cannot do that: {error!r}") from None
    return made


def fill_of(said: NewArray, dtype: np.dtype, name: str) -> np.ndarray | None:
    """The fill value of a new dataset; None for HDF5's own.

    Raises
    ------
    ArgumentError
        It is no number of the dtype.
    """
    if "fill_value" not in said.said or said.fill_value is None:
        return None
    try:
        with np.errstate(all="raise"):
            found = np.asarray(said.fill_value).astype(dtype, casting="unsafe")
        if found.shape or not (found == said.fill_value or found != found):
            raise ValueError("it would be another number")
    except (TypeError, ValueError, FloatingPointError) as error:
        raise ArgumentError(f"fill_value={said.fill_value!r} for the output {name} of dtype {dtype}: {error}") from None
    return found


def attributes_of(said: NewArray, name: str) -> dict[str, Any]:
    """The attributes of a new dataset, as h5py takes them.

    Raises
    ------
    ArgumentError
        One is of a kind that HDF5 does not have.
    """
    found: dict[str, Any] = {}
    for key, value in (said.attributes or {}).items():
        array = np.asarray(value)
        if array.dtype.kind not in "biufcSU":
            raise ArgumentError(
                f"attributes: {key!r} of the output {name} is {value!r}, and HDF5 has numbers, texts and arrays of them"
            )
        found[key] = array.astype(h5py.string_dtype()) if array.dtype.kind == "U" and array.shape else value
    return found

"""Codecs as users name them: by one word for each, in zarr-python's words, numcodecs' or HDF5's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from chunkflow.errors import ArgumentTypeError
from chunkflow.stores.codecs.step import BLOSC_SHUFFLES, word


class NamedCodec(NamedTuple):
    """A codec's name, as numcodecs has it, and its settings.

    >>> named("zstd"), named({"id": "gzip", "level": 3})
    (NamedCodec(name='zstd', how={}), NamedCodec(name='gzip', how={'level': 3}))
    >>> named({"name": "gzip", "configuration": {"level": 3}})
    NamedCodec(name='gzip', how={'level': 3})
    """

    name: str
    how: dict[str, Any]

    @property
    def as_zarr_3(self) -> dict[str, Any]:
        """As metadata of zarr's format 3 have it."""
        how = dict(self.how)
        if self.name == "blosc" and isinstance(how.get("shuffle"), int):
            words = {number: name for name, number in BLOSC_SHUFFLES.items()}
            how["shuffle"] = words.get(how["shuffle"])
            how = {key: value for key, value in how.items() if value is not None}  # -1: as the elements' size asks
        name = self.name if self.name in OF_ZARR_3 else f"numcodecs.{self.name}"
        return {"name": name, "configuration": how}

    @property
    def as_zarr_2(self) -> dict[str, Any]:
        """As metadata of zarr's format 2 have it: numcodecs' words."""
        how = {key: value for key, value in self.how.items() if key != "typesize"}
        if self.name == "blosc":
            shuffle = how.get("shuffle", 1)
            how["shuffle"] = shuffle if isinstance(shuffle, int) else BLOSC_SHUFFLES[word(shuffle)]
            how["cname"] = word(how.get("cname", "lz4"))
        return {"id": self.name, **how}


OF_ZARR_3 = ("bytes", "transpose", "sharding_indexed", "crc32c", "gzip", "zstd", "blosc")
"""Codecs that format 3 has of its own. Others have numcodecs' name in front."""


def named(given: Any) -> NamedCodec:
    """What is given as a codec.

    Raises
    ------
    ArgumentTypeError
        It is none.
    """
    if isinstance(given, str):
        return NamedCodec(given.removeprefix("numcodecs."), {})
    if not isinstance(given, Mapping):
        for method in ("to_dict", "get_config"):  # zarr's codecs, which come first: numcodecs' in zarr have both
            if hasattr(given, method) and not isinstance(given, type):
                return named(getattr(given, method)())
    elif isinstance(given.get("name"), str):
        return NamedCodec(given["name"].removeprefix("numcodecs."), dict(given.get("configuration") or {}))
    elif isinstance(given.get("id"), str):
        return NamedCodec(given["id"], {key: value for key, value in given.items() if key != "id"})
    raise ArgumentTypeError(
        f"{given!r} is no codec: give one of zarr.codecs or numcodecs, a dict as in zarr's metadata "
        "({'name': 'zstd', 'configuration': {'level': 3}}), or a name, as 'zstd'"
    )


def numbered(given: Any) -> tuple[int, tuple[int, ...]] | None:
    """A filter of HDF5 by its number, and its settings, in h5py's words, as hdf5plugin has them; None of other codecs.

    >>> numbered({"compression": 1, "compression_opts": (4,)}), numbered("gzip")
    ((1, (4,)), None)
    """
    if isinstance(given, Mapping) and isinstance(given.get("compression"), int):
        return given["compression"], tuple(given.get("compression_opts") or ())
    return None


def listed(given: Any) -> tuple[Any, ...]:
    """One codec or several, as several; none for None.

    >>> listed(None), listed("gzip"), listed(["shuffle", "gzip"])
    ((), ('gzip',), ('shuffle', 'gzip'))
    """
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)

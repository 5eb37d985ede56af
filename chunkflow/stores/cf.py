"""CF conventions: attributes of netCDF, HDF5 and zarr arrays that change what the stored numbers mean.

Source of the rules: "NetCDF Climate and Forecast (CF) Metadata Conventions", version 1.11, sections 2.5 and 8.1. The
dtype of what is decoded is the one that xarray chooses, so that both give the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.errors import CodingWarning
from chunkflow.stores.protocol import Source
from chunkflow.system.users_line import users_line

NAMES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""The attributes. Others, such as ``valid_range``, leave the numbers as they are."""


@dataclass(frozen=True)
class CfCoding:
    """How stored numbers become values: ``stored * scale + offset``, NaN where `stored` is one of `missing`.

    `unsigned` is the dtype as which the stored bits are read, `dtype` that of the values.
    """

    scale: float | None
    offset: float | None
    missing: tuple[Any, ...]
    unsigned: np.dtype | None
    dtype: np.dtype

    def decode(self, block: Any) -> Any:
        """The values of stored numbers, in new memory; of NumPy's or CuPy's arrays."""
        return decoded(block, self.scale, self.offset, self.missing, self.unsigned, self.dtype)


def decoded(block: Any, scale: Any, offset: Any, missing: tuple[Any, ...], unsigned: Any, dtype: np.dtype) -> Any:
    """The values of stored numbers: see `CfCoding`."""
    stored = block if unsigned is None else block.view(unsigned)
    found = stored.astype(dtype)
    if scale is not None:
        found *= dtype.type(scale)
    if offset is not None:
        found += dtype.type(offset)
    for value in missing:
        found[stored == value] = np.nan
    return found


def coding(attributes: Mapping[str, Any], dtype: np.dtype) -> CfCoding | None:
    """How an array with these attributes is coded; None if they change nothing.

    >>> coding({"scale_factor": 0.01, "units": "K"}, np.dtype("i2")).dtype
    dtype('float64')
    >>> coding({"_FillValue": np.nan}, np.dtype("f4"))
    """
    if dtype.kind not in "iuf":
        return None
    scale, offset = (_number(attributes.get(name)) for name in ("scale_factor", "add_offset"))
    unsigned = None
    if dtype.kind == "i" and str(attributes.get("_Unsigned", "")).lower() == "true":
        unsigned = np.dtype(f"u{dtype.itemsize}")
    missing: list[Any] = []
    for name in ("_FillValue", "missing_value"):
        for value in np.atleast_1d(np.asarray(attributes.get(name, ()))).tolist():
            if isinstance(value, int | float) and value == value:
                cast = np.asarray(value).astype(dtype)
                missing.append((cast if unsigned is None else cast.view(unsigned)).item())
    neutral = (scale is None or scale == 1) and (offset is None or offset == 0)
    if neutral and not missing and unsigned is None:
        return None
    distinct = tuple(dict.fromkeys(missing))
    return CfCoding(scale, offset, distinct, unsigned, _dtype_of_values(unsigned or dtype, scale, offset))


def _number(value: Any) -> Any:
    """A scalar of an attribute; None if there is none, or it is no number."""
    found = np.asarray(value).reshape(-1) if value is not None else np.empty(0)
    if found.dtype.kind not in "iuf" or found.size != 1:
        return None
    return found[0]


def _dtype_of_values(dtype: np.dtype, scale: Any, offset: Any) -> np.dtype:
    kinds = [np.dtype(type(n)) for n in (scale, offset) if n is not None]
    if kinds:
        same = len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0] in (np.dtype("f4"), np.dtype("f8"))
        wide = dtype.kind in "iu" and dtype.itemsize >= 4
        if wide or (offset is not None and not same) or kinds[0].kind != "f":
            return np.dtype("f8")
        return kinds[0]
    small = dtype.itemsize <= 4 if dtype.kind == "f" else dtype.itemsize <= 2
    return np.dtype("f4" if small else "f8")


def coding_of(source: Source) -> CfCoding | None:
    """How an opened source is coded, if it says so. Its fill value counts where xarray keeps it there (`masked`)."""
    attributes, masked = getattr(source, "attributes", {}), getattr(source, "masked", None)
    return coding(attributes if masked is None else {"_FillValue": masked, **attributes}, source.spec.dtype)


def warn_of(source: Source) -> None:
    """Warn of attributes that change what a source's numbers mean, and are not applied."""
    if short := getattr(source, "short", ""):
        warnings.warn(
            f"{source.spec.name}: {short}, and those alone are read; to netCDF the others are missing values. xarray "
            "reads them so, and chunkflow.open(path, decode='raw') gives what is stored without this warning",
            CodingWarning,
            stacklevel=users_line(),
        )
    attributes = getattr(source, "attributes", {})
    if coding(attributes, source.spec.dtype) is None:
        return
    named = ", ".join(f"{name}={attributes[name]}" for name in NAMES if name in attributes)
    warnings.warn(
        f"{source.spec.name} holds coded numbers, which are read as they are stored: {named}. chunkflow.open(path, "
        "decode='cf') gives the values, decode='raw' the stored numbers without this warning",
        CodingWarning,
        stacklevel=users_line(),
    )

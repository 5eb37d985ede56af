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

from chunkflow.errors import ArgumentError, CodingWarning
from chunkflow.stores.protocol import Source
from chunkflow.system.users_line import users_line

NAMES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""The attributes. Others, such as ``valid_range``, leave the numbers as they are."""


@dataclass(frozen=True)
class CfCoding:
    """How stored numbers become values: ``stored * scale + offset``, NaN where `stored` is one of `missing`.

    `bits` is the dtype as which the stored bits are read, `dtype` that of the values.
    """

    scale: float | None
    offset: float | None
    missing: tuple[Any, ...]
    bits: np.dtype | None
    dtype: np.dtype

    def decode(self, block: Any) -> Any:
        """The values of stored numbers, in new memory; of NumPy's or CuPy's arrays."""
        return decoded(block, self.scale, self.offset, self.missing, self.bits, self.dtype)


def decoded(block: Any, scale: Any, offset: Any, missing: tuple[Any, ...], bits: Any, dtype: np.dtype) -> Any:
    """The values of stored numbers: see `CfCoding`."""
    stored = block if bits is None else block.view(bits)
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
    bits = _bits(_text(attributes.get("_Unsigned")), dtype)
    stored = bits or dtype
    missing: list[Any] = []
    for name in ("_FillValue", "missing_value"):
        for value in _numbers(attributes.get(name)):
            missing += [
                cast for kind in dict.fromkeys((dtype, stored)) if (cast := _cast(value, kind, stored)) is not None
            ]
    says_missing = any(_numbers(attributes.get(name)) for name in ("_FillValue", "missing_value"))
    neutral = (scale is None or scale == 1) and (offset is None or offset == 0)
    if neutral and bits is None and not (missing or (says_missing and dtype.kind in "iu")):
        return None
    is_cast = says_missing or scale is not None or offset is not None
    of_values = _dtype_of_values(stored, scale, offset) if is_cast else stored.newbyteorder("=")
    return CfCoding(scale, offset, tuple(dict.fromkeys(missing)), bits, of_values)


def _bits(said: str, dtype: np.dtype) -> np.dtype | None:
    """The dtype as which integers are read of which ``_Unsigned`` says that they have, or have no sign."""
    other = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, said.lower()))
    return None if other is None else np.dtype(f"{dtype.byteorder}{other}{dtype.itemsize}")


def _cast(value: Any, dtype: np.dtype, stored: np.dtype) -> Any:
    """A number that stands for missing values, as stored numbers are read; None if none of a dtype's is equal to it.

    Where ``_Unsigned`` says that integers are read with, or without a sign, it may be written either way: its bits
    count. Floating point numbers are rounded to those of the dtype.
    """
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return dtype.type(value).item()
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max or value != int(value):
        return None
    return np.array(int(value), dtype).view(stored).item()


def _numbers(value: Any) -> list[Any]:
    """The numbers of an attribute, but for NaN."""
    found = np.atleast_1d(np.asarray(() if value is None else value))
    return [each for each in found.ravel().tolist() if each == each] if found.dtype.kind in "biuf" else []


def _text(value: Any) -> str:
    """An attribute as text, also true and false as JSON has them."""
    return str(value) if isinstance(value, str | bool) else ""


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
    if dtype.kind == "f":
        return dtype.newbyteorder("=")
    return np.dtype("f4" if dtype.itemsize <= 2 else "f8")


def coding_of(source: Source) -> CfCoding | None:
    """How an opened source is coded, if it says so. Its fill value counts where xarray keeps it there (`masked`).

    Raises
    ------
    ArgumentError
        An attribute that scales is no number.
    """
    attributes, masked = getattr(source, "attributes", {}), getattr(source, "masked", None)
    if source.spec.dtype.kind in "iuf":
        for name in ("scale_factor", "add_offset"):
            if (value := attributes.get(name)) is not None and _number(value) is None:
                raise ArgumentError(
                    f"{source.spec.name}: {name}={value!r} is no number: decode='raw' gives what is stored"
                )
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

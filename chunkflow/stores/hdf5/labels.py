"""What HDF5 and netCDF store beside a dataset's elements: attributes, and names of its dimensions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import h5py
import numpy as np
from h5py import h5z

from chunkflow.core.grid import Shape
from chunkflow.stores.hdf5.filters import DEFLATE, FLETCHER32, SHUFFLE
from chunkflow.stores.new_array import StoredLabels

OF_FORMAT = frozenset(
    {
        "CLASS",
        "NAME",
        "DIMENSION_LIST",
        "DIMENSION_LABELS",
        "REFERENCE_LIST",
        "_Netcdf4Coordinates",
        "_Netcdf4Dimid",
        "_nc3_strict",
        "_NCProperties",
    }
)
"""Attributes by which HDF5 and netCDF know dimensions: they say nothing of the elements."""


LOSSLESS = frozenset({DEFLATE, SHUFFLE, FLETCHER32, h5z.FILTER_LZF, 307, 32001, 32004, 32015})
"""Filters that elements of any dtype go through unchanged, and that are set up anew with the values that they have."""


def labels_of(dataset: Any) -> StoredLabels:
    """Attributes of a dataset as Python's numbers, texts and lists of them, and names of its dimensions."""
    attributes = {}
    for key in dataset.attrs:
        if key not in OF_FORMAT:
            try:
                value = _plain(dataset.attrs[key])
                json.dumps(value)
            except (TypeError, ValueError, OSError):  # references and records, and what h5py does not read
                continue
            attributes[key] = value
    names = tuple(_name(dataset, axis) for axis in range(dataset.ndim))
    known = [name for name in names if name is not None]
    return StoredLabels(attributes, names if known and len(set(known)) == len(known) else None, _filters(dataset))


def _filters(dataset: Any) -> tuple[dict[str, Any], ...]:
    """The filters of a dataset, in h5py's words. Without those that lose digits, or are not to be had here."""
    made = dataset.id.get_create_plist()
    found = [made.get_filter(i) for i in range(made.get_nfilters())]
    return tuple(
        {"compression": code, "compression_opts": tuple(values)}
        for code, _, values, _ in found
        if code in LOSSLESS and h5z.filter_avail(code) and h5z.get_filter_info(code) & h5z.FILTER_CONFIG_ENCODE_ENABLED
    )


def conventions_of(dataset: Any, names: Iterable[str]) -> dict[str, Any]:
    """Attributes of these names as xarray and netCDF have them: texts as str, one element as itself, of NumPy's dtype.

    HDF5 has texts of fixed length as bytes, and many writers put each number or text into an array of one. An attribute
    without a value is left out.
    """
    found = {}
    for name in names:
        if name not in dataset.attrs:
            continue
        value = dataset.attrs[name]
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(-1)[0]
        if isinstance(value, h5py.Empty) or np.size(value) == 0:
            continue
        found[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return found


def fitting(labels: StoredLabels, own: str, is_free: Callable[[str, int], bool], shape: Shape) -> StoredLabels:
    """Those labels of another array that a new dataset can have.

    `own` is its name. ``is_free(name, n)`` says whether an axis of a length can have a name, as nothing else has it.
    """
    attributes = {k: v for k, v in (labels.attributes or {}).items() if _is_stored(v)}
    names = labels.dimension_names
    if names is not None:
        names = tuple(
            name if name and "/" not in name and (len(shape) == 1 if name == own else is_free(name, n)) else None
            for name, n in zip(names, shape, strict=True)
        )
    return StoredLabels(attributes, names, labels.compressors)


def _is_stored(value: Any) -> bool:
    """Whether HDF5 has attributes of such values."""
    try:
        return np.asarray(value).dtype.kind in "biufcSU"
    except ValueError:  # lists of different lengths
        return False


def _plain(value: Any) -> Any:
    """An attribute without NumPy's types, and without the list of one that netCDF makes of each number."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    found = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, np.ndarray) and value.shape == (1,):
        (found,) = found
    return found if found is value else _plain(found)


def _name(dataset: Any, axis: int) -> str | None:
    """Name of a dimension: that of its scale in the file, or its label."""
    if dataset.is_scale and dataset.ndim == 1:
        return str(os.path.basename(dataset.name))
    try:
        scales = list(dataset.dims[axis].values())
        name = str(os.path.basename(scales[0].name) if scales else dataset.dims[axis].label)
        return name or None
    except (RuntimeError, ValueError, KeyError):  # one that was deleted
        return None

"""Dimension scales: datasets that name the axes of others, as netCDF's dimensions do.

A scale and the datasets that it is attached to refer to each other (HDF5's specification of dimension scales). A reader
of netCDF opens no file in which such a reference leads nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from h5py import h5ds

from chunkflow.core.grid import Shape

_USERS = "REFERENCE_LIST"
"""Attribute of a scale: the datasets that it is attached to, each with an axis."""

_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
"""How the names of scales begin that hold no elements, but stand for a dimension of netCDF's alone."""

_OF_NETCDF = ("_Netcdf4Dimid", "_Netcdf4Coordinates")
"""Attributes by which netCDF numbers its dimensions."""


def shortage(dataset: Any) -> str:
    """What netCDF reads beyond the end of a dataset whose unlimited dimension others fill further; empty if nothing."""
    for axis in [a for a, most in enumerate(dataset.maxshape or ()) if most is None]:
        lengths: list[int] = []
        with suppress(RuntimeError, ValueError, KeyError, TypeError):  # a scale that was deleted, or is none
            for scale in [dataset] if dataset.is_scale else [*dataset.dims[axis].values()]:
                rows = scale.attrs.get(_USERS, ())
                lengths += [scale.shape[0], *(scale.file[row[0]].shape[int(row[1])] for row in rows)]
        if max(lengths, default=0) > dataset.shape[axis]:
            return f"{dataset.shape[axis]} of the {max(lengths)} elements of its dimension {axis} are stored"
    return ""


def users(scale: Any) -> list[tuple[Any, int]]:
    """The datasets that a scale is attached to, and to which axis of each.

    What is said of datasets that were deleted, and not detached before, is forgotten: HDF5 detaches nothing from such a
    scale.
    """
    if _USERS not in scale.attrs:
        return []
    rows, found, kept = scale.attrs[_USERS], [], []
    for row in rows:
        with suppress(ValueError, KeyError):
            found.append((scale.file[row[0]], int(row[1])))
            kept.append(row)
    if len(kept) < len(rows):
        kind = scale.attrs.get_id(_USERS).dtype
        del scale.attrs[_USERS]
        if kept:
            scale.attrs.create(_USERS, np.array(kept, kind), dtype=kind)
    return found


def _detached(dimension: Any) -> list[Any]:
    """Detach all scales from an axis; they, in their order. None where one was deleted, and HDF5 lists no others."""
    try:
        found = list(dimension.values())
    except (RuntimeError, ValueError, KeyError):
        return []
    for scale in found:
        users(scale)
        dimension.detach_scale(scale)
    return found


def is_bare(dataset: Any) -> bool:
    """Whether a dataset is a dimension of netCDF's without elements of its own."""
    return bool(dataset.is_scale and h5ds.get_scale_name(dataset.id).startswith(_NO_VARIABLE.encode()))


def fixed(dataset: Any) -> Shape | None:
    """The shape that must stay if a dataset is replaced: that of a scale, which is the length of a dimension."""
    return tuple(dataset.shape) if dataset.is_scale and dataset.shape is not None else None


def found(file: Any, dataset: str, name: str) -> Any:
    """What has a dimension's name where a dataset looks for it: in its group, and in those above; None if nothing."""
    group = dataset.rpartition("/")[0]
    while True:
        path = f"{group}/{name}".lstrip("/")
        if path in file:
            return file[path]
        if not group:
            return None
        group = group.rpartition("/")[0]


def attach(dataset: Any, names: Sequence[str | None]) -> None:
    """Name the axes of a dataset by scales: those that are there, or new ones without elements."""
    group, own = dataset.parent, os.path.basename(dataset.name)
    for axis, (name, n) in enumerate(zip(names, dataset.shape, strict=True)):
        if name is None:
            continue
        _detached(dataset.dims[axis])
        if name == own:
            if not dataset.is_scale:
                dataset.make_scale(name)
            continue
        scale = found(dataset.file, dataset.name.strip("/"), name)
        if scale is None:
            scale = group.create_dataset(name, shape=(n,), dtype=">f4")
            scale.make_scale(f"{_NO_VARIABLE}.{n:10d}")
        dataset.dims[axis].attach_scale(scale)


def hand_over(old: Any, new: Any) -> None:
    """Let `new` have the scales of `old`, whose place in the file it takes, and be one if `old` is.

    One of another shape gets none.
    """
    for axis, dimension in enumerate(old.dims):
        scales = _detached(dimension)
        if old.shape == new.shape:
            for scale in scales:
                new.dims[axis].attach_scale(scale)
            if dimension.label:
                new.dims[axis].label = dimension.label
    if old.shape == new.shape:
        for name in _OF_NETCDF:
            if name in old.attrs:
                new.attrs.create(name, old.attrs[name], dtype=old.attrs.get_id(name).dtype)
    if old.is_scale:
        name = os.path.basename(new.name) if is_bare(old) else h5ds.get_scale_name(old.id).decode()
        new.make_scale(name)
        for user, axis in users(old):
            dimension = user.dims[axis]
            for scale in _detached(dimension):
                dimension.attach_scale(new if scale == old else scale)

"""Dimension scales: datasets that name the axes of others, as netCDF's dimensions do.

A scale and the datasets that it is attached to refer to each other (HDF5's specification of dimension scales). A reader
of netCDF opens no file in which such a reference leads nowhere.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from h5py import h5ds

from chunkflow.core.grid import Shape

_USERS = "REFERENCE_LIST"
"""Attribute of a scale: the datasets that it is attached to, each with an axis."""

_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable"
"""How the names of scales begin that hold no elements, but stand for a dimension of netCDF's alone."""

_OF_NETCDF = ("_Netcdf4Dimid", "_Netcdf4Coordinates")
"""Attributes by which netCDF numbers its dimensions."""


def users(dataset: Any) -> list[tuple[Any, int]]:
    """The datasets that a scale is attached to, and to which axis of each; none if it is no scale."""
    found: list[tuple[Any, int]] = []
    for reference, axis in dataset.attrs[_USERS] if dataset.is_scale and _USERS in dataset.attrs else ():
        with suppress(ValueError, KeyError):  # one that was deleted, and not detached before
            found.append((dataset.file[reference], int(axis)))
    return found


def fixed(dataset: Any) -> Shape | None:
    """The shape that must stay if a dataset is replaced: that of a scale, which is the length of a dimension."""
    return tuple(dataset.shape) if dataset.is_scale and dataset.shape is not None else None


def hand_over(old: Any, new: Any) -> None:
    """Let `new` have the scales of `old`, whose place in the file it takes, and be one if `old` is.

    One of another shape gets none.
    """
    for axis, dimension in enumerate(old.dims):
        scales = list(dimension.values())
        for scale in scales:
            dimension.detach_scale(scale)
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
        name = h5ds.get_scale_name(old.id).decode()
        new.make_scale(os.path.basename(new.name) if name.startswith(_NO_VARIABLE) else name)
        for user, axis in users(old):
            dimension = user.dims[axis]
            scales = list(dimension.values())  # in their order
            for scale in scales:
                dimension.detach_scale(scale)
            for scale in scales:
                dimension.attach_scale(new if scale == old else scale)

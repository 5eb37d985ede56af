"""Variables that netCDF4 has opened. One that stands for other numbers than are stored is refused while it says so."""

from __future__ import annotations

from typing import Any

from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentError
from chunkflow.stores.foreign.generic import GenericSource, GenericTarget

SCALING = ("scale_factor", "add_offset")
"""Attributes by which the library makes numbers of another dtype, in both directions."""


class NetcdfSource(GenericSource):
    """A `netCDF4.Variable`, read by one thread at a time, as all of the library is."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable, _name(variable), _chunks(variable))


class NetcdfTarget(GenericTarget):
    """A `netCDF4.Variable` of the user's."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable, _name(variable), _chunks(variable))


def path_of(variable: Any) -> str:
    """The path of a variable in an HDF5 file, by which another process opens it."""
    return _name(variable)


def _name(variable: Any) -> str:
    """The variable's file and name; `ArgumentError` if it scales numbers as they go in and out."""
    group = variable.group()
    name = f"{group.filepath()}:{group.path.rstrip('/')}/{variable.name}"
    scaling = [f"{key}={variable.getncattr(key)}" for key in SCALING if key in variable.ncattrs()]
    if scaling and variable.scale:
        raise ArgumentError(
            f"the netCDF4.Variable {name} scales what it reads and writes, by {', '.join(scaling)}: its dtype "
            f"{variable.dtype} is of what is stored alone. Call its set_auto_maskandscale(False) for the stored "
            f"numbers; cf.open({name!r}, decode='cf') reads the scaled ones"
        )
    return name


def _chunks(variable: Any) -> Shape | None:
    sides = variable.chunking()
    return tuple(int(side) for side in sides) if isinstance(sides, list) and sides else None

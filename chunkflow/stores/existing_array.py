"""What users say of an array that is there, of which a run writes a part, or to which it adds."""

from __future__ import annotations

import operator
import os
from dataclasses import KW_ONLY, dataclass
from typing import Any

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spelling import spelt_class
from chunkflow.errors import ArgumentError, ArgumentTypeError


@spelt_class
@dataclass(frozen=True, eq=False)
class ExistingArray:
    """An array that is there, of which a result becomes a part: given as ``out=``.

    Parameters
    ----------
    where : str, path, zarr.Array, h5py.Dataset or numpy.ndarray
        The array: its path or URL, or the array itself, open for writing.
    region : slice or tuple of slices, optional
        The part that is written, as ``np.s_[10:20, :]``. All else stays, also in chunks of which this is a part.
    append : int, optional
        The axis at whose end the result is added. Of a zarr array and of a ``.npy`` file the new length is put last:
        until then readers see the old array, whole. A ``.npy`` file grows along its first axis (along its last one in
        Fortran order), and is given by its path. A dataset of HDF5 must be resizable.

    What the call returns is all of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Neither or both of `region` and `append`; a region with steps, or beyond the array; a shape that does not fit;
        an array that cannot grow.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> days = cf.copy(np.zeros((2, 3)), "days.zarr", device="cpu")
    >>> longer = cf.copy(np.ones((2, 3)), cf.ExistingArray("days.zarr", append=0), device="cpu")
    >>> _ = cf.copy(np.full((1, 3), 7.0), cf.ExistingArray("days.zarr", region=np.s_[1:2]), device="cpu")
    >>> longer[:, 0]
    array([0., 7., 1., 1.])
    """

    where: Any
    _: KW_ONLY
    region: Any = None
    append: int | None = None

    def __post_init__(self) -> None:
        """Check what needs no array."""
        if (self.region is None) == (self.append is None):
            raise ArgumentError("an ExistingArray has either region= or append=; for all of it, give the array itself")
        if self.append is not None:
            if isinstance(self.append, bool):
                raise ArgumentTypeError(f"append={self.append!r} must be an axis")
            try:
                operator.index(self.append)
            except TypeError:
                raise ArgumentTypeError(f"append={self.append!r} must be an axis") from None
        if self.where is None or isinstance(self.where, ExistingArray):
            raise ArgumentTypeError(f"an ExistingArray is a path or an array, not {self.where!r}")

    @property
    def path(self) -> str | None:
        """The path or URL, if it was given by one."""
        return os.fspath(self.where) if isinstance(self.where, str | os.PathLike) else None

    def bounds(self, shape: Shape, name: str) -> Region:
        """The region of an array of this shape, as slices from a start to a stop.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            It is no region of such an array.
        """
        given = self.region if isinstance(self.region, tuple) else (self.region,)
        dots = [i for i, side in enumerate(given) if side is Ellipsis]
        if dots:
            rest = (slice(None),) * (len(shape) - len(given) + 1)
            given = (*given[: dots[0]], *rest, *given[dots[0] + 1 :])
        if len(given) > len(shape) or len(dots) > 1:
            raise ArgumentError(
                f"region={self.region!r} does not suit {name}, whose shape is {shape}: give at most one slice for "
                "each axis, and '...' once at most"
            )
        found = []
        for axis, (n, side) in enumerate(zip(shape, (*given, *[slice(None)] * (len(shape) - len(given))), strict=True)):
            if not isinstance(side, slice):
                raise ArgumentTypeError(f"region={self.region!r}: {side!r} is no slice. One element is slice(5, 6)")
            if side.step not in (None, 1):
                raise ArgumentError(f"region={self.region!r} has steps: only whole runs of elements are written")
            start, stop, _ = side.indices(n)
            if stop < start or any(at is not None and not -n <= at <= n for at in (side.start, side.stop)):
                raise ArgumentError(
                    f"region={self.region!r} is no range within axis {axis} of {name}, whose length is {n}"
                )
            found.append(slice(start, stop))
        return tuple(found)

    def axis(self, ndim: int, name: str) -> int:
        """The axis that grows."""
        assert self.append is not None
        axis = operator.index(self.append)
        if not -ndim <= axis < ndim:
            raise ArgumentError(f"append={self.append} is out of bounds for {name}, which has {ndim} dimensions")
        return axis % ndim

    def grown(self, old: Shape, shape: Shape, name: str) -> tuple[Shape, Region]:
        """The shape of an array to which a result is added, and where that goes.

        Raises
        ------
        ArgumentError
            The result has another length along another axis.
        """
        axis = self.axis(len(old), name)
        if len(shape) != len(old) or any(n != m for i, (n, m) in enumerate(zip(shape, old, strict=True)) if i != axis):
            rest = (*old[:axis], *old[axis + 1 :])
            way = "all other axes must have the same lengths"
            if tuple(shape) == rest:
                index = ", ".join([":"] * axis + ["None"])
                way = (
                    f"it lacks that axis, and r[{index}] of an expression r has it. Open the arrays, as r = "
                    f"chunkflow.map(fn, chunkflow.open(path)), and write by chunkflow.store(r[{index}], "
                    f"chunkflow.ExistingArray(..., append={self.append}))"
                )
            raise ArgumentError(
                f"the result has shape {tuple(shape)}, which is not added to {name} of shape {old} along axis {axis}: "
                f"{way}"
            )
        new = tuple(n + shape[axis] if i == axis else n for i, n in enumerate(old))
        return new, tuple(slice(n if i == axis else 0, m) for i, (n, m) in enumerate(zip(old, new, strict=True)))

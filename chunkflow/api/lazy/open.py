"""Opens sources as lazy arrays, from which expressions are made."""

from __future__ import annotations

import importlib
import os
from contextlib import closing
from typing import Any, Literal

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.masked import MaskedArray
from chunkflow.api.lazy.times import TimeArray
from chunkflow.api.lazy.times_decode import decoded_times
from chunkflow.core.grid import Shape
from chunkflow.core.spec import default_chunks
from chunkflow.core.spelling import spelt
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.elementwise import applied
from chunkflow.graph.nodes import Node, SourceNode, node_of
from chunkflow.stores import is_dask_array, is_labelled, open_source
from chunkflow.stores.cf import coding_of, decoded
from chunkflow.stores.cf_times import time_coding
from chunkflow.stores.checks import TimesError
from chunkflow.stores.foreign.xarray import held
from chunkflow.stores.paths import hdf5_parts
from chunkflow.stores.patterns import check_alike, matching, warn_of_order
from chunkflow.stores.registry import stored, warn_of_order_in


def _named(given: tuple[object, ...]) -> str:
    """How a dataset is named that was given behind the path of its file."""
    path, name = given[:2]
    if not isinstance(name, str) or not isinstance(path, str | os.PathLike):
        return ": all else is given by name"
    path = os.fspath(path)
    whole = f"{path}{'/' if hdf5_parts(path) is None else ':/'}{name.lstrip('/')}"
    return f": an array in a file or a group is named in its path: chunkflow.open({whole!r})"


@spelt(_named)
def open(
    source: Any, *, decode: Literal["cf", "raw"] | None = None, missing: Literal["fill", "error"] | None = None
) -> Any:
    """Open an array of any size as an expression, from which others are made. Nothing is read yet.

    What is read is what the source holds when a result is asked for. It must have the same shape and dtype then, or a
    `ReadError` says so. A relative path is one from the directory that the process is in now.

    Parameters
    ----------
    source : array_like, str or path
        A source, as for `chunkflow.map`. A pattern, as ``"step_*.h5:/u"``, is the stack of the arrays that match, along
        a new first axis, in the order of their names as text; a `FileOrderWarning` says where numbers in these have
        another order.
    decode : {"cf", "raw"}, optional
        Of a path, whose array has attributes of the CF conventions that change what its numbers mean (``scale_factor``,
        ``add_offset``, ``_FillValue``, ``missing_value``, ``_Unsigned``): "cf" gives the values, with NaN for what is
        missing, as xarray does; "raw" the stored numbers. By default these are given, with a `CodingWarning`. With
        "cf" numbers with units such as "days since 1900-01-01" are times.
    missing : {"fill", "error"}, optional
        Of a path: whether chunks that are not stored read as the array's fill value, as zarr and HDF5 have it, or are a
        `ReadError`. Many programs store no chunks that hold nothing else. By default they read as the fill value, but a
        server that has not a single one is doubted, unless it lists what it has.

    Returns
    -------
    Array
        To be used as a NumPy array is. Of a masked array, NumPy's or dask's, a `MaskedArray`; of datetime64 or
        timedelta64 a `TimeArray`. Of an xarray.DataArray or Variable, the same with an `Array` as its data.

    Raises
    ------
    SourceNotFoundError, ArgumentError, ArgumentTypeError
        There is no such array, or it is of a kind that cannot be read.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.arange(12.0).reshape(3, 4))
    >>> np.sqrt(x).sum(axis=0).compute(device="cpu").shape
    (4,)
    """
    if missing not in (None, "fill", "error"):
        raise ArgumentError(f"missing={missing!r} is unknown: 'fill' or 'error', for missing chunks")
    if isinstance(source, str | os.PathLike) and (files := matching(os.fspath(source))):
        warn_of_order(os.fspath(source), files)
        stack = importlib.import_module("chunkflow.api.rearrange.join").stack  # which makes expressions
        each = [open(file, decode=decode, missing=missing) for file in files]
        check_alike(files, [array.shape for array in each])
        found = stack(each)
        node_of(found).title = f"{os.fspath(source)}, {len(files)} {'file' if len(files) == 1 else 'files'}"
        return found
    if decode is not None:
        return _decoded(source, decode, missing)
    if missing is not None:
        return Array(SourceNode(stored(source, "missing", warns=True, missing=missing)))
    if (called := _of_times(source)) is not None:
        raise ArgumentTypeError(
            f"{called}: give its elements as an array of NumPy's or dask's, in which NaT is missing"
        )
    if is_labelled(source):
        importlib.import_module("chunkflow.xarray")  # the door, which has xarray reduce groups of expressions here
        found = source.copy(deep=False, data=ChunkedArray(node_of(held(getattr(source, "variable", source)))))
        # xarray computes with one kind of chunks at a time.
        coords = getattr(found, "coords", {}).items()
        others = {name: c.copy(data=np.asarray(c)) for name, c in coords if c.chunks is not None}
        return found.assign_coords(others) if others else found
    if isinstance(source, np.ma.MaskedArray):
        return MaskedArray.of(source)
    if is_dask_array(source) and isinstance(source._meta, np.ma.MaskedArray):
        return _masked_dask(source)
    if isinstance(source, Array | MaskedArray | TimeArray):
        return source
    try:
        return Array(SourceNode(source))
    except TimesError as error:
        if (times := TimeArray.of(source, error.dtype)) is None:
            raise ArgumentTypeError(
                f"{error.name} has dtype {error.dtype}, which is read from an open dataset: give h5py.File(path)[name]"
            ) from None
        return times


def _of_times(source: Any) -> str | None:
    """What a masked or labelled array of times is called; None of others."""
    if getattr(getattr(source, "dtype", None), "kind", "") not in ("m", "M"):
        return None
    if isinstance(source, np.ma.MaskedArray) or isinstance(getattr(source, "_meta", None), np.ma.MaskedArray):
        return "a masked array of times"
    return "a labelled array of times" if is_labelled(source) else None


def _decoded(path: Any, decode: str, missing: str | None) -> Any:
    """The array of a path, as it is stored or decoded."""
    if decode not in ("cf", "raw"):
        raise ArgumentError(f"decode={decode!r} is unknown: 'cf' applies attributes of the CF conventions, 'raw' none")
    as_stored = stored(path, missing=missing)
    found = Array(SourceNode(as_stored))
    with closing(open_source(as_stored)) as source:
        warn_of_order_in(source)
        how = coding_of(source) if decode == "cf" else None
        are_times = decode == "cf" and source.spec.dtype.kind in "iuf"
        times = time_coding(getattr(source, "attributes", {}), source.spec.name) if are_times else None
        if decode == "cf" and (short := getattr(source, "short", "")):
            raise UnsupportedError(
                f"{source.spec.name}: {short}, and to netCDF the others are missing values, which are not made here: "
                "open it with xarray, or as it is stored with decode='raw'"
            )
    if times is not None:
        result = decoded_times(found, how, times)
    elif how is not None:
        result = applied(decoded, (found,), {}, dict(vars(how)))
    else:
        return found
    values = result.parts()[0] if isinstance(result, TimeArray) else result
    node_of(values).title = f"{source.spec.name}, decoded"
    return result


def _masked_dask(array: Any) -> MaskedArray:
    """A dask array with masked blocks, which are computed for the elements and once more for the mask."""
    kinds = {np.ma.getdata: array.dtype, np.ma.getmaskarray: np.dtype(bool)}
    parts = [array.map_blocks(fn, meta=np.empty((0,) * array.ndim, dtype)) for fn, dtype in kinds.items()]
    return MaskedArray(*(Array(SourceNode(part)) for part in parts))


def from_dask(array: Any) -> Any:
    """As `open`, for dask arrays alone: blocks are computed by the caller's scheduler as they are read.

    As many blocks are computed at the same time as a run reads ahead. If the expression becomes a graph of tasks
    (`Array.to_dask`, ``dask.compute``), the blocks are tasks of that graph.

    Raises
    ------
    ArgumentTypeError
        It is no dask array, or its shape is not known.

    Examples
    --------
    >>> import dask.array as da, chunkflow as cf
    >>> (cf.from_dask(da.arange(10, chunks=5)) ** 2).sum().compute(device="cpu")
    np.int64(285)
    """
    if not hasattr(array, "__dask_graph__") or isinstance(array, Array | MaskedArray):
        raise ArgumentTypeError(f"from_dask takes a dask array, not a {type(array).__name__}: see open")
    return open(array)


class ChunkedArray(Array):
    """An expression inside an xarray object. Its chunks tell xarray that it is lazy.

    They are the chunks of a zarr array that is made of it. The blocks of a run are planned when it runs.

    Parameters
    ----------
    node : Node
    sides : tuple of int, optional
        Those chunks, where they are known: by default they are chosen by shape and dtype alone.
    """

    __slots__ = ("_sides",)

    def __init__(self, node: Node, sides: Shape | None = None) -> None:
        super().__init__(node)
        self._sides = sides

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Lengths of the chunks along each axis."""
        sides = self._sides or default_chunks(self.shape, self.dtype.itemsize)
        return tuple(
            (*[side] * (n // side), *([n % side] if n % side else ())) or (0,)
            for n, side in zip(self.shape, sides, strict=True)
        )

    @property
    def __array_namespace__(self) -> Any:
        # xarray would use the standard's functions and indices alone, where NumPy's do more.
        raise AttributeError("an expression inside an xarray object has NumPy's functions")

    def __dask_graph__(self) -> None:
        """Not dask's: xarray asks the manager of its chunks, `chunkflow.xarray.ChunkManager`."""

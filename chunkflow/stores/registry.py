"""Which format opens what: sources and targets from what users give.

A new format is one file and one row, in `FORMATS` if it has paths and in `KINDS` if it has objects. Rows are tried in
order. Their modules are loaded when they are first needed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, uneven
from chunkflow.stores.cf import warn_of
from chunkflow.stores.checks import is_dask_array, is_labelled
from chunkflow.stores.checksums import asked
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.paths import TIFF, absolute, hdf5_named, hdf5_parts, is_npy, netcdf3_parts, tiff_files
from chunkflow.stores.patterns import check_alike, matching, warn_of_order
from chunkflow.stores.protocol import Sink, Source, Target, gaps_of
from chunkflow.stores.times import Counts
from chunkflow.stores.zarr.node import belongs_to_zarr, refuse_inside_array, zarr_node
from chunkflow.system.deferred import at, instance_of

_KINDS = (
    "a NumPy array or np.memmap, the path of a .npy file or a zarr array or of an HDF5 dataset ('file.h5:/name'), a "
    "zarr.Array, an h5py.Dataset, an xarray.DataArray, or an object with shape, dtype and basic slicing"
)


class Format(NamedTuple):
    """A format of arrays that have paths. All four functions are given what the user wrote.

    What lies under a path is in this format if it `holds` that, and `source` opens it. A new array at a path is in this
    format if it `takes` that, and `target` makes its target; `overwrite` is a keyword argument. A `package` may be
    needed, which an `extra` of chunkflow installs, or its own name. `inside` gives the paths of the arrays in a file or
    group that is no array itself. With a `name`, of
    `chunkflow.stores.new_array.OPTIONS`, it is the format of a `NewArray`, which `target` is given as `said`.
    """

    holds: Callable[[str], bool]
    source: Callable[[str], Source]
    takes: Callable[[str], bool]
    target: Callable[..., Target]
    package: str = ""
    extra: str = ""
    name: str = ""
    inside: Callable[[str], list[str]] = lambda path: []

    def require(self, path: str) -> None:
        """Refuse a path whose package is not installed."""
        if self.package and importlib.util.find_spec(self.package) is None:
            wanted = f"'chunkflow-stream[{self.extra}]'" if self.extra else self.package
            raise ArgumentError(f"{path} is a file for {self.package}, which is not installed: pip install {wanted}")


class ObjectKind(NamedTuple):
    """A kind of objects: how it is recognised, and what makes their sources and targets, if they can be such."""

    recognizes: Callable[[Any], bool]
    source: Callable[[Any], Source] | None = None
    target: Callable[[Any], Target] | None = None


def having(*names: str) -> Callable[[object], bool]:
    """Whether an object has these attributes."""
    return lambda obj: all(hasattr(obj, name) for name in names)


_is_zarr_group, _is_zarr_store = instance_of("zarr", "Group"), instance_of("zarr.abc.store", "Store")
_is_store_path = instance_of("zarr.storage", "StorePath")


def _is_zarr_place(obj: Any) -> bool:
    """Whether an object is a group or store of zarr's."""
    return _is_zarr_group(obj) or _is_zarr_store(obj) or _is_store_path(obj)


_is_zarr_array, is_hdf5_dataset = instance_of("zarr", "Array"), instance_of("h5py", "Dataset")


def _labelled_source(obj: Any) -> Source:
    from chunkflow.stores.foreign.xarray import held

    return open_source(held(getattr(obj, "variable", obj)))


def _stored_source(obj: Any) -> Source:
    from chunkflow.stores.foreign.xarray import StoredSource
    from chunkflow.stores.views.decoded import decoded_source

    found = decoded_source(obj.wrapped, _is_zarr_array, open_source) if obj.wrapped is not None else None
    if found is not None:
        return found
    known = _is_zarr_array(obj.behind) or is_hdf5_dataset(obj.behind)
    return StoredSource(obj, open_source(obj.behind) if known else None)


def _is_wrapped(obj: object) -> bool:
    """Whether an object is one of xarray's arrays around arrays."""
    return type(obj).__module__.startswith("xarray.") and hasattr(obj, "array")


def _wrapped_source(obj: Any) -> Source:
    from chunkflow.stores.foreign.xarray import WrappedSource
    from chunkflow.stores.views.decoded import decoded_source

    return decoded_source(obj, _is_zarr_array, open_source) or WrappedSource(obj)


def _refuse_device_array(obj: object) -> NoReturn:
    raise ArgumentTypeError(
        f"a {type(obj).__name__} is on the device already, and there is nothing to stream: "
        "pass the array in host memory or in a file"
    )


def _refuse_netcdf3(path: str, **_: Any) -> NoReturn:
    raise ArgumentError(
        f"the output {path}: netCDF 3 is read and not written here. Write a .nc of HDF5, as 'x.nc:/name'"
    )


def _refuse_dataset(obj: Any) -> NoReturn:
    names = ", ".join(map(repr, obj.data_vars)) or "none"
    raise ArgumentTypeError(
        f"an xarray.Dataset is not an array, but has several (its variables: {names}): take one, as dataset[name]"
    )


KINDS = (
    ObjectKind(lambda obj: obj is None, target=lambda _: at("chunkflow.stores.memory:HostTarget")()),
    ObjectKind(
        lambda obj: isinstance(obj, np.ndarray),
        source=at("chunkflow.stores.ndarray:ndarray_source"),
        target=at("chunkflow.stores.ndarray:ndarray_target"),
    ),
    ObjectKind(lambda obj: isinstance(obj, np.generic), source=at("chunkflow.stores.ndarray:ndarray_source")),
    # Ours: put together of others when they are opened, or a share of another run's output.
    ObjectKind(lambda obj: hasattr(type(obj), "__chunkflow_source__"), source=lambda obj: obj.__chunkflow_source__()),
    ObjectKind(lambda obj: hasattr(type(obj), "__chunkflow_target__"), target=lambda obj: obj.__chunkflow_target__()),
    ObjectKind(is_labelled, source=_labelled_source),
    ObjectKind(instance_of("chunkflow.stores.foreign.xarray", "StoredVariable"), source=_stored_source),
    ObjectKind(_is_wrapped, source=_wrapped_source),
    ObjectKind(having("__cuda_array_interface__"), source=_refuse_device_array, target=_refuse_device_array),
    ObjectKind(
        _is_zarr_array,
        source=at("chunkflow.stores.zarr.array:ZarrSource"),
        target=at("chunkflow.stores.zarr.array:ZarrTarget"),
    ),
    ObjectKind(
        is_hdf5_dataset,
        source=at("chunkflow.stores.hdf5.dataset:dataset_source"),
        target=at("chunkflow.stores.hdf5.write:DatasetTarget"),
    ),
    ObjectKind(_is_zarr_place, target=at("chunkflow.stores.zarr.create_in_store:store_target")),
    ObjectKind(is_dask_array, source=at("chunkflow.stores.foreign.dask:DaskSource")),
    ObjectKind(
        instance_of("netCDF4", "Variable"),
        source=at("chunkflow.stores.foreign.netcdf:NetcdfSource"),
        target=at("chunkflow.stores.foreign.netcdf:NetcdfTarget"),
    ),
    ObjectKind(
        instance_of("tensorstore", "TensorStore"),
        source=at("chunkflow.stores.foreign.tensorstore:TensorStoreSource"),
        target=at("chunkflow.stores.foreign.tensorstore:TensorStoreTarget"),
    ),
    ObjectKind(having("shape", "dtype", "__getitem__"), source=at("chunkflow.stores.foreign.generic:GenericSource")),
    ObjectKind(having("shape", "dtype", "__setitem__"), target=at("chunkflow.stores.foreign.generic:GenericTarget")),
    ObjectKind(instance_of("xarray", "Dataset"), source=_refuse_dataset),
)
"""Kinds of objects, in order of precedence."""

FORMATS = (
    Format(
        holds=lambda path: "://" in path,
        source=at("chunkflow.stores.zarr.array:open_zarr_url"),
        takes=lambda path: "://" in path,
        target=at("chunkflow.stores.zarr.create_remote:ZarrUrlTarget"),
        name="zarr",
        inside=at("chunkflow.stores.zarr.open_remote:inside_url"),
    ),
    Format(
        holds=lambda path: bool(matching(path)),
        source=lambda path: _open_pattern(path),
        takes=lambda path: "*" in path,
        target=lambda path, *, overwrite: _refuse_pattern(path),
    ),
    Format(
        holds=lambda path: is_npy(os.path.abspath(path)),
        source=at("chunkflow.stores.file.npy:open_npy"),
        takes=lambda path: os.path.abspath(path).endswith(".npy"),
        target=at("chunkflow.stores.file.npy:NpyTarget"),
        name="npy",
    ),
    Format(
        holds=lambda path: zarr_node(os.path.abspath(path)) is not None,
        source=at("chunkflow.stores.zarr.array:open_zarr"),
        takes=lambda path: belongs_to_zarr(os.path.abspath(path)),
        target=at("chunkflow.stores.zarr.create_local:ZarrPathTarget"),
        name="zarr",
        inside=at("chunkflow.stores.zarr.array:inside"),
    ),
    Format(
        holds=lambda path: bool(tiff_files(path)),
        source=at("chunkflow.stores.zarr.tiff:open_tiff"),
        takes=lambda path: path.lower().endswith(TIFF),
        target=at("chunkflow.stores.file.tiff:TiffTarget"),
        package="tifffile",
        extra="tiff",
        name="tiff",
    ),
    Format(
        holds=lambda path: netcdf3_parts(path) is not None,
        source=at("chunkflow.stores.foreign.netcdf3:open_netcdf3"),
        takes=lambda path: False,
        target=_refuse_netcdf3,
        package="xarray",
        inside=at("chunkflow.stores.foreign.netcdf3:inside"),
    ),
    Format(
        holds=lambda path: hdf5_parts(path) is not None and not os.path.isdir(os.path.abspath(path)),
        source=at("chunkflow.stores.hdf5.dataset:open_hdf5"),
        takes=lambda path: hdf5_named(path) is not None,
        target=at("chunkflow.stores.hdf5.create:Hdf5PathTarget"),
        package="h5py",
        extra="hdf5",
        name="hdf5",
        inside=at("chunkflow.stores.hdf5.dataset:inside"),
    ),
)
"""Formats of arrays that have paths, in order of precedence."""


def open_source(obj: Any) -> Source:
    """Open an array for reading by regions.

    Parameters
    ----------
    obj : numpy.ndarray, str, os.PathLike, zarr.Array, h5py.Dataset, xarray.DataArray or array-like object
        An array in memory or mapped from a file; the path of a ``.npy`` file or of a zarr array
        (a group's member too: ``"sim.zarr/u"``), of a TIFF file, or of an HDF5 dataset (``"sim.h5:/fields/u"``, or
        ``"sim.h5"`` where the file holds no other; the file's name may end otherwise); the URL of a zarr array; or any
        object with ``shape``, ``dtype`` and basic slicing.

    Raises
    ------
    SourceNotFoundError
        Nothing is stored under the path.
    ArgumentError
        The path holds no array (a zarr group, say).
    ArgumentTypeError
        The object, or its dtype, is of a kind that cannot be processed.
    ReadError
        The file cannot be opened, or is truncated.

    Examples
    --------
    >>> open_source(np.zeros((3, 4), "f4")).spec.shape
    (3, 4)
    """
    if isinstance(obj, (str, os.PathLike)):
        source = open_path(_text(obj))
        warn_of(source)
        warn_of_order_in(source)
        return source
    for kind in KINDS:
        if kind.source is not None and kind.recognizes(obj):
            return kind.source(obj)
    raise _no_array(obj)


def array_of(value: Any) -> np.ndarray:
    """An array of a number, or of lists of numbers.

    Raises
    ------
    ArgumentTypeError
        The lists are of different lengths.
    """
    try:
        return np.asarray(value)
    except ValueError:
        if not uneven(value):
            raise
        raise _no_array(value) from None


def _no_array(obj: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"an input of type {type(obj).__name__} is not an array{_instead(obj)}: pass {_KINDS}; "
        "anything else that fn needs goes in as a keyword argument"
    )


def warn_of_order_in(source: Source) -> None:
    """Warn of an array of several files whose numbers are in another order than their names."""
    warn_of_order(source.spec.name, getattr(source, "in_order", ()))


def _instead(obj: Any) -> str:
    """What to do with an object that is no array, but could become one."""
    if having("to_numpy")(obj):
        return ", but its to_numpy() gives one"
    if not isinstance(obj, (list, tuple, set, frozenset)) or not obj:
        return ""
    if all(isinstance(each, (str, os.PathLike)) or having("shape", "dtype")(each) for each in obj):
        return (
            f" ({len(obj)} arrays or paths): chunkflow.stack joins them along a new axis, chunkflow.concatenate along "
            "one that they have. As one array"
        )
    return f": {how}" if (how := uneven(obj)) else ", but np.array makes one of numbers"


def open_path(path: str) -> Source:
    """Source of the array with a path, as `open_source`, whatever its attributes say of its numbers."""
    return _format_of(path).source(path)


def _open_pattern(pattern: str) -> Source:
    """Source of the arrays of all files that a pattern matches, stacked in the order of the files' names."""
    files = matching(pattern)
    warn_of_order(pattern, files)
    with ExitStack() as stack:
        sources = []
        for file in files:
            sources.append(open_source(file))
            stack.callback(sources[-1].close)
        check_alike(files, [source.spec.shape for source in sources])
        found: Source = at("chunkflow.stores.views.stacked:stacked")(sources)
        stack.pop_all()
    return found


def _refuse_pattern(pattern: str) -> NoReturn:
    raise ArgumentError(f"the output {pattern!r} stands for many files by its *: write the name of one")


def arrays_in(path: str) -> list[str]:
    """Paths of the arrays in a file or group; of an array its own. No element is read."""
    return _format_of(path).inside(path) or [path]


def _format_of(path: str) -> Format:
    """The format of what lies under a path."""
    for each in FORMATS:
        if each.holds(path):
            each.require(path)
            return each
    raise at("chunkflow.stores.advice:refusal")(path, _KINDS)


@dataclass(frozen=True)
class Stored:
    """A path whose array is read as it is stored, whatever its attributes say.

    With `warns` they are heeded by a `CodingWarning`. If `missing` is "error" a missing chunk is one; if it is
    "fill" the caller knows that some are.
    """

    path: str
    warns: bool = False
    missing: str | None = None

    def __chunkflow_source__(self) -> Source:
        source = open_path(self.path)
        if self.warns:
            warn_of(source)
            warn_of_order_in(source)
        for _, gaps in gaps_of([source]):
            gaps.refuses, gaps.accepts = self.missing == "error", self.missing == "fill"
        return source


def stored(path: Any, keyword: str = "decode", *, warns: bool = False, missing: str | None = None) -> Stored:
    """The array of a path, as it is stored. The `keyword` is the one that asked for it."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"{keyword}= is for arrays that have a path, not for a {type(path).__name__}")
    text = _text(path)
    return Stored(text if "://" in text else os.path.join(os.getcwd(), text), warns, missing)


def named_source(obj: Any) -> Any:
    """What opens an array of the user's in another process: its path where it has one, else the object itself.

    Raises
    ------
    ArgumentTypeError
        It is one that only this process has.
    """
    if isinstance(obj, Stored | str):
        return obj
    if isinstance(obj, Counts):
        return Counts(named_source(obj.held), obj.times)
    if is_hdf5_dataset(obj):
        return at("chunkflow.stores.hdf5.facts:path_of")(obj)
    if _is_zarr_array(obj):
        return at("chunkflow.stores.zarr.array:path_of")(obj)
    if instance_of("netCDF4", "Variable")(obj):
        return Stored(absolute(at("chunkflow.stores.foreign.netcdf:path_of")(obj)))
    try:
        obj.__reduce_ex__(4)
    except Exception as error:
        raise ArgumentTypeError(
            f"an expression of a {type(obj).__name__} cannot be pickled: {error}. Store its elements, and open the file"
        ) from error
    return obj


def spec_of(array: Any) -> ArraySpec:
    """What is known of a source without reading it."""
    tells = getattr(type(array), "__chunkflow_spec__", None)  # ours, not there yet
    if tells is not None:
        told: ArraySpec = tells(array)
        return told
    source = open_source(array)
    try:
        return source.spec
    finally:
        source.close()


def open_target(out: Any, *, overwrite: bool = False) -> Target:
    """Check where an output is to go. Nothing is created or changed until the target is opened.

    Parameters
    ----------
    out : None, numpy.ndarray, str, os.PathLike, NewArray, ExistingArray, zarr.Array, h5py.Dataset or array-like object
        None for a new array in host memory; a path ending in ``.npy``, ``.zarr`` or ``.tif``, one inside such a zarr
        group (``"result.zarr/speed"``), or one of an HDF5 dataset (``"result.h5:/speed"``; ``"result.h5"`` means
        ``"result.h5:/data"``), for a new array there; a URL, for a new zarr array there; an `NewArray`, which
        says more of it; an array to write into, or an `ExistingArray`, which says of which part of one, or its end.
    overwrite : bool
        Whether an array that is stored under the path may be replaced once the run has succeeded.

    Raises
    ------
    OutputExistsError
        Something is stored under the path, and `overwrite` is false.
    ArgumentError
        The path is of no known kind, its directory is missing, or the array is read-only.
    ArgumentTypeError
        The object, or its dtype, is of a kind that cannot be written.

    Examples
    --------
    >>> open_target(None).describe((3, 4), np.dtype("f4"), None).nbytes
    48
    """
    if isinstance(out, NewArray):
        return _created(out, overwrite)
    if isinstance(out, ExistingArray):
        return _existing(out)
    if isinstance(out, (str, os.PathLike)):
        path = _text(out)
        for each in FORMATS:
            if each.takes(path):
                each.require(path)
                _check_place(path)
                return each.target(path, overwrite=overwrite)
        if os.path.isdir(path):
            inner = os.path.join(path, "result.zarr")
            raise ArgumentError(f"the output {path} is a directory: give the path of an array, as {inner!r}")
        wrong = at("chunkflow.stores.advice:misplaced")(path)
        raise ArgumentError(
            f"cannot tell the format of the output {os.path.abspath(path)}: end it in .npy, .zarr, .h5 or .tif, or "
            f"name a member of a zarr group or of an HDF5 file ('result.h5:/name'), or give its format, as "
            f"chunkflow.NewArray(path, format='zarr'){wrong}"
        )
    for kind in KINDS:
        if kind.target is not None and kind.recognizes(out):
            return kind.target(out)
    raise ArgumentTypeError(
        f"an output of type {type(out).__name__} cannot be written: pass None, or {_KINDS}; "
        "it has to take slice assignment"
    )


def format_of(out: NewArray) -> str | None:
    """The name of a new array's format; None if its path does not tell one."""
    if out.format is not None or out.path is None:
        return out.format or "zarr"
    path = _text(out.path)
    return next((each.name for each in FORMATS if each.takes(path)), None) or None


def _created(out: NewArray, overwrite: bool) -> Target:
    """Target of a new array of which more is said than its path."""
    if out.path is None:
        if not _is_zarr_place(out.where):
            raise ArgumentTypeError(
                f"a NewArray is a new array at a path or URL, or in a group or store of zarr's, not in a "
                f"{type(out.where).__name__}: an array that exists is given as it is"
            )
        store: Target = at("chunkflow.stores.zarr.create_in_store:store_target")(
            out.where, overwrite=overwrite, said=out
        )
        return store
    path = _text(out.path)
    if "*" in path and "://" not in path:
        _refuse_pattern(path)
    found = next((each for each in FORMATS if each.takes(path)), None)
    if out.format is not None and (found is None or found.name != out.format):
        if "://" in path:
            raise ArgumentError(
                f"format={out.format!r}: the output {path} lies behind a URL, where new arrays are zarr's"
            )
        *_, found = (each for each in FORMATS if each.name == out.format)
    if found is None:
        return open_target(path, overwrite=overwrite)  # which says what the path lacks
    if not found.name:
        raise ArgumentError(f"{path} is of a format that takes no NewArray: give the path alone")
    found.require(path)
    _check_place(path)
    out.check_format(found.name, path)
    return found.target(path, overwrite=overwrite, said=out)


def _check_place(path: str) -> None:
    """Refuse a new array in the directory of a zarr array, with which it would be replaced, whatever its format."""
    if "://" not in path:
        refuse_inside_array(os.path.realpath(path))


def _existing(out: ExistingArray) -> Target:
    """Target of a part or of the end of an array that is there."""
    if out.path is not None:
        path = _text(out.path)
        kind = _format_of(path).name
    else:
        kinds = ((_is_zarr_array, "zarr"), (is_hdf5_dataset, "hdf5"))
        kind = next((name for recognizes, name in kinds if recognizes(out.where)), "other")
    place = {"zarr": "zarr.grow", "hdf5": "hdf5.grow"}.get(kind, "views.part")
    return cast(Target, at(f"chunkflow.stores.{place}:existing_target")(out))


def is_new(out: Any) -> bool:
    """Whether an output is a new array that has a path or URL."""
    return isinstance(out, str | os.PathLike) or (isinstance(out, NewArray) and out.path is not None)


def scratch_array(path: str, shape: Shape, dtype: np.dtype, chunks: Shape) -> Any:
    """Create a writable zarr array whose chunks are raw bytes, for data between two passes: read once, then removed."""
    return at("chunkflow.stores.zarr.create_local:scratch_array")(path, shape, dtype, chunks)


@dataclass(frozen=True)
class Between:
    """An array that the run creates for data between two passes: a ``.npy`` file, or raw chunks in zarr.

    It appears when it is complete, as the array of a path does, so that a later run can go on with it; and that is what
    the run does if it is there.
    """

    path: str
    chunks: Shape | None

    def __chunkflow_target__(self) -> Target:
        with asked(False):  # what the call asks for is for its outputs
            if self.chunks is None:
                return open_target(self.path, overwrite=True)
            target: Target = at("chunkflow.stores.zarr.create_local:BetweenTarget")(self.path, self.chunks)
            return target


@dataclass(frozen=True)
class Published:
    """The path of an output that an earlier run has published: it is there, and stays if that is of the same call.

    `call` is what the run of one pass was, with which the present one is compared. If it was another one the output is
    refused, unless it may be overwritten.
    """

    path: Any
    call: Mapping[str, str] | None = None
    overwrite: bool = True
    has_path = True

    def __chunkflow_target__(self) -> Target:
        target = open_target(self.path, overwrite=True)
        return target if self.call is None else cast(Target, PublishedTarget(self, self.call, target))


class PublishedTarget:
    """The target of what is published, with what the run was that did so in `earlier`."""

    def __init__(self, place: Published, earlier: Mapping[str, str], target: Target) -> None:
        self.earlier, self.overwrite = earlier, place.overwrite
        self._place, self._target = place, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def claim(self) -> Any:
        """See `Target`."""
        self.refuse()
        return self._target.claim()  # type: ignore[attr-defined]

    def open(self, *args: Any) -> Sink:
        """See `Target.open`."""
        self.refuse()
        return self._target.open(*args)

    def own(self) -> None:
        """Take what exists for the present call's, which makes it again."""
        self._place = replace(self._place, overwrite=True)

    def refuse(self) -> None:
        """Refuse what exists, unless it may be overwritten."""
        open_target(self._place.path, overwrite=self._place.overwrite)


def _text(path: str | os.PathLike[Any]) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentTypeError(f"a path must be a str, not {type(text).__name__}")
    if not text or "\0" in text:
        raise ArgumentError(f"{text!r} is no path")
    return text.removeprefix("file://")

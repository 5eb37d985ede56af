"""What users say of an array that a run creates: where it goes, and how it is stored there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from chunkflow.core import chunking
from chunkflow.core.chunking import Chunks
from chunkflow.core.grid import Shape
from chunkflow.core.spelling import spelt_class
from chunkflow.errors import ArgumentError, ArgumentTypeError, LossWarning
from chunkflow.stores.codecs.named import listed, named, numbered
from chunkflow.stores.paths import hdf5_named
from chunkflow.system.users_line import users_line

OPTIONS: dict[str, tuple[str, ...]] = {
    "zarr": (
        "zarr_format",
        "chunks",
        "shards",
        "compressors",
        "filters",
        "fill_value",
        "attributes",
        "dimension_names",
        "order",
    ),
    "hdf5": ("chunks", "maxshape", "compressors", "filters", "fill_value", "attributes", "dimension_names"),
    "npy": ("order",),
    "tiff": (),
}
"""What may be said of a new array, by formats."""

_GROWING = ("zarr", "npy")
"""Formats whose arrays grow by `ExistingArray`, whatever is said of them."""

_SAID = {option for options in OPTIONS.values() for option in options}

NAMES = {"zarr": "zarr", "hdf5": "HDF5", "npy": ".npy", "tiff": "TIFF"}
"""What formats are called."""


class StoredLabels(NamedTuple):
    """What an array stores beside its elements: attributes, and names of its dimensions.

    `compressors` are filters of HDF5, which a copy there has, too.
    """

    attributes: Mapping[str, Any] | None = None
    dimension_names: tuple[str | None, ...] | None = None
    compressors: tuple[Any, ...] = ()


@spelt_class
@dataclass(frozen=True, eq=False)
class NewArray:
    """A new array, and how it is stored: given as ``out=`` in the place of a path.

    Whatever is not said follows from the format, the group and the source, as for a path alone.

    Parameters
    ----------
    where : str, path, zarr.Group or zarr.abc.store.Store
        The path of a ``.npy`` file, of a zarr array or of an HDF5 file, or the URL of a zarr array; or a group or store
        of zarr's that is open for writing. An icechunk session's store is one, and stays uncommitted.
    name : str, optional
        Of a member of the zarr group, or a dataset of the HDF5 file, as ``"run/speed"``.
    format : {"zarr", "hdf5", "npy"}, optional
        The format, where the path does not tell it by its end.
    zarr_format : {2, 3}, optional
        Zarr's format; 3 by default, or that of the group.
    chunks : int or tuple, optional
        Sides of the chunks: for each axis a length, -1 for the whole axis, or "auto".
    shards : tuple of int, optional
        Sides of zarr's shards, each a multiple of the chunks' side. Blocks hold whole shards.
    maxshape : tuple of int or None, optional
        Of HDF5, as h5py has it: for each axis the length to which the dataset may grow by ``ExistingArray(append=)``,
        or None for any. It has chunks then. Arrays of other formats grow as they are.
    compressors : codec or sequence of codecs, optional
        What compresses a chunk, in zarr-python's words or numcodecs': ``zarr.codecs.ZstdCodec(level=9)``,
        ``numcodecs.Blosc("lz4")``, a dict as in the metadata, or a name, as ``"gzip"``. HDF5 takes those that it has
        filters for, and hdf5plugin's. None for no compression.
    filters : codec or sequence of codecs, optional
        What is done before it: ``numcodecs.Delta("i4")``, ``"shuffle"`` in HDF5.
    fill_value : number, optional
        Value of elements that are not stored. None for none, in format 2.
    attributes : dict, optional
        Attributes of the array.
    dimension_names : sequence of str, optional
        Names of its axes, as xarray and netCDF know them.
    order : {"C", "F"}, optional
        Order of the elements in a ``.npy`` file, or in a chunk.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        What is said is wrong, or the format has nothing of that kind. Nothing has been read then.

    Examples
    --------
    >>> import numpy as np, zarr, chunkflow as cf
    >>> out = cf.NewArray("speed.zarr", zarr_format=2, chunks=(2, 2), compressors="gzip", attributes={"units": "m/s"})
    >>> speed = cf.copy(np.ones((4, 4)), out, device="cpu")
    >>> speed.chunks, speed.metadata.compressor, dict(speed.attrs)
    ((2, 2), GZip(level=1), {'units': 'm/s'})
    >>> group = zarr.open_group("run.zarr", mode="w")
    >>> cf.copy(np.ones((4, 4)), cf.NewArray(group, "fields/u", shards=(4, 4), chunks=(2, 2)), device="cpu").shards
    (4, 4)
    """

    where: Any
    name: str | None = None
    _: KW_ONLY
    format: Literal["zarr", "hdf5", "npy"] | None = None
    zarr_format: Literal[2, 3] | None = None
    chunks: Chunks = None
    shards: Shape | None = None
    maxshape: tuple[int | None, ...] | None = None
    compressors: Any = "auto"
    filters: Any = "auto"
    fill_value: Any = "auto"
    attributes: Mapping[str, Any] | None = None
    dimension_names: tuple[str | None, ...] | None = None
    order: Literal["C", "F"] | None = None

    def __post_init__(self) -> None:
        """Check what needs no format, no shape and no dtype."""
        if isinstance(self.where, NewArray):
            raise ArgumentTypeError(
                "a NewArray is given where a path or group is wanted: give the path or group that it has"
            )
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip("/")):
            raise ArgumentTypeError(f"name={self.name!r} must be the name of an array, as 'run/speed'")
        self._check_one_of("format", (None, *OPTIONS))
        self._check_one_of("zarr_format", (None, 2, 3))
        self._check_one_of("order", (None, "C", "F"))
        several = isinstance(self.chunks, Sequence) and not isinstance(self.chunks, str)
        chunking.lengths(self.chunks, len(self.chunks) if several else 1)  # type: ignore[arg-type]
        if self.zarr_format == 2 and self.shards is not None:
            raise ArgumentError("shards= are of zarr's format 3, and zarr_format=2 is given: leave one of them out")
        if self.shards is not None:
            object.__setattr__(self, "shards", tuple(_sides(self.shards, "shards")))
        if self.maxshape is not None:
            object.__setattr__(self, "maxshape", tuple(_limits(self.maxshape)))
        if self.attributes is not None and not isinstance(self.attributes, Mapping):
            raise ArgumentTypeError(f"attributes={self.attributes!r} must be a dict")
        if (names := self.dimension_names) is not None:
            if isinstance(names, str) or not all(isinstance(n, str | None) for n in names):
                raise ArgumentTypeError(f"dimension_names={names!r} must have a name for each axis, as ('lat', 'lon')")
            named = [n for n in names if n is not None]
            if len(set(named)) < len(named):
                raise ArgumentError(f"dimension_names={tuple(names)!r} has a name twice: no reader takes that")
            object.__setattr__(self, "dimension_names", tuple(names))

    def _check_one_of(self, option: str, values: tuple[Any, ...]) -> None:
        given = getattr(self, option)
        if isinstance(given, bool) or not any(given is value or given == value for value in values):
            raise ArgumentError(f"{option}={given!r} must be one of {', '.join(map(repr, values[1:]))}")

    @property
    def has_path(self) -> bool:
        """Whether an array is created, as `chunkflow.stores.checksums.asked` wants to know."""
        return True

    @property
    def path(self) -> str | None:
        """The path or URL, with the name in it; None where the array lies in a store of zarr's."""
        if not isinstance(self.where, str | os.PathLike):
            return None
        path = os.fspath(self.where)
        if not isinstance(path, str):
            raise ArgumentTypeError(f"a path must be a str, not {type(path).__name__}")
        if self.name is None:
            return path
        return f"{path.rstrip('/')}{':/' if self.is_file else '/'}{self.name.strip('/')}"

    @property
    def is_file(self) -> bool:
        """Whether the path is that of a file with several arrays."""
        return self.format == "hdf5" or (self.format is None and hdf5_named(os.fspath(self.where)) is not None)

    @property
    def said(self) -> dict[str, Any]:
        """What is said of how the array is stored, by the options' names."""
        given = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name in _SAID)
        return {
            name: value
            for name, value in given
            if (value is not None and not (isinstance(value, str) and value == "auto"))
            or (value is None and name in ("compressors", "filters", "fill_value"))
        }

    def __str__(self) -> str:
        """What is said, equal in another process for the same."""
        coded = ("compressors", "filters")
        said = {
            option: tuple([numbered(codec) or named(codec) for codec in listed(value)]) if option in coded else value
            for option, value in self.said.items()
        }
        return ", ".join(f"{option}={value!r}" for option, value in said.items())

    def with_labels(self, labels: StoredLabels) -> NewArray:
        """The same, with the attributes and names of dimensions of another array where it says none."""
        attributes = labels.attributes if self.attributes is None else self.attributes
        names = labels.dimension_names if self.dimension_names is None else self.dimension_names
        is_said = not {"compressors", "filters"}.isdisjoint(self.said)
        compressors = self.compressors if is_said or not labels.compressors else labels.compressors
        return replace(self, attributes=attributes, dimension_names=names, compressors=compressors)

    def check_format(self, format: str, name: str) -> None:
        """Refuse options that a format does not have.

        Raises
        ------
        ArgumentError
            It says which formats have them, and what this one has.
        """
        for option in self.said:
            if option not in OPTIONS[format]:
                if option == "maxshape":
                    raise ArgumentError(
                        f"maxshape= is for HDF5, and the output {name} is in the format {NAMES[format]}"
                        + (", whose arrays can always grow: leave it out" if format in _GROWING else "")
                    )
                others = " and ".join(NAMES[other] for other, has in OPTIONS.items() if option in has)
                raise ArgumentError(
                    f"{option}= is for {others}, and the output {name} is in the format {NAMES[format]}, which takes "
                    f"{', '.join(f'{taken}=' for taken in OPTIONS[format]) or 'none'}"
                )

    def check_shape(self, shape: Shape, name: str) -> None:
        """Refuse what does not suit the shape of the result."""
        if self.chunks is not None:
            chunking.lengths(self.chunks, len(shape))
            chunking.check_sums(self.chunks, shape)
        for option in ("shards", "maxshape", "dimension_names"):
            if (given := getattr(self, option)) is not None and len(given) != len(shape):
                raise ArgumentError(
                    f"{option}={given} has {len(given)} entries, and the result {name} has {len(shape)} dimensions"
                )

        for axis, (n, most) in enumerate(zip(shape, self.maxshape or (), strict=False)):
            if most is not None and most < n:
                raise ArgumentError(
                    f"maxshape={self.maxshape} has {most} for axis {axis}, and the result {name} has the length {n} "
                    "there already: give None, for any length"
                )

    def inside_shards(self, shape: Shape) -> Shape:
        """Sides of the chunks in shards: a shard's where they are free.

        Raises
        ------
        ArgumentError
            Shards are no multiples of them, or nothing is said of them.
        """
        shards = self.shards or ()
        if self.chunks is None:
            raise ArgumentError(f"shards={shards} need chunks= too: it says the sides of the chunks within a shard")
        sides = [
            shard if entry == "auto" else max(n, 1) if entry == "whole" else entry
            for entry, shard, n in zip(chunking.lengths(self.chunks, len(shape)), shards, shape, strict=True)
        ]
        if any(shard % side for shard, side in zip(shards, sides, strict=True)):
            raise ArgumentError(f"shards={shards} must be multiples of the chunks' sides {tuple(sides)}")
        return tuple(sides)

    def chunks_of(self, shape: Shape, wish: Shape | None) -> Shape | None:
        """Sides of the chunks of a result; by default those that are wished for."""
        own = chunking.wish(chunking.lengths(self.chunks, len(shape)), shape)
        return wish if own is None else own


def _sides(given: Any, option: str) -> Iterator[int]:
    for side in given if isinstance(given, tuple | list) else (given,):
        if isinstance(side, bool) or not isinstance(side, int | np.integer):
            raise ArgumentTypeError(f"{option}={given!r} must be a tuple of ints")
        if side < 1:
            raise ArgumentError(f"{option}={given!r}: each side is at least 1")
        yield int(side)


def _limits(given: Any) -> Iterator[int | None]:
    for most in given if isinstance(given, tuple | list) else (given,):
        if most is not None and (isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 0):
            raise ArgumentTypeError(
                f"maxshape={given!r} must be a tuple with the length to which each axis may grow, or None for any"
            )
        yield None if most is None else int(most)


def labels_of(source: Any) -> StoredLabels:
    """The labels of a source; none where its format has none."""
    read: Callable[[], StoredLabels] | None = getattr(source, "labels", None)
    return StoredLabels() if read is None else read()


def labels_for(target: Any, source: Any, without: Container[str] = ()) -> StoredLabels:
    """The labels of a source that a new array can have; none where either format has no labels.

    Attributes stay away that are named in `without`.
    """
    labels = labels_of(source)
    if labels == StoredLabels() or not getattr(target, "takes_labels", False):
        return StoredLabels()
    own = {} if target.said.attributes is not None else labels.attributes or {}
    kept = {name: value for name, value in own.items() if name not in without}
    found: StoredLabels = target.fitting(labels._replace(attributes=kept), source.spec.shape)
    _warn_of_lost(target.name, kept, found.attributes or {})
    return found


def _warn_of_lost(name: str, attributes: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Warn of attributes that an array's format does not have. Codes of missing numbers may have other names there."""
    lost = {
        key: value
        for key, value in attributes.items()
        if key not in kept and not (key in ("_FillValue", "missing_value") and isinstance(value, float))
    }
    if lost:
        warnings.warn(
            f"{name} gets no attributes of values that its format does not have: "
            f"{', '.join(f'{key}={lost[key]!r}' for key in sorted(lost))}; "
            "chunkflow.NewArray(path, attributes={...}) says which it gets, such as texts in their place",
            LossWarning,
            stacklevel=users_line(),
        )


def label(targets: Iterable[Any], source: Any) -> None:
    """Let new arrays have the labels of an array that is copied there, where nothing is said of them."""
    for target in targets:
        if (labels := labels_for(target, source)) != StoredLabels():
            target.said = target.said.with_labels(labels)

"""The datasets of an HDF5 file, and the facts of a dataset: what is known without reading its elements."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5o, h5t, h5z

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError, SourceNotFoundError
from chunkflow.stores import strides as layout
from chunkflow.stores.advice import advice, pattern
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.footprint import footprint as footprint_of
from chunkflow.stores.hdf5.filters import FilterPipeline, Hdf5Filter
from chunkflow.stores.hdf5.host import opened, why
from chunkflow.stores.hdf5.scales import is_bare
from chunkflow.stores.paths import is_hdf5

_LISTED = 20

PARTIAL = ".partial"
"""End of the names of datasets that are being written."""


def open_file(path: str, name: str | None = None) -> Any:
    """Open an HDF5 file for reading, of which a dataset of this `name` is wanted.

    Raises
    ------
    SourceNotFoundError
        There is no such file.
    ArgumentError
        It is in another format.
    ReadError
        HDF5 cannot open it: it is truncated, say, or being written by another process.
    """
    if not os.path.isfile(path):
        raise SourceNotFoundError(f"there is no file {path}{pattern(path if name is None else f'{path}:{name}')}")
    try:
        return opened(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and not h5py.is_hdf5(path):
                known = advice(path) or "no HDF5 file (netCDF files are, if they are of version 4)"
                raise ArgumentError(f"{path} is {known}") from None
        raise ReadError(f"cannot open {path}: {error}{why(error)}", path=path, cause=error) from error


MOST_LINKS = 64
"""Most links that a dataset's name may lead over."""


def broken_link(file: Any, path: str, name: str) -> str:
    """What is wrong with the first link of a dataset's name that leads nowhere; empty if none does.

    No other file is opened: `ArgumentError` if a link leads into one.
    """
    left = iter(range(MOST_LINKS))

    def follow(group: Any, name: str) -> Any:
        """What a name leads to; None if that is nothing."""
        for part in filter(lambda part: part not in ("", "."), name.split("/")):
            link = _link(group, part)
            if isinstance(link, h5py.ExternalLink):
                raise ArgumentError(_outside(path, f"{group.name.rstrip('/')}/{part}", link))
            if isinstance(link, h5py.SoftLink):
                ended = next(left, None) is None
                group = None if ended else follow(file if link.path.startswith("/") else group, link.path)
            else:
                group = None if link is None else group.get(part)
            if group is None:
                return None
        return group

    node, way = file, ""
    for part in filter(lambda part: part not in ("", "."), name.split("/")):
        link = _link(node, part)
        if link is None:
            return ""
        way = f"{way}/{part}"
        if isinstance(link, h5py.ExternalLink):
            there = link.filename
            # HDF5 looks in the directory of the process too, and where HDF5_EXT_PREFIX says.
            found = [each for each in (os.path.join(os.path.dirname(path), there), there) if os.path.exists(each)]
            if found and is_hdf5(found[0]):
                raise ArgumentError(_outside(path, way, link))
            problem = "has no such name, or is no HDF5 file" if found else "does not exist"
            return f"{way!r} is a link to {link.path!r} in the file {there!r}, which {problem}"
        node = follow(node, part)
        if node is None and isinstance(link, h5py.SoftLink):
            return f"{way!r} is a link to {link.path!r}, which does not exist or leads back to it"
    return ""


def _link(group: Any, name: str) -> Any:
    """A link of a group; None if there is none."""
    try:
        return group.get(name, getlink=True) if isinstance(group, h5py.Group) else None
    except TypeError:
        raise ArgumentError(f"{name!r} in {group.file.filename} is a link of a kind that h5py does not know") from None


def _outside(path: str, way: str, link: Any) -> str:
    return (
        f"{way!r} in {path} is a link to {link.path!r} in the file {link.filename!r}, and other files are not opened "
        "because a file says so: pass the path of that file, or open this one with h5py and pass the h5py.Dataset"
    )


def members(group: Any) -> str:
    """Names of the datasets in a group and its groups, as text for people."""
    names = datasets(group, _LISTED + 1)
    return ", ".join([repr(name) for name in names[:_LISTED]] + ["..."] * (len(names) > _LISTED)) or "none"


def datasets(group: Any, most: int) -> list[str]:
    """Names of the complete datasets in a group and its groups, at most `most`; bare dimensions are none."""
    names: list[str] = []

    def note(name: str, node: Any) -> bool | None:
        is_complete = not (name.startswith(".") and name.endswith(PARTIAL))
        if isinstance(node, h5py.Dataset) and is_complete and not is_bare(node):
            names.append(name)
        return True if len(names) >= most else None

    group.visititems(note)
    return names


def path_of(dataset: Any) -> str:
    """The path of a dataset, by which another process opens it; `ArgumentTypeError` if its file is none on the disk."""
    path = on_disk(dataset.file) if dataset else None
    if path is None:
        raise ArgumentTypeError(
            f"an expression of {dataset!r} cannot be pickled: its file is no plain file on the disk, or is closed. "
            "Store its elements, and open the file"
        )
    return f"{path}:{dataset.name}"


def flush(dataset: Any) -> None:
    """Make HDF5 write what it buffers of a file.

    A file that is open for writing anywhere in the process is open for writing through each of its handles.
    """
    file = dataset.file
    if file.mode != "r":
        file.flush()


def lacking(dataset: Any) -> str:
    """The filters of a dataset that this HDF5 does not have, as the end of a sentence; empty if it has all."""
    made = dataset.id.get_create_plist()
    filters = [Hdf5Filter(made.get_filter(i)[0]) for i in range(made.get_nfilters())]
    names = [str(each) for each in filters if not h5z.filter_avail(each.code)]
    if not names:
        return ""
    return f": {' and '.join(names)} is not built into HDF5 here, but `import hdf5plugin` adds most filters"


@dataclass(frozen=True)
class Facts:
    """What is known of a dataset without reading its elements.

    `path` is its file, or None if the elements' bytes cannot be found there. `pipeline` are the filters of its chunks.
    `chain` are these, or None if HDF5 has to decode or convert the elements. `misplaced` says that HDF5's list of
    chunks may be wrong, `plain` that its type is NumPy's. `dtype` has the file's byte order. `elsewhere` says that the
    elements lie in other files. `stored` is the number of bytes that the elements take in the file.
    """

    name: str
    shape: Shape
    dtype: np.dtype
    chunks: Shape | None
    offset: int | None
    path: str | None
    pipeline: FilterPipeline | None
    misplaced: bool
    chain: FilterPipeline | None
    fill: np.ndarray
    elsewhere: bool
    plain: bool
    footprint: Footprint
    stored: int

    @property
    def spec(self) -> ArraySpec:
        """Spec for the planner: a chunk is read whole."""
        chunks = self.chunks and tuple(max(1, side) for side in self.chunks)
        return ArraySpec(self.name, self.shape, numeric_dtype(self.dtype, self.name), chunks=chunks)


def facts_of(dataset: Any) -> Facts:
    """Look at a dataset. `ArgumentError` if it holds no array, `ArgumentTypeError` if its dtype cannot be processed."""
    file = dataset.file
    name = f"{file.filename}:{dataset.name}"
    if dataset.shape is None:
        raise ArgumentError(f"{name} holds no array: its dataspace is null")
    try:
        given = dataset.dtype
    except TypeError as error:
        raise ArgumentTypeError(f"{name} has a type that NumPy does not have: {error}") from None
    numeric_dtype(given, name)
    dtype = np.dtype(given.str)  # enumerations are the integers that stand for their names
    made = dataset.id.get_create_plist()
    kind = made.get_layout()
    plain = _plain(dataset.id.get_type(), given)
    pipeline = chain = None
    if kind == h5d.CHUNKED:
        found = [made.get_filter(i) for i in range(made.get_nfilters())]
        steps = tuple(Hdf5Filter(code, tuple(values)) for code, _, values, _ in found)
        pipeline = FilterPipeline(steps, math.prod(dataset.chunks) * dataset.id.get_type().get_size())
        chain = pipeline if plain and not _is_misplaced(dataset) else None
    path = on_disk(file)
    offset = dataset.id.get_offset() if kind == h5d.CONTIGUOUS and plain and path else None
    shape = tuple(int(n) for n in dataset.shape)
    ident = h5o.get_info(dataset.id)
    if offset is not None and path is not None:
        strides = layout.packed_strides(shape, dtype.itemsize)
        footprint = footprint_of(("file", *inode(path)), offset, shape, strides, dtype)
    else:
        space = ("hdf5", inode(path) if path else ident.fileno, ident.addr)
        footprint = Footprint(space, 0, 1, None)
    return Facts(
        name=name,
        shape=shape,
        dtype=dtype,
        chunks=dataset.chunks,
        offset=offset,
        path=path,
        pipeline=pipeline,
        misplaced=_is_misplaced(dataset),
        chain=chain,
        fill=_fill(dataset, made, dtype),
        plain=plain,
        elsewhere=kind == h5d.VIRTUAL or made.get_external_count() > 0,
        footprint=footprint,
        stored=dataset.id.get_storage_size(),
    )


def _is_misplaced(dataset: Any) -> bool:
    """Whether HDF5 may give wrong places for its chunks: it grows along a single axis, which is not the first.

    With the index of newer file formats for such datasets, HDF5's iterator gives offsets with axes exchanged.
    """
    grows = [axis for axis, most in enumerate(dataset.maxshape) if most is None]
    return len(grows) == 1 and grows[0] > 0


def _fill(dataset: Any, made: Any, dtype: np.dtype) -> np.ndarray:
    """Value of chunks that were never written; zero if undefined."""
    if made.fill_value_defined() == h5d.FILL_VALUE_UNDEFINED:
        return np.zeros((), dtype)
    return np.asarray(dataset.fillvalue).astype(dtype)


def _plain(stored: Any, dtype: np.dtype) -> bool:
    """Whether elements of an HDF5 type are the same bits as NumPy's."""
    try:
        return bool(stored.equal(h5t.py_create(dtype, logical=True)))
    except (TypeError, ValueError):
        return False


def inode(file: str | int) -> tuple[int, int]:
    """Device and inode of a file, given its path or descriptor."""
    status = os.stat(file)
    return status.st_dev, status.st_ino


def on_disk(file: Any) -> str | None:
    """Path of the very file that HDF5 has open; None if there is none, or it is no plain file."""
    if file.driver != "sec2" or file.userblock_size:  # versions of HDF5 differ on where offsets behind one begin
        return None
    path: str = os.path.abspath(file.filename)
    with contextlib.suppress(OSError, ValueError, RuntimeError, NotImplementedError):
        if inode(file.id.get_vfd_handle()) == inode(path):
            return path
    return None

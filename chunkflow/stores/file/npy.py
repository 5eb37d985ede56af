"""NumPy's own file format: ``.npy`` files of versions 1 to 3, read and written at positions."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.errors import ArgumentError, ChunkflowError, ReadError, WriteError
from chunkflow.stores import paths
from chunkflow.stores import strides as layout
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.file.strided_sink import FileSink, reserve
from chunkflow.stores.footprint import Footprint


def open_npy(path: str) -> FileSource:
    """Source of a ``.npy`` file.

    Raises
    ------
    ArgumentError
        The file is in another format.
    ArgumentTypeError
        Its dtype cannot be processed.
    ReadError
        The file cannot be read, or is shorter than its header says.
    """
    path = os.path.abspath(path)
    offset, shape, fortran, dtype = _header(path)
    numeric_dtype(dtype, path)
    strides = layout.packed_strides(shape, dtype.itemsize, fortran=fortran)
    return FileSource(Strided(path, offset, shape, strides, dtype))


def _header(path: str) -> tuple[int, Shape, bool, np.dtype]:
    """Offset of the data, shape, whether in Fortran order, and dtype."""
    try:
        with open(path, "rb") as file:
            if file.read(len(npy_format.MAGIC_PREFIX)) != npy_format.MAGIC_PREFIX:
                raise ArgumentError(f"{path} is no .npy file: it does not begin as one")
            file.seek(0)
            version = npy_format.read_magic(file)
            # Version 3 differs from 2 in the encoding of field names only, and no dtype with fields
            # can be processed anyway.
            if version not in {(1, 0), (2, 0), (3, 0)}:
                raise ArgumentError(f"{path} is a .npy file of the unknown version {version}")
            if version == (1, 0):
                shape, fortran, dtype = npy_format.read_array_header_1_0(file)
            else:
                shape, fortran, dtype = npy_format.read_array_header_2_0(file)
            return file.tell(), shape, fortran, dtype
    except ArgumentError:
        raise
    except (OSError, ValueError) as error:
        raise ReadError(f"cannot read the header of {path}: {error}", path=path, cause=error) from error


class NpyTarget:
    """A ``.npy`` file that the run creates: it appears under its name when it is complete.

    With `overwrite`, an existing ``.npy`` file is kept until then. Files in any other format are
    never replaced.
    """

    footprint: Footprint | None = None

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.name = paths.resolve(os.path.abspath(path))
        self._overwrite = overwrite
        paths.require_directory(os.path.dirname(self.name), self.name)
        paths.refuse_existing(self.name, overwrite)
        if os.path.lexists(self.name) and not _replaceable(self.name):
            raise ArgumentError(f"{self.name} is not a .npy file, and is not overwritten for that reason")

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        """See `Target.describe`."""
        return ArraySpec(self.name, tuple(shape), numeric_dtype(dtype, "the result"), fresh=True)

    def open(self, spec: ArraySpec) -> NpySink:
        """See `Target.open`.

        Raises
        ------
        WriteError
            The file cannot be created, or the disk has no room for it.
        """
        return NpySink(self.name, spec, overwrite=self._overwrite)


def _replaceable(path: str) -> bool:
    """Whether nothing but an array (or an empty file) is lost with this file."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(npy_format.MAGIC_PREFIX)) in {b"", npy_format.MAGIC_PREFIX}


class NpySink:
    """A ``.npy`` file that is being written under a temporary name; `shared` is its path, for other processes."""

    def __init__(self, path: str, spec: ArraySpec, *, overwrite: bool) -> None:
        self.spec, self._path, self._overwrite = spec, path, overwrite
        self.shared = self._temporary = paths.hidden_sibling(path, "partial")
        self._file: FileSink | None = None
        try:
            offset, fresh = self._create()
            strides = layout.packed_strides(spec.shape, spec.dtype.itemsize)
            if self._fortran:
                strides = layout.packed_strides(spec.shape[::-1], spec.dtype.itemsize)[::-1]
            place = Strided(self._temporary, offset, spec.shape, strides, spec.dtype, path)
            self._file = FileSink(place, fresh=fresh)
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError):
                raise WriteError(f"cannot create {path}: {error}", path=path, cause=error) from error
            raise

    @property
    def _fortran(self) -> bool:
        return len(self.spec.shape) > 1 and self.spec.order == tuple(reversed(range(len(self.spec.shape))))

    def _create(self) -> tuple[int, bool]:
        """Write the header; where the data begin, and whether there is room reserved for them."""
        with open(self._temporary, "xb") as file:
            described = {
                "descr": npy_format.dtype_to_descr(self.spec.dtype),
                "fortran_order": self._fortran,
                "shape": self.spec.shape,
            }
            npy_format.write_array_header_1_0(file, described)
            offset = file.tell()
        return offset, reserve(self._temporary, offset + self.spec.nbytes)

    def write(self, region: Region, block: np.ndarray) -> None:
        """See `Sink.write`."""
        assert self._file is not None
        self._file.write(region, block)

    def run(self, region: Region) -> ByteRun | None:
        """See `Runs.run`."""
        return self._file.run(region) if self._file is not None else None

    def commit(self) -> Any:
        """See `Sink.commit`. The array is returned as a writable ``np.memmap`` where one can be made.

        Raises
        ------
        OutputExistsError
            Something appeared under the name during the run, and `overwrite` is false.
        """
        assert self._file is not None
        try:
            paths.refuse_existing(self._path, self._overwrite)
            self._file.close()  # a network file system may report a failed write only now
            os.replace(self._temporary, self._path)
        except BaseException as error:
            self.abort()
            if isinstance(error, ChunkflowError) or not isinstance(error, OSError):
                raise
            raise WriteError(f"cannot finish {self._path}: {error}", path=self._path, cause=error) from error
        # Neither nothing nor a scalar can be mapped.
        mappable = self.spec.shape and self.spec.size
        return np.load(self._path, mmap_mode="r+" if mappable else None, allow_pickle=False)

    def abort(self) -> None:
        """See `Sink.abort`."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)

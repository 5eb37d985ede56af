"""NumPy's own file format: ``.npy`` files of versions 1 to 3, read and written at positions."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ReadError
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.failures import translated
from chunkflow.stores.file.new_file import NewFileSink, NewFileTarget, is_fortran
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.identity import Guard
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.times import counts_dtype
from chunkflow.system.files import open_regular


def open_npy(path: str, *, times: np.dtype | None = None) -> FileSource:
    """Source of a ``.npy`` file. Elements of the dtype `times` are read as integers.

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
    guard = Guard.of_files(path, path)
    array = described(path)
    if times is not None:
        array = replace(array, dtype=counts_dtype(array.dtype, times, path))
    numeric_dtype(array.dtype, path)
    return FileSource(array, guard)


def described(path: str) -> Strided:
    """Where the array lies in a file, by its header."""
    unreadable = translated(ReadError, f"cannot read the header of {path}", path)  # NumPy raises what its parser does
    with unreadable, open(open_regular(path), "rb") as file:
        if file.read(len(npy_format.MAGIC_PREFIX)) != npy_format.MAGIC_PREFIX:
            raise ArgumentError(f"{path} is no .npy file: it does not begin as one")
        file.seek(0)
        version = npy_format.read_magic(file)
        # Version 3 differs from 2 in the encoding of field names only, and no dtype with fields can be processed.
        if version not in {(1, 0), (2, 0), (3, 0)}:
            raise ArgumentError(f"{path} is a .npy file of the unknown version {version}")
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(file)
        else:
            shape, fortran, dtype = npy_format.read_array_header_2_0(file)
        return Strided.packed(path, file.tell(), shape, dtype, fortran=fortran)


class NpyTarget(NewFileTarget):
    """A ``.npy`` file that the run creates. The result is a writable ``np.memmap`` where one can be made."""

    kind, grows = "a .npy file", True

    def open(self, spec: ArraySpec, claim: Claim | None = None) -> NpySink:
        return NpySink(self, spec, claim)

    def replaces(self, path: str) -> bool:
        with open(path, "rb") as file:
            return file.read(len(npy_format.MAGIC_PREFIX)) in {b"", npy_format.MAGIC_PREFIX}

    def header(self, spec: ArraySpec) -> bytes:
        file, dtype = io.BytesIO(), npy_format.dtype_to_descr(spec.dtype)
        described = {"descr": dtype, "fortran_order": is_fortran(spec), "shape": spec.shape}
        npy_format.write_array_header_1_0(file, described)
        return file.getvalue()

    def opened(self, spec: ArraySpec) -> Any:
        """See `NewFileTarget.opened`."""
        return _mapped(self.name, spec)


class NpySink(NewFileSink):
    """A ``.npy`` file that is being written."""

    def so_far(self) -> Any:
        """See `Growing.so_far`."""
        with translated(ReadError, f"cannot read what has been written of {self.spec.name}", self.hidden):
            return _mapped(self.hidden, self.spec)

    @property
    def shared(self) -> str:
        """Path that other processes can open while it is being written: the header is there from the start."""
        return self.hidden


def _mapped(path: str, spec: ArraySpec) -> Any:
    """The array in a file. Neither nothing nor a scalar can be mapped."""
    return np.load(path, mmap_mode="r+" if spec.shape and spec.size else None, allow_pickle=False)

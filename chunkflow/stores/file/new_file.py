"""New files with one array: a header, if the format has one, then the elements. A file appears when it is complete.

A format derives its target from `NewFileTarget`, and opens its source by `FileSource(Strided.packed(...))`.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec, ByteRun, Storage
from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores import paths
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.failures import translated
from chunkflow.stores.file.strided import Strided
from chunkflow.stores.file.strided_sink import FileSink, reserve
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.kvstore.folder import append, put


class NewFileTarget:
    """A file that the run creates. With `overwrite`, an existing file of the format is kept until the run succeeds.

    Subclasses say what a file of their format is. Files in any other format are never replaced.
    """

    kind: ClassVar[str]
    """What a file is for people, as ``"a .npy file"``."""

    footprint: Footprint | None = None

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.name = paths.resolve(os.path.abspath(path))
        self.overwrite = overwrite
        paths.require_directory(os.path.dirname(self.name), self.name)
        paths.refuse_existing(self.name, overwrite)
        if os.path.lexists(self.name) and not (os.path.isfile(self.name) and self.replaces(self.name)):
            raise ArgumentError(f"{self.name} is not {self.kind}, and is not overwritten for that reason")

    def replaces(self, path: str) -> bool:
        """Whether nothing but an array (or an empty file) is lost with a file that exists."""
        raise NotImplementedError

    def header(self, spec: ArraySpec) -> bytes:
        """Bytes before the elements."""
        return b""

    def beside(self, spec: ArraySpec) -> dict[str, bytes]:
        """Contents of small files beside the array's, by what their names have at the end besides its own."""
        return {}

    def opened(self, spec: ArraySpec) -> Any:
        """The finished array, for the user."""
        raise NotImplementedError

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return ArraySpec(self.name, tuple(shape), numeric_dtype(dtype, "the result"), storage=Storage(fresh=True))

    def open(self, spec: ArraySpec) -> NewFileSink:
        return NewFileSink(self, spec)


def is_fortran(spec: ArraySpec) -> bool:
    """Whether a new file has its elements in Fortran order, as the array's sources do."""
    return len(spec.shape) > 1 and spec.order == tuple(reversed(range(len(spec.shape))))


class NewFileSink:
    """A file that is being written under a temporary name."""

    def __init__(self, target: NewFileTarget, spec: ArraySpec) -> None:
        self.spec, self._target = spec, target
        self.temporary = paths.hidden_sibling(target.name, "partial")
        self._file: FileSink | None = None
        with translated(WriteError, f"cannot create {target.name}", target.name, self.abort, OSError):
            header = target.header(spec)
            with open(self.temporary, "xb") as file:
                file.write(header)
            fresh = reserve(self.temporary, len(header) + spec.nbytes)
            place = Strided.packed(
                self.temporary, len(header), spec.shape, spec.dtype, fortran=is_fortran(spec), name=target.name
            )
            self._file = FileSink(place, fresh=fresh)

    def write(self, region: Region, block: np.ndarray) -> None:
        assert self._file is not None
        self._file.write(region, block)

    def run(self, region: Region) -> ByteRun | None:
        return self._file.run(region) if self._file is not None else None

    def commit(self) -> Any:
        assert self._file is not None
        target = self._target
        with translated(WriteError, f"cannot finish {target.name}", target.name, self.abort, OSError):
            paths.refuse_existing(target.name, target.overwrite)
            self._file.close()  # a network file system may report a failed write only now
            for ending, content in target.beside(self.spec).items():
                put(f"{target.name}{ending}", lambda file, content=content: append(file, content) >= 0)  # type: ignore[misc]
            os.replace(self.temporary, target.name)
        return target.opened(self.spec)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)

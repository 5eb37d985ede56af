"""New files with one array: a header, if the format has one, then the elements. A file appears when it is complete.

A format derives its target from `NewFileTarget`, and opens its source by `FileSource(Strided.packed(...))`.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, ClassVar, Literal

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec, ByteRun, Storage
from chunkflow.errors import ArgumentError, OutputExistsError, WriteError
from chunkflow.stores import checksums, paths
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.failures import translated
from chunkflow.stores.file.strided import Strided
from chunkflow.stores.file.strided_sink import FileSink, reserve
from chunkflow.stores.footprint import Footprint


class NewFileTarget:
    """A file that the run creates. With `overwrite`, an existing file of the format is kept until the run succeeds.

    Subclasses say what a file of their format is. Files in any other format are never replaced.
    """

    kind: ClassVar[str]
    """What a file is for people, as ``"a .npy file"``."""

    footprint: Footprint | None = None
    takes_order = True

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.name = paths.resolve(os.path.abspath(path))
        self.overwrite = overwrite
        paths.require_directory(os.path.dirname(self.name), self.name)
        checksums.refuse_if_wanted(self.name, f"{self.kind} has no place for them")
        paths.refuse_existing(self.name, overwrite)
        if os.path.lexists(self.name) and not (os.path.isfile(self.name) and self.replaces(self.name)):
            raise ArgumentError(f"{self.name} is not {self.kind}, and is not overwritten for that reason")
        self.files_beside(ArraySpec(self.name, (0,), np.dtype("u1")))

    def replaces(self, path: str) -> bool:
        """Whether nothing but an array (or an empty file) is lost with a file that exists."""
        raise NotImplementedError

    def header(self, spec: ArraySpec) -> bytes:
        """Bytes before the elements."""
        return b""

    def beside(self, spec: ArraySpec) -> dict[str, bytes]:
        """Contents of small files in the same directory, by their names.

        The names follow from the array's own: whether they are free is asked before anything of the array is known.
        """
        return {}

    def files_beside(self, spec: ArraySpec) -> dict[str, bytes]:
        """Contents of the files beside the array's, by their paths.

        Raises
        ------
        OutputExistsError
            Something that belongs to no array which is replaced has one of these paths.
        """
        directory = os.path.dirname(self.name)
        files = {os.path.join(directory, name): content for name, content in self.beside(spec).items()}
        replaced = self.overwrite and os.path.lexists(self.name)
        for path in files:
            if os.path.lexists(path) and not (replaced and os.path.isfile(path)):
                raise OutputExistsError(
                    f"{path} exists, and would be a part of {self.name}: remove it, or give the output another name"
                )
        return files

    def opened(self, spec: ArraySpec) -> Any:
        """The finished array, for the user: a writable ``np.memmap``, or an empty array, which cannot be mapped."""
        order: Literal["C", "F"] = "F" if is_fortran(spec) else "C"
        if not spec.size:
            return np.empty(spec.shape, spec.dtype, order)
        return np.memmap(self.name, spec.dtype, "r+", len(self.header(spec)), spec.shape, order)

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return ArraySpec(self.name, tuple(shape), numeric_dtype(dtype, "the result"), storage=Storage(fresh=True))

    def open(self, spec: ArraySpec) -> NewFileSink:
        return NewFileSink(self, spec)

    def practice(self, spec: ArraySpec) -> FileSink | None:
        if not hasattr(os, "memfd_create") or not spec.size:
            return None
        fd = os.memfd_create("chunkflow")
        try:
            path = f"/proc/self/fd/{fd}"
            os.ftruncate(fd, spec.nbytes)
            return FileSink(Strided.packed(path, 0, spec.shape, spec.dtype, fortran=is_fortran(spec)), fresh=True)
        except OSError:  # the system gives no memory for it
            return None
        finally:
            os.close(fd)


def is_fortran(spec: ArraySpec) -> bool:
    """Whether a new file has its elements in Fortran order, as the array's sources do."""
    return len(spec.shape) > 1 and spec.order == tuple(reversed(range(len(spec.shape))))


class NewFileSink:
    """A file that is being written under a temporary name."""

    def __init__(self, target: NewFileTarget, spec: ArraySpec) -> None:
        self.spec, self._target = spec, target
        self.temporary = paths.hidden_sibling(target.name, "partial")
        self._hidden: list[str] = [self.temporary]  # all that is to be removed if the run fails
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
            beside = target.files_beside(self.spec)
            self._file.close()  # a network file system may report a failed write only now
            if beside:
                self._replace_all(beside)
            else:
                os.replace(self.temporary, target.name)
        return target.opened(self.spec)

    def _replace_all(self, beside: dict[str, bytes]) -> None:
        """Rename the array's file and those beside it, whose contents are given.

        Several files are not replaced as one. The old ones beside go first and the new ones come last: who reads in
        between, or finds what a killed process left, has elements without a header, and never with a wrong one.
        """
        ready = {path: self._hide(path, "partial") for path in beside}
        for path, content in beside.items():
            with open(ready[path], "xb") as file:
                file.write(content)
        with contextlib.ExitStack() as undo:
            for path in filter(os.path.lexists, beside):
                old = self._hide(path, "old")
                os.replace(path, old)
                undo.callback(os.replace, old, path)
            os.replace(self.temporary, self._target.name)
            undo.pop_all()
        for path, temporary in ready.items():
            os.replace(temporary, path)
        self._remove()

    def _hide(self, path: str, suffix: str) -> str:
        """Name for a file that is removed at the end."""
        self._hidden.append(paths.hidden_sibling(path, suffix))
        return self._hidden[-1]

    def _remove(self) -> None:
        """Remove what has a hidden name, as far as it is there."""
        for path in self._hidden:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
        self._remove()

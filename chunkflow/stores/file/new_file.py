"""New files with one array: a header, if the format has one, then the elements. A file appears when it is complete.

A format derives its target from `NewFileTarget`, and opens its source by `FileSource(Strided.packed(...))`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
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
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish


class NewFileTarget:
    """A file that the run creates. With `overwrite`, an existing file of the format is kept until the run succeeds.

    Subclasses say what a file of their format is. Files in any other format are never replaced.
    """

    kind: ClassVar[str]
    """What a file is for people, as ``"a .npy file"``."""

    footprint: Footprint | None = None

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False, said: NewArray | None = None) -> None:
        self.name = paths.resolve(os.path.abspath(path))
        self.overwrite, self.said = overwrite, said or NewArray(path)
        self.takes_order = self.said.order is None
        paths.require_directory(os.path.dirname(self.name), self.name)
        checksums.refuse_if_wanted(self.name, f"{self.kind} has no place for them")
        paths.refuse_existing(self.name, overwrite)
        with translated(WriteError, f"cannot look at {self.name}, which exists", self.name, foreign=OSError):
            if os.path.lexists(self.name) and not (os.path.isfile(self.name) and self.replaces(self.name)):
                raise ArgumentError(
                    f"{self.name} is not {self.kind}, and is not overwritten: remove it, or choose another output"
                )
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
        spec = ArraySpec(self.name, tuple(shape), numeric_dtype(dtype, "the result"), storage=Storage(fresh=True))
        return replace(spec, order=spec.order[::-1]) if self.said.order == "F" else spec

    @property
    def claimed(self) -> tuple[str, str]:
        """What its claim is on, and the outermost thing that it creates."""
        return self.name, self.name

    def claim(self) -> Claim:
        """The claim of a run that a later one may go on with, or of one that is left."""
        with translated(WriteError, f"cannot create {self.name}", self.name, foreign=OSError):
            return Claim(*self.claimed, overwrite=self.overwrite, resumes=True)

    def open(self, spec: ArraySpec, claim: Claim | None = None) -> NewFileSink:
        """The sink; with a `claim` that is left it goes on with what lies there."""
        return NewFileSink(self, spec, claim)

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
    """A file that is being written under a hidden name."""

    def __init__(self, target: NewFileTarget, spec: ArraySpec, claim: Claim | None = None) -> None:
        self.spec, self._target = spec, target
        self._claims: list[Claim] = [] if claim is None else [claim]
        self._file: FileSink | None = None
        with translated(WriteError, f"cannot create {target.name}", target.name, self.abort, OSError):
            temporary, header = self._claim(target.name) if claim is None else claim.partial, target.header(spec)
            fresh = False
            if claim is None or not claim.is_left:
                make(temporary, header, like=target.name)
                fresh = reserve(temporary, len(header) + spec.nbytes)
            place = Strided.packed(
                temporary, len(header), spec.shape, spec.dtype, fortran=is_fortran(spec), name=target.name
            )
            self._file = FileSink(place, fresh=fresh)

    def _claim(self, path: str) -> str:
        """Claim a file of the output. Gives its hidden name."""
        self._claims.append(Claim(path, overwrite=self._target.overwrite))
        return self._claims[-1].partial

    @property
    def hidden(self) -> str:
        """Path of the file while it is being written."""
        return self._claims[0].partial

    def write(self, region: Region, block: np.ndarray) -> None:
        assert self._file is not None
        self._file.write(region, block)

    def run(self, region: Region) -> ByteRun | None:
        return self._file.run(region) if self._file is not None else None

    def ready(self) -> list[Claim]:
        assert self._file is not None
        target = self._target
        with translated(WriteError, f"cannot finish {target.name}", target.name, foreign=OSError):
            paths.refuse_existing(target.name, target.overwrite)
            for path, content in target.files_beside(self.spec).items():
                make(self._claim(path), content, like=path)
            self._file.close()  # a network file system may report a failed write only now
        return self._claims

    def published(self) -> Any:
        return self._target.opened(self.spec)

    def unpublish(self) -> None:
        """See `Publishing.unpublish`."""

    def commit(self) -> Any:
        name = self._target.name
        with translated(WriteError, f"cannot finish {name}", name, self.abort, OSError):
            return publish(self.ready(), self.published)

    def leave(self) -> None:
        """Close the file, and leave it to a later run."""
        self._close()
        for claim in self._claims[1:]:
            claim.end()
        self._claims[0].leave()

    def abort(self) -> None:
        self._close()
        for claim in reversed(self._claims):
            claim.end()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()


def make(path: str, content: bytes, like: str) -> None:
    """Make a file. It gets the permissions of the file that it will replace, if there is one."""
    mode = stat.S_IMODE(os.stat(like).st_mode) if os.path.lexists(like) else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666 if mode is None else 0o600), "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)

"""Elements that are added at the end of a ``.npy`` file: they are written behind the old ones, and its header last."""

from __future__ import annotations

import ast
import contextlib
import math
import os
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.errors import ArgumentError, ReadError, WriteError
from chunkflow.stores import paths
from chunkflow.stores.checks import check_cast, numeric_dtype
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.failures import translated
from chunkflow.stores.file.npy import described
from chunkflow.stores.file.strided import Strided
from chunkflow.stores.file.strided_sink import FileSink, reserve
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.settle import cut_off


class NpyAppendTarget:
    """The end of a ``.npy`` file along the axis that varies slowest in it.

    Readers see the old array until the header is replaced, by one write. What a run that fails or is killed has written
    lies behind the end, and is cut off.
    """

    footprint: Footprint | None = None  # nobody has an array there, and two runs that add are told by their claims

    def __init__(self, said: ExistingArray) -> None:
        path = said.path
        assert path is not None
        self.name = self.writes = paths.resolve(os.path.abspath(path))
        self.said, self.place = said, described(self.name)
        with (
            translated(ReadError, f"cannot open {self.name}", self.name, foreign=OSError),
            open(self.name, "rb") as file,
        ):
            self.header = file.read(self.place.offset)
        self._start = self.header.index(b"{")
        try:
            self._fields = ast.literal_eval(self.header[self._start :].decode())
        except SyntaxError:  # as (3L,)
            raise ArgumentError(
                f"{self.name} has a header that Python 2 wrote, and cannot grow: copy it, by chunkflow.copy, and "
                "append to the copy"
            ) from None
        self.fortran = bool(self._fields["fortran_order"]) and len(self.shape) > 1
        axis, slowest = said.axis(len(self.shape), self.name), len(self.shape) - 1 if self.fortran else 0
        if axis != slowest:
            order = "Fortran" if self.fortran else "C"
            raise ArgumentError(
                f"append={said.append}: {self.name} has its elements in {order} order, in which only axis {slowest} "
                "ends where the file does. Write the longer array to another name, or use zarr, which grows along "
                "every axis"
            )

    @property
    def shape(self) -> Shape:
        """The shape of the array when it was opened."""
        return self.place.shape

    @property
    def end(self) -> int:
        """Where the array ends in the file."""
        return self.place.offset + math.prod(self.shape) * self.place.dtype.itemsize

    def longer_header(self, shape: Shape) -> bytes:
        """The header of the longer array, which takes as many bytes as the old one."""
        new, _ = self.said.grown(self.shape, shape, self.name)
        fields = self._fields | {"shape": new}
        text = "{" + "".join(f"{key!r}: {value!r}, " for key, value in sorted(fields.items())) + "}"
        room = len(self.header) - self._start - 1
        if len(text) > room:
            raise ArgumentError(
                f"the header of {self.name} has no room for the shape {new}: copy it, by chunkflow.copy, and append "
                "to the copy"
            )
        return self.header[: self._start] + text.ljust(room).encode() + b"\n"

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        self.longer_header(tuple(shape))
        spec = ArraySpec(self.name, tuple(shape), numeric_dtype(self.place.dtype, self.name))
        check_cast(dtype, spec)
        return replace(spec, order=spec.order[::-1]) if self.fortran else spec

    def open(self, spec: ArraySpec) -> NpyAppendSink:
        with translated(WriteError, f"cannot write to {self.name}", self.name, foreign=OSError):
            claim = Claim(self.name, overwrite=True)
        try:
            self._check()
            with translated(WriteError, f"cannot write to {self.name}", self.name, self.cut_off, OSError):
                claim.say({"added": {"size": self.end, "header": self.header.hex()}})
                return NpyAppendSink(self, spec, claim)
        except BaseException:
            claim.end()
            raise

    def cut_off(self) -> None:
        """Remove what was written behind the old end."""
        with contextlib.suppress(OSError):
            cut_off(self.name, self.end, self.header)

    def shared(self, shape: Shape) -> Strided:
        """Where the elements lie, also to other processes."""
        return Strided.packed(self.name, self.end, shape, self.place.dtype, fortran=self.fortran)

    def _check(self) -> None:
        """Refuse a file that was changed since it was opened, and one that holds more than its array."""
        now = described(self.name)
        if (now.shape, now.dtype, now.offset) != (self.shape, self.place.dtype, self.place.offset):
            raise ArgumentError(
                f"{self.name} has another shape now, {now.shape}, than when it was opened, {self.shape}: open it again"
            )
        if (more := os.stat(self.name).st_size - self.end) > 0:
            raise ArgumentError(
                f"{self.name} holds {format_bytes(more)} behind its array, which would be written over. If nobody "
                f"needs them, os.truncate(path, {self.end}) removes them"
            )


class NpyAppendSink(FileSink):
    """Sink of an `NpyAppendTarget`."""

    def __init__(self, target: NpyAppendTarget, spec: ArraySpec, claim: Claim) -> None:
        self._target, self._claim, self._new = target, claim, target.longer_header(spec.shape)
        fresh = reserve(target.name, target.end + spec.nbytes)
        super().__init__(target.shared(spec.shape), fresh=fresh)

    def commit(self) -> Any:
        name, target = self.spec.name, self._target
        shape, _ = target.said.grown(target.shape, self.spec.shape, name)
        with translated(WriteError, f"cannot finish {name}", name, self.abort, OSError):
            place: dict[str, Any] = {"shape": shape, "order": "F" if target.fortran else "C"}
            whole = (
                np.empty(shape, target.place.dtype)
                if 0 in shape
                else np.memmap(name, target.place.dtype, "r+", target.place.offset, **place)
            )
            os.fsync(self.fd)  # else a power cut might leave a header that speaks of elements which are not there
            self.put(0, np.frombuffer(self._new, np.uint8))
            os.fsync(self.fd)
            self.close()
        self._claim.end()
        return whole  # made before the header was: what fails behind it would be an error after publication

    def abort(self) -> None:
        """See `Sink.abort`: what was written behind the old end is cut off, also where another output has failed."""
        super().abort()
        target = self._target
        with contextlib.suppress(OSError), open(target.name, "r+b") as file:
            if file.read(len(self._new)) == self._new:
                file.seek(0)
                file.write(target.header)
        target.cut_off()
        self._claim.end()

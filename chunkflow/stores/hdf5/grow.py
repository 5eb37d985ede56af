"""HDF5 datasets that are there: a part of one is written, or elements are added at its end."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import h5py
import numpy as np

from chunkflow.core.grid import Region, Shape, shift
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores.checks import check_cast
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.failures import translated, unwritten
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.hdf5.create import Hdf5PathSink, Hdf5PathTarget
from chunkflow.stores.hdf5.dataset import open_hdf5
from chunkflow.stores.hdf5.facts import facts_of
from chunkflow.stores.hdf5.host import LOCK, Host, is_open, opened
from chunkflow.stores.hdf5.write import DatasetTarget
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.paths import hdf5_parts, resolve
from chunkflow.stores.protocol import Sink, Target
from chunkflow.stores.views.part import PartSink, PartTarget

EDGE = 64 << 20
"""Most bytes of chunks that the old end of a dataset cuts, where these are kept beside its file."""


def existing_target(said: ExistingArray) -> Target:
    """Target of what is said of a dataset that is there."""
    if said.append is not None:
        return Hdf5AppendTarget(said)
    target = DatasetTarget(said.where if said.path is None else _opened(said.path, "r+"))
    dataset = target.dataset
    spec = target.describe(tuple(dataset.shape), np.dtype(np.bool_), None)
    return PartTarget(target, said.bounds(spec.shape, target.name), spec, None)


def _opened(path: str, mode: str) -> Any:
    """The dataset, in a file that is open until it is closed."""
    source = open_hdf5(path)  # which says what is wrong with the path
    name = source.spec.name.rpartition(":")[2]
    source.close()
    parts = hdf5_parts(path)
    assert parts is not None
    with translated(WriteError, f"cannot open {path} to write", path, foreign=OSError):
        return (opened(resolve(parts[0])) if mode == "r" else h5py.File(resolve(parts[0]), mode))[name]


class Hdf5AppendTarget:
    """The end of a dataset along an axis, which gets its new length first: HDF5 writes nothing beyond the old one.

    Of a dataset that is given by its path, all that changes in the file is kept beside it until it is complete, and
    new chunks lie where the file used nothing. One that the user has open is written in place: a run that fails gives
    it its old length, and one that is killed leaves the file as HDF5 does.
    """

    def __init__(self, said: ExistingArray) -> None:
        dataset = said.where if said.path is None else _opened(said.path, "r")
        facts = facts_of(dataset)
        self.name, self.writes = facts.name, facts.path or ""
        self.footprint: Footprint | None = facts.footprint
        self.said, self.shape, self.most = said, tuple(dataset.shape), tuple(dataset.maxshape)
        self.axis = said.axis(len(self.shape), self.name)
        self._spec, self.dataset = facts.spec, dataset
        if dataset.chunks is None:
            raise ArgumentError(
                f"{self.name} has a fixed length: only a dataset that was created with maxshape=, so in chunks, grows: "
                f"{self._way}"
            )
        cut = self.shape[self.axis] % dataset.chunks[self.axis]
        if said.path is not None:
            self.dataset = None
            dataset.file.close()
            self._check_edge()
        if self.footprint is not None and cut and (self.dataset is not None or is_open(self.writes)):
            # HDF5 moves chunks at the old end, while the dataset is still read.
            self.footprint = replace(self.footprint, layout=("the end of", self.footprint.layout))

    @property
    def _way(self) -> str:
        """How to make a dataset that grows."""
        most = "(" + ", ".join("None" if axis == self.axis else str(n) for axis, n in enumerate(self.shape)) + ",)"
        most = most if len(self.shape) == 1 else most.replace(",)", ")")
        file, _, name = self.name.rpartition(":/")
        said = f"chunkflow.NewArray({f'{file}:/{name}-2'!r}, maxshape={most})"
        return f"write the longer array to another name, as {said}, which grows from then on"

    def _check_edge(self) -> None:
        """Refuse chunks at the old end that are too many to be kept beside the file: they are in memory until then."""
        chunks = self._spec.chunks or ()
        if not self.shape[self.axis] % chunks[self.axis]:
            return
        layer = [c if a == self.axis else n for a, (n, c) in enumerate(zip(self.shape, chunks, strict=True))]
        nbytes = math.prod(layer) * self._spec.dtype.itemsize
        if nbytes > EDGE:
            raise ArgumentError(
                f"the end of {self.name} cuts chunks of {format_bytes(nbytes)} in all, which would be kept in memory: "
                f"up to {format_bytes(EDGE)} are. Pass the h5py.Dataset, opened with 'r+', to change them in place"
            )

    def grown(self, shape: Shape) -> tuple[Shape, Region]:
        """The new shape, and where the result goes."""
        new, region = self.said.grown(self.shape, tuple(shape), self.name)
        most = self.most[self.axis]
        if most is not None and new[self.axis] > most:
            raise ArgumentError(
                f"{self.name} may have at most the length {most} along axis {self.axis}, by the maxshape= that it was "
                f"created with, and would have {new[self.axis]}: {self._way}"
            )
        return new, region

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        self.grown(shape)
        check_cast(dtype, self._spec)
        return replace(self._spec, shape=tuple(shape))

    def open(self, spec: ArraySpec) -> Sink:
        new, region = self.grown(spec.shape)
        if self.dataset is not None:
            return InPlaceAppendSink(self, spec, new, region)
        target = Hdf5PathTarget(self.name, overwrite=True, said=NewArray(self.name, format="hdf5"))
        return HostAppendSink(self, target, spec, new, region)


class HostAppendSink(Hdf5PathSink):
    """Sink of the end of a dataset that is given by its path."""

    def __init__(
        self, grown: Hdf5AppendTarget, target: Hdf5PathTarget, spec: ArraySpec, new: Shape, region: Region
    ) -> None:
        self._grown, self._new, self._start = grown, new, tuple(side.start for side in region)
        super().__init__(target, spec)

    def _create(self, host: Host) -> None:
        dataset = host.file[self._target.dataset]
        if tuple(dataset.shape) != self._grown.shape:
            raise ArgumentError(
                f"{self._grown.name} has another shape now, {dataset.shape}, than when it was opened, "
                f"{self._grown.shape}: open it again"
            )
        dataset.resize(self._new)

    def write(self, region: Region, block: np.ndarray) -> None:
        if not block.size:
            return
        try:
            with LOCK:
                assert self._host is not None
                self._host.file[self._target.dataset][shift(region, self._start)] = block
        except (OSError, ValueError, RuntimeError) as error:  # of HDF5
            raise unwritten(region, self.spec.name, error) from error

    def _place(self, file: Any) -> None:
        """See `Hdf5PathSink`: the dataset has its name."""

    def abort(self) -> None:
        with LOCK, contextlib.suppress(Exception):
            host = self._host
            if host is not None and not (self._locked and host.is_released):  # else the file has changed for good
                host.file[self._target.dataset].resize(self._grown.shape)
        super().abort()


class InPlaceAppendSink:
    """Sink of the end of a dataset that the user has open."""

    def __init__(self, target: Hdf5AppendTarget, spec: ArraySpec, new: Shape, region: Region) -> None:
        self.spec, self._target = spec, target
        with translated(WriteError, f"cannot make {target.name} longer", target.name, self.abort):
            target.dataset.resize(new)
            grown = DatasetTarget(target.dataset)
            whole = grown.describe(new, np.dtype(np.bool_), None)
            self._sink: PartSink = PartTarget(grown, region, whole, None).open(spec)

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(region, block)

    def commit(self) -> Any:
        return self._sink.commit()

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._target.dataset.resize(self._target.shape)

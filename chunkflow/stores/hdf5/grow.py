"""HDF5 datasets that are there: a part of one is written, or elements are added at its end."""

from __future__ import annotations

import contextlib
from typing import Any

import h5py
import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.hdf5.dataset import open_hdf5
from chunkflow.stores.hdf5.write import DatasetTarget
from chunkflow.stores.paths import hdf5_parts, resolve
from chunkflow.stores.protocol import Target
from chunkflow.stores.views.part import PartSink, PartTarget


def existing_target(said: ExistingArray) -> Target:
    """Target of what is said of a dataset that is there."""
    dataset = said.where if said.path is None else _opened(said.path)
    if said.append is not None:
        return Hdf5AppendTarget(dataset, said)
    target = DatasetTarget(dataset)
    spec = target.describe(tuple(dataset.shape), np.dtype(np.bool_), None)
    return PartTarget(target, said.bounds(spec.shape, target.name), spec, None)


def _opened(path: str) -> Any:
    """The dataset, in a file that is open for writing until the user closes it."""
    source = open_hdf5(path)  # which says what is wrong with the path
    name = source.spec.name.rpartition(":")[2]
    source.close()
    parts = hdf5_parts(path)
    assert parts is not None
    with translated(WriteError, f"cannot open {path} to write", path, foreign=OSError):
        return h5py.File(resolve(parts[0]), "r+")[name]


class Hdf5AppendTarget:
    """The end of a dataset along an axis, which gets its new length first: HDF5 writes nothing beyond the old one.

    A run that fails gives it its old length. One that is killed leaves the file as HDF5 does.
    """

    def __init__(self, dataset: Any, said: ExistingArray) -> None:
        known = DatasetTarget(dataset)
        self.name, self.writes = known.name, known.writes
        self.footprint: Footprint | None = known.footprint
        self.dataset, self.said, self._known = dataset, said, known
        self.axis = said.axis(len(dataset.shape), self.name)
        if dataset.chunks is None:
            raise ArgumentError(
                f"{self.name} has a fixed length: only a dataset that was created with maxshape=, so in chunks, grows. "
                "Write the longer array to another name"
            )

    def grown(self, shape: Shape) -> tuple[Shape, Region]:
        """The new shape, and where the result goes."""
        new, region = self.said.grown(tuple(self.dataset.shape), tuple(shape), self.name)
        most = self.dataset.maxshape[self.axis]
        if most is not None and new[self.axis] > most:
            raise ArgumentError(
                f"{self.name} may have at most the length {most} along axis {self.axis}, by the maxshape= that it was "
                f"created with, and would have {new[self.axis]}"
            )
        return new, region

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        self.grown(shape)
        spec = self._known.describe(tuple(self.dataset.shape), dtype, None)
        return ArraySpec(spec.name, tuple(shape), spec.dtype, chunks=spec.chunks, storage=spec.storage)

    def open(self, spec: ArraySpec) -> Hdf5AppendSink:
        return Hdf5AppendSink(self, spec)


class Hdf5AppendSink:
    """Sink of an `Hdf5AppendTarget`."""

    def __init__(self, target: Hdf5AppendTarget, spec: ArraySpec) -> None:
        self.spec, self._target = spec, target
        self._old = int(target.dataset.shape[target.axis])
        new, region = target.grown(spec.shape)
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
            self._target.dataset.resize(self._old, self._target.axis)

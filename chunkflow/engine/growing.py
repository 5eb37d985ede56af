"""Outputs of a pass that comes in batches: of a known length, growing ones, and those that are gathered in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.errors import ArgumentError
from chunkflow.stores import ExistingArray, NewArray, is_new, open_target
from chunkflow.stores.commit import commit_all
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.paths import hdf5_named
from chunkflow.stores.protocol import Sink, Target
from chunkflow.stores.views.part_of_sink import SinkRegion


class BatchedOutput(Protocol):
    """Where one result of a pass goes, whose rows come in batches."""

    array: Any
    """All of it, after the last batch."""

    def place(self, start: Shape, shape: Shape) -> Any:
        """The ``out=`` of a batch: of this shape, from `start` on."""

    def planned(self, shape: Shape) -> Any:
        """The ``out=`` of a batch of this shape that is planned only."""

    def landed(self, result: Any) -> None:
        """A batch has been written, or gave this."""

    def ended(self) -> None:
        """The last batch has landed."""
        return

    def abort(self) -> None:
        """Undo what is not complete. Idempotent."""


@dataclass(frozen=True)
class PlannedTarget:
    """What a part of an output would be, for a plan. It is never opened."""

    spec: ArraySpec
    footprint: Footprint | None = None

    def __chunkflow_target__(self) -> PlannedTarget:
        return self

    @property
    def name(self) -> str:
        return f"a part of {self.spec.name}"

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return replace(self.spec, shape=tuple(shape))

    def open(self, spec: ArraySpec) -> Sink:
        raise NotImplementedError


@dataclass
class WholeOutput(BatchedOutput):
    """An output whose shape is known: it is opened before the first batch, and appears after the last."""

    sink: Sink
    array: Any = None
    """See `BatchedOutput`: there is none before the commit."""

    def place(self, start: Shape, shape: Shape) -> SinkRegion:
        return SinkRegion(self.sink, start)

    def planned(self, shape: Shape) -> PlannedTarget:
        return PlannedTarget(replace(self.sink.spec, shape=shape))

    def landed(self, result: Any) -> None:
        """See `BatchedOutput`: there is nothing to do."""

    def abort(self) -> None:
        self.sink.abort()


@dataclass
class GrowingOutput(BatchedOutput):
    """An output that a batch makes longer. After each it is complete as far as it goes, and others may read it."""

    out: Any
    target: Target
    spec: ArraySpec
    axis: int
    sync: bool | None
    array: Any = None
    _sink: Sink | None = None

    def place(self, start: Shape, shape: Shape) -> SinkRegion:
        target = self.target
        if self.array is not None:
            path = self.out.path if isinstance(self.out, NewArray | ExistingArray) else self.out
            target = open_target(ExistingArray(self.array if path is None else path, append=self.axis))
        self._sink = target.open(target.describe(shape, self.spec.dtype, self.spec.chunks))
        return SinkRegion(self._sink, (0,) * len(shape))

    def planned(self, shape: Shape) -> PlannedTarget:
        spec = self.target.describe(shape, self.spec.dtype, self.spec.chunks)
        if spec.chunks is not None:  # later batches are added to an array that is there, whose chunks are decoded too
            spec = spec.with_storage(copies=max(spec.storage.copies, Storage.copies))
        return PlannedTarget(spec)

    def landed(self, result: Any) -> None:
        assert self._sink is not None
        (self.array,) = commit_all([self._sink], sync=self.sync)
        self._sink = None

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()


@dataclass
class GatheredOutput(BatchedOutput):
    """Results in memory, which are put together after the last batch."""

    axis: int
    array: Any = None
    _parts: list[np.ndarray] = field(default_factory=list)

    def place(self, start: Shape, shape: Shape) -> None:
        """See `BatchedOutput`: each batch gives an array."""

    def planned(self, shape: Shape) -> None:
        """See `BatchedOutput`: each batch gives an array."""

    def landed(self, result: Any) -> None:
        self._parts.append(result)

    def abort(self) -> None:
        self._parts.clear()

    def ended(self) -> None:
        self.array = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts, self.axis)


def growing(out: Any, spec: ArraySpec, axis: int, *, overwrite: bool, sync: bool | None) -> BatchedOutput:
    """The output of a result that grows along an axis, to a length that nobody knows yet.

    Raises
    ------
    ArgumentError
        It has a fixed length.
    """
    if out is None:
        return GatheredOutput(axis)
    refuse_fixed(out)
    target = open_target(out, overwrite=overwrite)
    if isinstance(out, ExistingArray) and out.axis(len(spec.shape), target.name) != axis:
        raise ArgumentError(f"append={out.append}: the result grows along axis {axis}, as the live source does")
    target.describe(_one(spec.shape, axis), spec.dtype, spec.chunks)
    return GrowingOutput(out, target, spec, axis, sync)


def refuse_fixed(out: Any) -> None:
    """Refuse an output whose length is fixed."""
    appends = isinstance(out, ExistingArray) and out.append is not None
    path = out.path if isinstance(out, NewArray) else out
    if not (appends or is_new(out) or isinstance(out, NewArray)) or (isinstance(path, str) and hdf5_named(path)):
        named = repr(path) if is_new(out) and path is not None else f"of type {type(out).__name__}"
        hdf5 = ""
        if isinstance(path, str) and hdf5_named(path):
            hdf5 = ". A dataset of HDF5 grows if it was made by NewArray(..., maxshape=(None, ...)), of no rows say"
        raise ArgumentError(
            f"the live source's length is unknown, and the output {named} has a fixed one: give the path of a zarr "
            f"array or .npy file, which grow, or ExistingArray(..., append=0); or give live(..., length=){hdf5}"
        )


def _one(shape: Shape, axis: int) -> Shape:
    """A shape with one row."""
    return (*shape[:axis], 1, *shape[axis + 1 :])

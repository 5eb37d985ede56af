"""Regions of arrays that several runs share: a region in memory as a source, a region of an output as a target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, shift, within
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.memory import ArraySource
from chunkflow.stores.protocol import Sink, Source, Target, run_of, written_by


@dataclass(frozen=True)
class Held:
    """An array of which only `region` is in memory, as `array`. It opens as a source of the whole shape.

    >>> source = Held(np.arange(3), (slice(4, 7),), (10,)).__chunkflow_source__()
    >>> source.spec.shape, source.view((slice(5, 7),))
    ((10,), array([1, 2]))
    """

    array: np.ndarray
    region: Region
    shape: Shape

    def __chunkflow_spec__(self) -> ArraySpec:
        return replace(ArraySource(self.array).spec, shape=self.shape)

    def __chunkflow_source__(self) -> Source:
        return _HeldSource(self)


class _HeldSource:
    """Source of a `Held`. Only its region is read."""

    def __init__(self, held: Held) -> None:
        self._region, self._source = held.region, ArraySource(held.array)
        self.spec = held.__chunkflow_spec__()
        self.footprint: Footprint | None = None

    def read(self, region: Region, out: np.ndarray) -> None:
        self._source.read(within(region, self._region), out)

    def view(self, region: Region) -> np.ndarray | None:
        inside = all(own.start <= s.start and s.stop <= own.stop for own, s in zip(self._region, region, strict=True))
        return self._source.view(within(region, self._region)) if inside else None

    def run(self, region: Region) -> ByteRun | None:
        return self._source.run(within(region, self._region))

    def close(self) -> None: ...


@dataclass(frozen=True)
class SharedRegion:
    """A region of an output of the user's or of another run, as a target. It holds whole chunks."""

    target: Target
    region: Region
    spec: ArraySpec

    def __chunkflow_target__(self) -> Target:
        return self

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def writes(self) -> str:
        return "".join(written_by([self.target]))

    @property
    def footprint(self) -> Footprint | None:
        """See `Target.footprint`: overlaps are checked when the run is divided."""
        return None

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        spec = self.target.describe(self.spec.shape, dtype, self.spec.chunks)
        return replace(spec, shape=tuple(shape))

    def open(self, spec: ArraySpec) -> Sink:
        start = tuple(side.start for side in self.region)
        return _ShareSink(self.target.open(replace(spec, shape=self.spec.shape)), spec, start)


class _ShareSink:
    """Sink of a `SharedRegion`."""

    def __init__(self, sink: Sink, spec: ArraySpec, start: Shape) -> None:
        self.spec, self._sink, self._start = spec, sink, start

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(shift(region, self._start), block)

    def run(self, region: Region) -> ByteRun | None:
        return run_of(self._sink, shift(region, self._start))

    def commit(self) -> Any:
        """See `Sink.commit`. Other regions may not be written yet."""
        return self._sink.commit()

    def abort(self) -> None:
        self._sink.abort()


class Mapped(Strided):
    """An array in a file, which any process can open by its path."""

    def __chunkflow_spec__(self) -> ArraySpec:
        source = self.__chunkflow_source__()
        source.close()
        return source.spec

    def __chunkflow_source__(self) -> Source:
        return FileSource(self, guarded=False)

    def mapped(self) -> np.ndarray:
        """The array, mapped for writing."""
        return np.ndarray(self.shape, self.dtype, np.memmap(self.path, np.uint8, "r+"), self.offset, self.strides)

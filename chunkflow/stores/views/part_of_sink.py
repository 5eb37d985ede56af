"""A part of an output that is open already, as the target of a run of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, shift
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Sink, run_of


@dataclass(frozen=True)
class SinkRegion:
    """The part of a sink that begins at `start`. It holds whole chunks, or ends where the array does.

    The sink's owner commits or aborts it.
    """

    sink: Sink
    start: Shape
    footprint: Footprint | None = None

    def __chunkflow_target__(self) -> SinkRegion:
        return self

    @property
    def name(self) -> str:
        return f"a part of {self.sink.spec.name}"

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return replace(self.sink.spec, shape=tuple(shape))

    def open(self, spec: ArraySpec) -> Sink:
        return _PartOfSink(self.sink, spec, self.start)


class _PartOfSink:
    """Sink of a `SinkRegion`."""

    def __init__(self, sink: Sink, spec: ArraySpec, start: Shape) -> None:
        self.spec, self._sink, self._start = spec, sink, start

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(shift(region, self._start), block)

    def run(self, region: Region) -> ByteRun | None:
        return run_of(self._sink, shift(region, self._start))

    def commit(self) -> Any:
        """See `Sink.commit`: other parts are not written yet."""

    def abort(self) -> None:
        """See `Sink.abort`: the whole is aborted by its owner."""

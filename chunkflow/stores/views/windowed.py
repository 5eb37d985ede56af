"""A source that is the windows of another one. Elements are read once for a block, and repeated as they are copied."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from chunkflow.core.grid import Region, fit, regions, shape_of, shift
from chunkflow.core.spec import ArraySpec
from chunkflow.core.windows import Windows, strided
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint, Scattered
from chunkflow.stores.protocol import Source, keep_chunks
from chunkflow.stores.views.spans import strip_bytes


def windowed_spec(spec: ArraySpec, windows: Windows) -> ArraySpec:
    """Spec of the windows of an array."""
    chunks, copies = spec.chunks, spec.storage.copies
    if chunks is not None:
        sides = list(zip(chunks, spec.shape, windows.reach, strict=True))
        decoded = math.prod(min(side, n) for side, n, _ in sides)
        behind = math.prod(min(side + more, n) for side, n, more in sides)  # is read to a place of its own
        chunks = (*(max(1, min(side, n - more)) for side, n, more in sides), *windows.widths)
        copies = copies + 1 if spec.by_parts else (copies * decoded + behind) / max(1, math.prod(chunks))
    return replace(
        spec.with_storage(copies=copies, separate=False, codec=""),
        shape=windows.shape(spec.shape), chunks=chunks, order=(*spec.order, *windows.dims),
    )  # fmt: skip


class WindowedSource:
    """The windows of a source, which is closed with this one."""

    def __init__(self, source: Source, windows: Windows) -> None:
        self._source, self._windows, self.parts, self.how = source, windows, [source], windows
        self.spec = windowed_spec(source.spec, windows)
        self.footprint: Footprint | None = Scattered.of([source.footprint])

    def read(self, region: Region, out: np.ndarray) -> None:
        if (found := self.view(region)) is not None:
            out[...] = found
            return
        if not out.size:
            return
        windows, spec = self._windows, self._source.spec
        outer = shape_of(region[: windows.ndim])
        sides = outer
        if spec.by_parts:
            units = [min(n, 1 + 4 * more) for n, more in zip(outer, windows.reach, strict=True)]
            sides = fit(outer, units, spec.order, strip_bytes(spec, out.nbytes) // spec.dtype.itemsize)
        start = [side.start for side in region[: windows.ndim]]
        for box in regions(outer, sides):
            some = (*shift(box, start), *region[windows.ndim :])
            behind = np.empty(shape_of(windows.behind(some)), spec.dtype)
            self._source.read(windows.behind(some), behind)
            out[box] = strided(behind, windows, shape_of(some)[windows.ndim :])

    def view(self, region: Region) -> np.ndarray | None:
        """Windows that have their elements in the array's own memory."""
        found = self._source.view(self._windows.behind(region))
        return None if found is None else strided(found, self._windows, shape_of(region)[self._windows.ndim :])

    def keep(self, lately: DecodedChunks) -> None:
        keep_chunks(self._source, lately)

    def close(self) -> None:
        self._source.close()

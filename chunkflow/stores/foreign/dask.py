"""dask arrays as sources: blocks are computed as they are read, by the scheduler that the caller has chosen."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import dask.base
import numpy as np

from chunkflow.core.grid import Region
from chunkflow.errors import ArgumentTypeError, ReadError
from chunkflow.stores.foreign.generic import GenericSource

ASKING = 2e-3
"""Seconds that dask takes to cut a graph out and to schedule it (seen: 1 to 4 ms), whatever its blocks compute."""


class DaskSource(GenericSource):
    """A dask array. As many blocks are computed at once as the run reads ahead. They share no intermediate results.

    The scheduler is that of the thread that opens the source: a client, or what ``dask.config`` says.
    """

    _failed = "compute", "of"

    def __init__(self, array: Any) -> None:
        name = f"dask array {array.name}"
        if any(n != n for n in array.shape):
            shape = tuple(array.shape)
            raise ArgumentTypeError(f"{name} has the shape {shape}, which is not known: compute_chunk_sizes() finds it")
        if isinstance(array._meta, np.ma.MaskedArray):
            raise ReadError(
                f"{name} has blocks that are masked, whose mask would be lost: pass da.ma.filled(array, value), or "
                "chunkflow.open(array), an expression that has the mask",
                path=name,
            )
        super().__init__(array, name)
        self.spec = self.spec.with_storage(asking=ASKING)
        self._lock, self._scheduler, self.footprint = nullcontext(), dask.base.get_scheduler(collections=[array]), None

    def _get(self, region: Region) -> Any:
        return self._obj[region].compute(scheduler=self._scheduler)

"""dask arrays as sources: blocks are computed as they are read, by the scheduler that the caller has chosen."""

from __future__ import annotations

from typing import Any

import dask.base
import numpy as np

from chunkflow.core.grid import Region, describe, shape_of
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentTypeError, ReadError
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.footprint import Footprint


class DaskSource:
    """A dask array. As many blocks are computed at once as the run reads ahead. They share no intermediate results.

    The scheduler is that of the thread that opens the source: a client, or what ``dask.config`` says.
    """

    def __init__(self, array: Any) -> None:
        name = f"dask array {array.name}"
        shape = tuple(array.shape)
        if any(n != n for n in shape):
            raise ArgumentTypeError(f"{name} has the shape {shape}, which is not known: compute_chunk_sizes() finds it")
        self._array, self._get = array, dask.base.get_scheduler(collections=[array])
        chunks = tuple(max(1, *sides) for sides in array.chunks)
        self.spec = ArraySpec(name, tuple(map(int, shape)), numeric_dtype(array.dtype, name), chunks=chunks)
        self.footprint: Footprint | None = None

    def read(self, region: Region, out: np.ndarray) -> None:
        name, where = self.spec.name, describe(region)
        try:
            found = np.asarray(self._array[region].compute(scheduler=self._get))
        except Exception as error:
            raise ReadError(
                f"cannot compute {where} of {name}: {error}", path=name, region=region, cause=error
            ) from error
        if found.shape != shape_of(region):
            raise ReadError(
                f"{name} gave the shape {found.shape} for {where}, which has the shape {shape_of(region)}",
                path=name,
                region=region,
            )
        np.copyto(out, found, casting="same_kind")

    def view(self, region: Region) -> np.ndarray | None:
        """See `Source.view`: there is nothing before it is computed."""
        return None

    def close(self) -> None: ...

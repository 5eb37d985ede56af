"""Where the array lies that a view in a contract suite is of: in memory, in a file, or in chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from chunkflow.stores import open_source
from chunkflow.stores.protocol import Source


class OfMemory:
    """A view's suite calls `opened`."""

    def opened(self, tmp_path: Path, array: np.ndarray) -> Source:
        """Source of an array of these elements."""
        return open_source(array)


class OfFile(OfMemory):
    def opened(self, tmp_path: Path, array: np.ndarray) -> Source:
        np.save(tmp_path / "x.npy", array)
        return open_source(tmp_path / "x.npy")


class OfZarr(OfMemory):
    dtypes = ("f4", "?", "i2", "c16")

    def opened(self, tmp_path: Path, array: np.ndarray) -> Source:
        chunks = tuple(max(1, n // 3) for n in array.shape)
        zarr.create_array(tmp_path / "x.zarr", data=array, chunks=chunks)
        return open_source(tmp_path / "x.zarr")

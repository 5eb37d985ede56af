"""Zarr arrays that lie between two passes: not encoded, for they are read once and removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.errors import WriteError


def scratch_array(path: str, shape: Shape, dtype: np.dtype, chunks: Shape) -> Any:
    """Create a writable zarr array whose chunks are raw bytes.

    Raises
    ------
    WriteError
        The array cannot be created.
    """
    import zarr  # only when a run has several passes, and keeps what lies between them on the disk

    try:
        return zarr.create_array(store=path, shape=shape, chunks=chunks, dtype=dtype, compressors=None)
    except Exception as error:
        raise WriteError(f"cannot create {path}: {error}", path=path, cause=error) from error

"""HDF5 files for the tests of their stores."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkflow.core.grid import whole
from chunkflow.stores import open_source

h5py = pytest.importorskip("h5py")

FILTERS: dict[str, dict[str, Any]] = {
    "raw": {},
    "gzip": {"compression": "gzip", "compression_opts": 1},
    "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "lzf": {"compression": "lzf", "shuffle": True},
}


def halves(array: np.ndarray) -> tuple[int, ...] | None:
    """Chunks that do not divide the array; None where it can have none."""
    return tuple(max(1, n // 2) for n in array.shape) if array.ndim and array.size else None


def save(path: Path, array: np.ndarray, name: str = "u", **options: Any) -> str:
    if options.get("chunks") is None:
        options = {}  # neither nothing nor a scalar can have filters
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=array, **options)
    return f"{path}:/{name}"


def read(obj: Any) -> np.ndarray:
    source = open_source(obj)
    out = np.empty(source.spec.shape, source.spec.dtype)
    try:
        source.read(whole(out.shape), out)
    finally:
        source.close()
    return out


def no_space(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

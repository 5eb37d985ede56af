"""Arrays for transforms, and how close a transform must come."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import zarr

DTYPES = ("?", "i2", "f2", "f4", "f8", "c8", "c16", ">f4")


def noise(shape: Any, dtype: Any) -> np.ndarray:
    rng, dtype = np.random.default_rng(7), np.dtype(dtype)
    x = rng.standard_normal(shape) * (1 if dtype.kind in "fc" else 9)
    return np.asarray(x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def close(got: Any, expected: np.ndarray, size: float = 0.0, rough: bool = False) -> None:
    """Equal to within the rounding of a transform of so many points, which is relative to its largest result."""
    got = np.asarray(got[...] if hasattr(got, "shape") else got)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.size:
        eps = np.finfo("f2" if rough else expected.dtype).eps
        scale = max(float(np.abs(expected).max()), size)
        most = 4 * eps * scale * max(math.log2(expected.size), 1)
        assert float(np.abs(got - expected).max()) <= most


def stored(x: np.ndarray, kind: str, folder: Path) -> Any:
    if kind == "zarr":
        zarr.create_array(folder / "x.zarr", shape=x.shape, chunks=(16, 16, 16), dtype=x.dtype)[...] = x
        return folder / "x.zarr"
    np.save(folder / "x.npy", x)
    if kind == "npy":
        return folder / "x.npy"
    return np.load(folder / "x.npy", mmap_mode="r") if kind == "memmap" else x

"""Patterns of paths that stand for several arrays."""

from __future__ import annotations

import glob
import os

from chunkflow.stores.paths import TIFF, hdf5_named


def matching(path: str) -> list[str]:
    """Paths of the arrays that a pattern stands for, in order; none of a path, and of TIFF files, which are one array.

    >>> matching("x.zarr"), matching("frames/*.tif")
    ([], [])
    """
    file, name = hdf5_named(path) or (path, None)
    if not any(letter in file for letter in "*?[") or "://" in path or path.lower().endswith(TIFF):
        return []
    if os.path.exists(file):
        return []
    return [each if name is None else f"{each}:{name}" for each in sorted(glob.glob(file))]

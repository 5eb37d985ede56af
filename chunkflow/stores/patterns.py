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


def pattern_of(folder: str, ending: str) -> str:
    """The pattern of the files in a directory whose names end so; letters that stand for others are escaped.

    >>> pattern_of("exp[1]", ".tif"), pattern_of("", ".npy")
    ('exp[[]1]/*.tif', '*.npy')
    """
    return os.path.join(glob.escape(folder), f"*{glob.escape(ending)}")


def unmatched(pattern: str) -> str:
    """What a pattern that matches no file lacks: the end of a sentence, or empty where that is not known.

    >>> unmatched("/nowhere/*.tif")
    ''
    """
    file, name = hdf5_named(pattern) or (pattern, None)
    folder, last = os.path.split(file)
    escaped = os.path.join(glob.escape(folder), last)
    if escaped == file or not glob.glob(escaped):
        return ""
    whole = escaped if name is None else f"{escaped}:{name}"
    return f". Brackets in it stand for one of some letters: as names of directories they are written as in {whole!r}"

"""Patterns of paths that stand for several arrays."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Sequence
from itertools import pairwise

from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentError, FileOrderWarning
from chunkflow.stores.paths import TIFF, hdf5_named
from chunkflow.system.users_line import users_line

_DIGITS = re.compile(r"[0-9]*")
_NUMBER = re.compile(r"[0-9]+\Z")


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


def check_alike(files: Sequence[str], shapes: Sequence[Shape]) -> None:
    """Refuse arrays of files that are no stack, as they have several shapes."""
    first = shapes[0]
    unlike = next((n for n, shape in enumerate(shapes) if shape != first), None)
    if unlike is None:
        return
    one = shapes[unlike]
    said = f"a pattern is the stack of its arrays, which have one shape: {files[0]} has {first}, {files[unlike]} {one}"
    if len(first) != len(one) or not first or first[1:] != one[1:]:
        raise ArgumentError(f"{said}. Write a pattern that matches files of one shape")
    two = ", ".join(f"chunkflow.open({file!r})" for file in files[:2])
    raise ArgumentError(
        f"{said}. Files that follow one another along an axis are joined: chunkflow.concatenate([{two}, ...]), or with "
        "names, xarray.open_mfdataset(paths, chunks={}, chunked_array_type='chunkflow')"
    )


def warn_of_order(pattern: str, files: Sequence[str]) -> None:
    """Warn of files, in the order of their names, in which numbers come in another order."""
    for first, second in pairwise(files):
        if _is_turned(first, second):
            paths = [(hdf5_named(each) or (each, None))[0] for each in (first, second)]
            names = paths if os.path.dirname(paths[0]) != os.path.dirname(paths[1]) else map(os.path.basename, paths)
            warnings.warn(
                f"the files of {pattern} are taken in the order of their names as text, {' before '.join(names)}, "
                "though their numbers have another order: write numbers with zeros in front, each with as many digits, "
                "or give chunkflow.stack a list, [chunkflow.open(path) for path in paths], in the order that is wanted",
                FileOrderWarning,
                stacklevel=users_line(),
            )
            return


def _is_turned(first: str, second: str) -> bool:
    """Whether a name has a larger number than the one after it, at the place where they begin to differ.

    >>> _is_turned("f10.tif", "f2.tif"), _is_turned("f02.tif", "f10.tif"), _is_turned("f.tif", "f1.tif")
    (True, False, False)
    >>> _is_turned("t0.25.h5", "t0.5.h5"), _is_turned("t10.5.h5", "t9.5.h5")
    (False, True)
    """
    length = min(len(first), len(second))
    same = first[: next((i for i in range(length) if first[i] != second[i]), length)]
    found = _NUMBER.search(same)
    start = found.start() if found else len(same)
    if start > 1 and same[start - 1] == "." and same[start - 2].isdecimal():
        return False  # decimals: as text they have the right order
    numbers = [_DIGITS.match(name, start)[0] for name in (first, second)]  # type: ignore[index]
    return all(numbers) and int(numbers[0]) > int(numbers[1])

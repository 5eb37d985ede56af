"""Which file an ndarray is mapped from, so that it can be read by positions and not by page faults."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any

import numpy as np

from chunkflow.stores.layout import bounds

_MAPS = "/proc/self/maps"


def mapped_file(array: np.ndarray, *, private: bool = False) -> tuple[str, int] | None:
    """Path, and byte offset of the element at index 0, of an array that lies in a mapped file.

    Works for ``np.memmap`` and whatever views were taken of one. None for everything whose bytes are
    not simply the file's: a private mapping (mode ``"c"``, whose pages may have been modified; with `private`
    its file is named), a file that was deleted or replaced since, an array in ordinary memory, a platform
    without ``/proc``.

    Examples
    --------
    >>> mapped_file(np.zeros(3)) is None
    True
    """
    if not array.size or not _is_mapped(array):
        return None
    first = int(array.__array_interface__["data"][0])
    low, high = bounds(array.shape, array.strides, array.dtype.itemsize)
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                span, flags, offset, _, inode, *path = line.rstrip("\n").split(None, 5)
                start, stop = (int(address, 16) for address in span.split("-"))
                if not start <= first < stop:
                    continue
                inside = start <= first + low and first + high <= stop
                if not (inside and flags.endswith("p" if private else "s") and path):
                    return None
                # A deleted file's line ends in " (deleted)", which no stat will find; nor will it
                # find the old inode under a path where another file has been put since.
                found = os.stat(path[0])
                if found.st_ino != int(inode) or not stat.S_ISREG(found.st_mode):
                    return None
                return path[0], int(offset, 16) + first - start
    except OSError:
        pass
    return None


def _is_mapped(array: np.ndarray) -> bool:
    """Whether the array's memory belongs to a mapping, wherever in its chain of bases that is."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner is not None

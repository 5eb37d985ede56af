"""Which file an ndarray is mapped from, so that it can be read by positions and not by page faults."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any, NamedTuple

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
    found = _mapping(array)
    if found is None or not found.flags.endswith("p" if private else "s"):
        return None
    # A deleted file's line ends in " (deleted)", which no stat will find; nor will it find the old inode
    # under a path where another file has been put since.
    try:
        status = os.stat(found.path)
    except OSError:
        return None
    if status.st_ino != found.inode or not stat.S_ISREG(status.st_mode):
        return None
    return found.path, found.offset


def mapped_space(array: np.ndarray) -> tuple[tuple[str, int, int], int] | None:
    """The file behind an array, as (``"file"``, device, inode), and the byte offset of its first element.

    Also where the file has no name any more: what two mappings of it share is known all the same.
    """
    found = _mapping(array)
    if found is None or not found.inode:
        return None
    device = found.device
    try:  # some file systems show another device number in a mapping than to stat
        status = os.stat(found.path)
        if status.st_ino == found.inode:
            device = status.st_dev
    except OSError:
        pass
    return ("file", device, found.inode), found.offset


class _Mapping(NamedTuple):
    """A line of the process's map, and the file offset of an array's first element."""

    flags: str
    device: int
    inode: int
    path: str
    offset: int


def _mapping(array: np.ndarray) -> _Mapping | None:
    if not array.size or not _is_mapped(array):
        return None
    first = int(array.__array_interface__["data"][0])
    low, high = bounds(array.shape, array.strides, array.dtype.itemsize)
    try:
        # Only "\n" ends a line: a path may hold any other character.
        with open(_MAPS, encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
            for line in maps:
                span, flags, offset, device, inode, *path = line.rstrip("\n").split(None, 5)
                start, stop = (int(address, 16) for address in span.split("-"))
                if start <= first < stop:
                    if not (start <= first + low and first + high <= stop):
                        return None
                    major, minor = (int(part, 16) for part in device.split(":"))
                    number = os.makedev(major, minor)
                    return _Mapping(flags, number, int(inode), path[0] if path else "", int(offset, 16) + first - start)
    except OSError:
        pass
    return None


def _is_mapped(array: np.ndarray) -> bool:
    """Whether the array's memory belongs to a mapping, wherever in its chain of bases that is."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner is not None

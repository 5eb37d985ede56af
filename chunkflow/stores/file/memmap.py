"""The file that an ndarray is mapped from, so that it is read at positions instead of by page faults."""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from chunkflow.stores.strides import bounds

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
    if found is None or not found[0].flags.endswith("p" if private else "s"):
        return None
    mapping, offset = found
    status = mapping.status
    return (mapping.path, offset) if status is not None and stat.S_ISREG(status.st_mode) else None


def is_written_through(array: np.ndarray) -> bool:
    """Whether this process may write to the file through the mapping in which an array lies."""
    owner = _owner(array)
    with suppress(ValueError):  # it is closed
        return owner is not None and not memoryview(owner).readonly
    return False


def mapped_space(array: np.ndarray) -> tuple[tuple[str, int, int], int] | None:
    """The file behind an array, as (``"file"``, device, inode), and the byte offset of its first element.

    Also where the file has no name any more: what two mappings of it share is known all the same.
    """
    found = _mapping(array)
    if found is None or not found[0].inode:
        return None
    mapping, offset = found
    status = mapping.status  # some file systems show another device number in a mapping than to stat
    return ("file", mapping.device if status is None else status.st_dev, mapping.inode), offset


class _Mapping(NamedTuple):
    """A line of the process's map; `offset` is the file's byte at address `start`."""

    start: int
    stop: int
    flags: str
    device: int
    inode: int
    path: str
    offset: int

    def has(self, start: int, stop: int) -> bool:
        """Whether these addresses lie in it."""
        return self.start <= start and stop <= self.stop

    @property
    def status(self) -> os.stat_result | None:
        """The file's, if the path still leads to it: that of a deleted one ends in " (deleted)"."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status if status.st_ino == self.inode else None


# With a GPU's libraries the process's map has hundreds of lines, and takes milliseconds to read.
_known: WeakKeyDictionary[mmap.mmap, _Mapping] = WeakKeyDictionary()


def _mapping(array: np.ndarray) -> tuple[_Mapping, int] | None:
    """The mapping in which an array lies, and the file offset of its first element."""
    owner = _owner(array)
    if owner is None or not array.size:
        return None
    first = int(array.__array_interface__["data"][0])
    low, high = bounds(array.shape, array.strides, array.dtype.itemsize)
    ends = first + low, first + high
    found = _known.get(owner)
    # A mapping may have several lines, after `madvise` for a part of it, and others when its size was changed.
    if found is None or not found.has(*ends) or found.status is None:
        if (found := _line(first)) is None:
            return None
        _known[owner] = found
    return (found, found.offset + first - found.start) if found.has(*ends) else None


def _line(address: int) -> _Mapping | None:
    """The mapping that has this address."""
    try:
        # Only "\n" ends a line: a path may hold any other character.
        with open(_MAPS, encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
            for line in maps:
                span, flags, offset, device, inode, *path = line.rstrip("\n").split(None, 5)
                start, stop = (int(end, 16) for end in span.split("-"))
                if start <= address < stop:
                    major, minor = (int(part, 16) for part in device.split(":"))
                    number = os.makedev(major, minor)
                    return _Mapping(start, stop, flags, number, int(inode), path[0] if path else "", int(offset, 16))
    except OSError:
        pass
    return None


def _owner(array: np.ndarray) -> mmap.mmap | None:
    """The mapping that owns the array's memory, found through its chain of bases."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner

"""Renames in one step, and files that are on the disk."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any

_NO_REPLACE, _EXCHANGE = 1, 2  # linux/fs.h
_AT_FDCWD = -100
_LACKING = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV}
_MANY = 64  # files of a directory, from which on the whole file system is flushed at once


@cache
def _library() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _renameat2(old: str, new: str, flag: int) -> bool:
    """Call Linux's ``renameat2``; False where the system or the file system lacks it."""
    call = getattr(_library(), "renameat2", None)
    if call is None:
        return False
    if not call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flag):
        return True
    number = ctypes.get_errno()
    if number in _LACKING:
        return False
    raise OSError(number, os.strerror(number), old, None, new)


def exchange(one: str, other: str) -> bool:
    """Exchange two names in one step; False if the file system cannot."""
    return _renameat2(one, other, _EXCHANGE)


def rename_new(old: str, new: str) -> None:
    """Rename to a name that nothing has. `FileExistsError` if something has it.

    Where the file system cannot do both in one step, the name is looked at first.
    """
    if _renameat2(old, new, _NO_REPLACE):
        return
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), old, None, new)
    os.rename(old, new)


def flush(path: str) -> None:
    """Put a file, or a directory and all that is in it, on the disk."""
    if not os.path.isdir(path):
        _sync(path)
        return
    found = [(above, names) for above, _, names in os.walk(path)]
    if sum(len(names) for _, names in found) > _MANY and _sync_file_system(path):
        return
    for above, names in reversed(found):
        for name in names:
            _sync(os.path.join(above, name))
        _sync(above)


def flush_name(path: str) -> None:
    """Put the names in a path's directory on the disk."""
    _sync(os.path.dirname(path))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):  # a file system that keeps nothing
            raise
    finally:
        os.close(fd)


def _sync_file_system(path: str) -> bool:
    """Call Linux's ``syncfs``, which also reports what could not be written (Linux 5.8); False without it."""
    call = getattr(_library(), "syncfs", None)
    if call is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if call(fd):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(fd)
    return True

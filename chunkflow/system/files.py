"""Opening files that others may have put in their places: pipes do not block, and links are not followed to write."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import islice


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Descriptor of a regular file. `OSError` for all else: to open a pipe would wait, and a device has no end."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.ESPIPE, "it is a pipe or a device, and no file", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_hidden(path: str) -> int:
    """Descriptor of a new file whose name others could guess. What has the name already is removed, never followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileExistsError:
        with suppress(FileNotFoundError):
            os.unlink(path)
        return os.open(path, flags, 0o666)


AT_ONCE = 1000
"""Entries of a directory that are known at a time: there may be millions of chunks."""


def remove_tree(path: str | os.PathLike[str], dir_fd: int | None = None) -> None:
    """Remove a directory and what is in it. Links are removed, and not followed.

    Unlike `shutil.rmtree` it holds few names at a time.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        while True:
            with os.scandir(fd) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, AT_ONCE)]
            if not found:
                break
            for name, is_directory in found:
                with suppress(FileNotFoundError):  # another one removes it too
                    if is_directory:
                        remove_tree(name, fd)
                    else:
                        os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(path, dir_fd=dir_fd)

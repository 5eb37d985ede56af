"""The compiled loops, where they were built: they move blocks, read files in one call, add, and find items of chunks.

They matter for speed, and sums for their last bit: the order of additions is another one. A call releases Python's lock
once. Python's own functions release it several times, and then wait for it among a dozen threads.
``CHUNKFLOW_COMPILED=0`` in the environment turns them off.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

import numpy as np

from chunkflow.system.files import open_regular


def _built(name: str) -> ModuleType | None:
    """A module in C; None where there was no compiler, or it is turned off."""
    with suppress(ImportError):
        return importlib.import_module(name) if os.environ.get("CHUNKFLOW_COMPILED") != "0" else None
    return None


staging = _built("chunkflow.system.native._transfer")
chunks = _built("chunkflow.system.native._chunks")
sums = _built("chunkflow.system.native._sums")
bins = _built("chunkflow.system.native._bins")
complete = all((staging, chunks, sums, bins))
"""Whether all of them were built, and are not turned off."""


def join(pieces: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Fill `out`, of one axis, with pieces that lie one behind the other there; each is contiguous.

    >>> join([np.arange(2), np.arange(3)], out := np.empty(5, int))
    >>> out
    array([0, 1, 0, 1, 2])
    """
    if staging is not None and out.flags.c_contiguous and all(piece.dtype == out.dtype for piece in pieces):
        staging.join(out, pieces)
    elif pieces:
        np.concatenate(pieces, out=out)


def read_file(path: str, out: np.ndarray, since: int = 0) -> int:
    """Fill flat bytes from the start of a file, as far as either goes; return its size. May raise `OSError`.

    Its number is ESTALE if the file was changed after the time `since`, in nanoseconds; 0 for none.
    A pipe or a device has no bytes, and is not waited for.
    """
    if staging is not None:
        size, error = staging.read(path, out, since)
        if error:
            raise OSError(error, os.strerror(error), path)
        return int(size)
    try:
        fd = open_regular(path)
    except OSError as error:
        if error.errno != errno.ESPIPE:
            raise
        return 0
    with open(fd, "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if 0 < since < found.st_ctime_ns:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        size = found.st_size
        done, most = 0, min(size, len(out))
        while done < most:
            if not (count := file.readinto(out.data[done:most])):
                return done  # the file was shortened meanwhile
            done += count
        return size

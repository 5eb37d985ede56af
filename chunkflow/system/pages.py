"""Pages of new memory, made before it is filled.

The system makes a page when it is first written to. The few threads that store what comes from a GPU wait longer for
that than they copy, and the more so the more of them there are: all cores make the pages first.
"""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np

from chunkflow.system.host import cores
from chunkflow.system.thread_pool import in_threads

LEAST, PIECE = 64 << 20, 16 << 20
"""Bytes of an array that is worth while, and of what a thread makes at a time."""

POPULATE_WRITE = 23
"""Of Linux's ``madvise(2)``, since 5.14. It changes nothing that was written."""


def populate(array: np.ndarray) -> None:
    """Make the pages of a new array, contiguous in some order of its axes.

    Where the system does not know how, they are made as they are written to.
    """
    if sys.platform != "linux" or array.nbytes < LEAST:
        return
    page, first = os.sysconf("SC_PAGE_SIZE"), array.ctypes.data
    begin, end = -(-first // page) * page, (first + array.nbytes) // page * page
    library = ctypes.CDLL(None)
    madvise = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(("madvise", library))
    in_threads(lambda start: madvise(start, min(PIECE, end - start), POPULATE_WRITE), range(begin, end, PIECE), cores())

"""The compiled helpers, where they were built: loops that move blocks, files read in one call, items of chunks.

Nothing depends on them but speed: each call gives Python's lock away once, where Python's own functions do so, and wait
for it again among a dozen threads, several times. ``CHUNKFLOW_COMPILED=0`` in the environment does without.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from types import ModuleType

import numpy as np


def _built(name: str) -> ModuleType | None:
    """A module in C; None where there was no compiler, or it is not wanted."""
    with suppress(ImportError):
        return importlib.import_module(name) if os.environ.get("CHUNKFLOW_COMPILED") != "0" else None
    return None


staging = _built("chunkflow.system.native._transfer")
chunks = _built("chunkflow.system.native._chunks")


def read_file(path: str, out: np.ndarray) -> int:
    """Fill flat bytes from a file's start, as far as either goes; how many the file has.

    Raises
    ------
    OSError
        It cannot be read.
    """
    if staging is not None:
        size, error = staging.read(path, out)
        if error:
            raise OSError(error, os.strerror(error), path)
        return int(size)
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        done, most = 0, min(size, len(out))
        while done < most:
            if not (count := file.readinto(out.data[done:most])):
                return done  # it was cut meanwhile
            done += count
        return size

"""The compiled helper, where it was built: loops that move blocks, and files read in one call.

Nothing depends on it but speed: each call gives Python's lock away once, where Python's own functions do so, and wait
for it again among a dozen threads, several times. ``CHUNKFLOW_COMPILED=0`` in the environment does without.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from types import ModuleType

import numpy as np

staging: ModuleType | None = None
if os.environ.get("CHUNKFLOW_COMPILED") != "0":
    with suppress(ImportError):  # built without a compiler
        staging = importlib.import_module("chunkflow.devices._staging")


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

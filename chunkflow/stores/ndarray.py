"""Sources and targets of ndarrays, in memory or mapped from a file."""

from __future__ import annotations

import numpy as np

from chunkflow.stores.checks import check_unmasked, numeric_dtype
from chunkflow.stores.file.memmap import is_written_through, mapped_file, mapped_space
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.file.strided_sink import mapped_target
from chunkflow.stores.footprint import Footprint, footprint
from chunkflow.stores.identity import Guard
from chunkflow.stores.memory import ArraySource, ArrayTarget, check_sink
from chunkflow.stores.protocol import Source, Target


def ndarray_source(given: np.ndarray | np.generic) -> Source:
    """Source of an ndarray, of a mapped one by its file."""
    array = _checked(np.asanyarray(given))
    mapped = mapped_file(array)
    if mapped is None:
        return ArraySource(array, _file_footprint(array))
    whole = array.view(np.ndarray)
    guard = Guard.of_files(mapped[0], mapped[0])
    if is_written_through(array):  # the file shows at any time what the caller wrote before
        guard.release()
    return FileSource(Strided(*mapped, array.shape, array.strides, array.dtype, mapping=whole), guard)


def ndarray_target(array: np.ndarray, whole: np.ndarray | None = None) -> Target:
    """Target of an ndarray of the user's, of a mapped one by its file. If it is a part of one, that is the result."""
    mapped = mapped_file(_checked(array))
    if mapped is None:
        return ArrayTarget(array, _file_footprint(array), whole=whole)
    check_sink(array, mapped[0])
    return mapped_target(array, *mapped, whole)


def _checked(array: np.ndarray) -> np.ndarray:
    check_unmasked(array)
    numeric_dtype(array.dtype, "ndarray")
    return array


def _file_footprint(array: np.ndarray) -> Footprint | None:
    """Place in a file that is mapped, but not read by its path: mapped privately, say, or without a name.

    A private mapping's untouched pages still show what is written to the file.
    """
    found = mapped_space(array)
    return found and footprint(*found, array.shape, array.strides, array.dtype)

"""Arrays for tests: ones with telling values or an odd memory layout, and ones that count or fail."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape


def filled(shape: Shape, dtype: Any) -> np.ndarray:
    """Array whose neighbouring elements differ, in any dtype.

    >>> filled((2, 3), "i2")
    array([[1, 2, 3],
           [4, 5, 6]], dtype=int16)
    """
    count = np.arange(1, math.prod(shape) + 1).reshape(shape)
    kind = np.dtype(dtype).kind
    values = count % 3 == 0 if kind == "b" else count % 251 - 1j * count if kind == "c" else count % 127
    array: np.ndarray = np.asarray(values).astype(dtype)
    return array


def laid_out(shape: Shape, dtype: Any, layout: str) -> np.ndarray:
    """Writable array with the memory layout ``"C"``, ``"F"``, ``"strided"`` or ``"reversed"``, of noise.

    Examples
    --------
    >>> laid_out((2, 3), "f4", "F").flags.f_contiguous
    True
    """
    if layout == "strided":
        found = np.empty(tuple(2 * n + 1 for n in shape), dtype)[tuple(slice(0, 2 * n, 2) for n in shape)]
    elif layout == "reversed":
        found = np.empty(shape, dtype)[tuple(slice(None, None, -1) for _ in shape)]
    else:
        found = np.empty(shape, dtype, "F" if layout == "F" else "C")
    array = np.asarray(found) if shape else np.empty((), dtype)
    array[...] = True if array.dtype.kind == "b" else 99
    return array


class CountingSource:
    """Array-like object that counts what is read from it.

    Parameters
    ----------
    array : object
        Anything with ``shape``, ``dtype`` and basic slicing.

    Attributes
    ----------
    reads : int
        Regions read so far.
    bytes_read : int
        Bytes of them.

    Examples
    --------
    >>> source = CountingSource(np.zeros((4, 4), "f4"))
    >>> _ = source[0:2, 0:4]
    >>> source.reads, source.bytes_read
    (1, 32)
    """

    def __init__(self, array: Any) -> None:
        self._array, self._lock = array, threading.Lock()
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)
        self.chunks = getattr(array, "chunks", None)
        self.reads = self.bytes_read = 0

    def __getitem__(self, region: Any) -> np.ndarray:
        found = np.asarray(self._array[region])
        with self._lock:
            self.reads += 1
            self.bytes_read += found.nbytes
        return found


class FailingArray:
    """Array-like object, readable and writable, whose accesses fail after the first few.

    Parameters
    ----------
    array : object
        Anything with ``shape``, ``dtype`` and basic slicing.
    after : int
        Number of reads and writes that succeed.
    error : BaseException, optional
        What the ones after that raise.

    Examples
    --------
    >>> array = FailingArray(np.zeros(4), after=1, error=OSError("gone"))
    >>> _ = array[0:2]
    >>> array[2:4]
    Traceback (most recent call last):
    OSError: gone
    """

    def __init__(self, array: Any, after: int, error: BaseException | None = None) -> None:
        self._array, self._lock, self._left = array, threading.Lock(), after
        self._error = error or OSError("injected failure")
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)
        self.chunks = getattr(array, "chunks", None)

    def _access(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left < 0:
                raise self._error

    def __getitem__(self, region: Any) -> Any:
        self._access()
        return self._array[region]

    def __setitem__(self, region: Any, block: Any) -> None:
        self._access()
        self._array[region] = block

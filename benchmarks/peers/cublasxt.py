"""cuBLASXt, NVIDIA's product of matrices that lie in host memory, by way of ctypes: a peer, where it can be found."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

TILES = (1024, 2048, 4096, 8192)
"""Sides of tiles that are tried."""


def libraries() -> Iterator[str]:
    """Where cuBLAS may be: the one that CuPy has loaded, or the system's."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/libcublas.so" in line:
            yield line.split(maxsplit=5)[-1]
    found = ctypes.util.find_library("cublas")
    if found:
        yield found


class CublasXt:
    """Products of square matrices in C order, on the first GPU."""

    def __init__(self, library: Any, cupy: Any) -> None:
        self._library, self._cupy = library, cupy
        self._handle = ctypes.c_void_p()
        self._call("cublasXtCreate", ctypes.byref(self._handle))
        self._call("cublasXtDeviceSelect", self._handle, 1, (ctypes.c_int * 1)(0))
        self._call("cublasXtSetPinningMemMode", self._handle, 0)  # `pinned` does that, so that it can be timed apart

    @classmethod
    def find(cls, cupy: Any) -> CublasXt | None:
        """Open it, if it is there."""
        x = cupy.ones((2, 2), "f4")
        (x @ x).get()  # loads cuBLAS
        for path in dict.fromkeys(libraries()):
            library = ctypes.CDLL(path)
            if hasattr(library, "cublasXtCreate"):
                return cls(library, cupy)
        return None

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    @contextmanager
    def pinned(self, *arrays: np.ndarray) -> Iterator[None]:
        """Lock arrays in memory, so that the GPU reads and writes them by itself."""
        runtime, done = self._cupy.cuda.runtime, []
        try:
            for array in arrays:
                runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
                done.append(array)
            yield
        finally:
            for array in done:
                runtime.hostUnregister(array.ctypes.data)

    def matmul(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, tile: int) -> None:
        """Write ``a @ b`` to `out`; in cuBLAS' column order that is the transposed product of the transposed."""
        n, kind = len(a), {"f": ctypes.c_float, "d": ctypes.c_double}[a.dtype.char]
        side, one, zero = ctypes.c_size_t(n), kind(1), kind(0)
        self._call("cublasXtSetBlockDim", self._handle, tile)
        left, right, result = (ctypes.c_void_p(array.ctypes.data) for array in (b, a, out))
        self._call(
            "cublasXtSgemm" if a.dtype.char == "f" else "cublasXtDgemm",
            *(self._handle, 0, 0, side, side, side, ctypes.byref(one)),
            *(left, side, right, side, ctypes.byref(zero), result, side),
        )
        self._cupy.cuda.runtime.deviceSynchronize()

    def close(self) -> None:
        """Give back what it has taken."""
        self._call("cublasXtDestroy", self._handle)

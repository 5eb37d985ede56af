"""Memory that a run takes, measured: on the CPU by what is traced, on a GPU by the driver."""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr

from chunkflow.devices.cpu import allocations as calls

MB = 1_000_000

SLACK = 512 << 10
"""Bytes that Python's own objects may take: threads, generators, the plan."""


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve megabytes of noise as ``x.npy`` and ``x.zarr``."""
    folder = tmp_path_factory.mktemp("budget")
    x = np.random.default_rng(0).random((3000, 1024), "f4")
    np.save(folder / "x.npy", x)
    zarr.create_array(folder / "x.zarr", shape=x.shape, dtype=x.dtype, chunks=(20, 1024))[...] = x
    return folder


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """The most bytes allocated at once inside."""
    tracemalloc.stop()  # a trial call may have left it on, to end it later
    calls._own = False
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()


@dataclass
class DriverMemory:
    """Device memory by the driver's own count, sampled by a thread."""

    bare: int
    least: int = sys.maxsize

    @contextmanager
    def sampled(self) -> Iterator[None]:
        from cupy.cuda import runtime

        over = threading.Event()

        def sample() -> None:
            while not over.is_set():
                self.least = min(self.least, runtime.memGetInfo()[0])
                time.sleep(0.001)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def taken(self) -> int:
        """Most bytes beyond the bare context."""
        return self.bare - self.least


@pytest.fixture(scope="module")
def bare_context() -> int:
    """Free device memory beside the bare context, and beside nothing that chunkflow took before."""
    import cupy

    cupy.cuda.runtime.free(0)
    cupy.get_default_memory_pool().free_all_blocks()
    earlier = 0
    if "chunkflow.devices.cuda.device" in sys.modules:  # other tests ran before
        earlier = sys.modules["chunkflow.devices.cuda.device"].device(0).reserve
    return int(cupy.cuda.runtime.memGetInfo()[0]) + earlier

"""What the driver and the link say of a GPU while something runs."""

from __future__ import annotations

import statistics
import threading
import time

import cupy as cp
import numpy as np

from benchmarks.harness import Contender


class PeakWatch:
    """Most device memory in use beyond what was in use before, by name of the contender."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}

    def __call__(self, name: str, run: Contender) -> None:
        """Run, sampling the driver's figure every millisecond."""
        cp.get_default_memory_pool().free_all_blocks()
        before = least = cp.cuda.runtime.memGetInfo()[0]
        done = threading.Event()

        def sample() -> None:
            nonlocal least
            while not done.wait(0.001):
                least = min(least, cp.cuda.runtime.memGetInfo()[0])

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            run()
        finally:
            done.set()
            thread.join()
        self.peaks[name] = (before - least) / 1e9


def link_rate() -> float:
    """GB/s of large copies from pinned memory: the bound of everything below."""
    n = 1 << 30
    host = cp.cuda.alloc_pinned_memory(n)
    device, stream = cp.empty(n, np.uint8), cp.cuda.Stream(non_blocking=True)
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        cp.cuda.runtime.memcpyAsync(device.data.ptr, host.ptr, n, 1, stream.ptr)
        stream.synchronize()
        times.append(time.perf_counter() - begin)
    return n / statistics.median(times) / 1e9

"""A file that is on the disk alone, to its sum; the bound is to read it past the page cache."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.case import Bench, Case, Goal, close_to
from benchmarks.data import in_threads
from benchmarks.peers.streams import file_sums


def cases(bench: Bench) -> Iterator[Case]:
    """A file that is on the disk alone; the bound is to read it past the page cache."""
    ram, path = bench.ram, bench.directory / "cold.bin"
    ram.tofile(path)  # one that nobody has mapped: mapped pages can't be dropped
    total, nbytes = float(sum(in_threads(lambda i: ram[i].sum(dtype="f8"), len(ram)))), ram.nbytes
    size = 8 << 20

    def evict() -> None:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    def direct() -> None:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        local = threading.local()

        def read(i: int) -> None:
            if not hasattr(local, "buffer"):
                whole = np.empty(size + 4096, np.uint8)
                start = -whole.ctypes.data % 4096
                local.buffer = whole[start : start + size]
            os.preadv(fd, [local.buffer], i * size)

        in_threads(read, -(-nbytes // size))
        os.close(fd)

    evict()
    runs, missing = file_sums(bench, path, ram.shape, lambda: np.memmap(path, ram.dtype, "r", shape=ram.shape))
    runs["direct reads"] = direct

    def check(name: str, got: Any) -> None:
        if runs[name] is not direct:
            close_to(total)(name, got)
        evict()

    limit = ("direct reads", None)
    yield Case("cold sum", f"file of {ram.shape}", nbytes / 1e9, runs, check, limit, Goal(0.95), missing=missing)
    path.unlink()

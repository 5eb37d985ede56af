"""What a trial call allocates on the CPU: measured while threads end, and while others measure."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from chunkflow.devices.numpy import NumpyDevice

MIXED = """
import ctypes, tracemalloc
from chunkflow.devices.numpy import NumpyDevice

class Allocator(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]

def allocator():
    found = Allocator()
    ctypes.pythonapi.PyMem_GetAllocator(0, ctypes.byref(found))
    return found

NumpyDevice().pool(1 << 20).measure(lambda: None)
malloc = ctypes.pythonapi.PyMem_RawMalloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
before = allocator()
tracemalloc.start()
during = allocator()
assert during.free != before.free
for tracing in (True, False):
    for context in (before.context, during.context):
        for free in (before.free, during.free):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(free)(context, malloc(100))
    tracemalloc.stop()
"""


def test_a_thread_that_ends_may_see_tracing_half_begun() -> None:
    """It reads without a lock which function frees its memory, and with what: one from before, the other from after."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONMALLOC", "PYTHONDEVMODE")}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", MIXED], env=env, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_call_that_ends_leaves_the_others_measured() -> None:
    pool = NumpyDevice().pool(1 << 30)
    begun, ended, found = threading.Event(), threading.Event(), []

    def later() -> None:
        begun.set()
        assert ended.wait(60)
        np.empty(1 << 20, np.uint8)

    thread = threading.Thread(target=lambda: found.append(pool.measure(later)[1]))
    pool.measure(lambda: (thread.start(), begun.wait(60)))
    ended.set()
    thread.join()
    assert found[0] >= 1 << 19


def test_a_call_within_another_takes_nothing_from_its_peak() -> None:
    pool = NumpyDevice().pool(1 << 30)
    inner = []

    def outer() -> None:
        np.empty(1 << 20, np.uint8)
        inner.append(pool.measure(lambda: np.empty(1 << 16, np.uint8).nbytes)[1])

    assert pool.measure(outer)[1] >= 1 << 20
    assert 1 << 16 <= inner[0] < 1 << 17

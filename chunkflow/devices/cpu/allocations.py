"""The most memory that NumPy has allocated at once during a call.

Where `_staging` was built it counts what the calling thread allocates, and nothing else is touched. Without it Python
traces all threads, and its own objects too.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from chunkflow.system.native import staging

T = TypeVar("T")

_RAW = 0  # PYMEM_DOMAIN_RAW


class _Allocator(ctypes.Structure):
    """PyMemAllocatorEx."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Call:
    """A call that is measured; `most` is the peak up to where another one began."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        self.most = 0


_lock = threading.Lock()
_calls: set[_Call] = set()
_own = False
"""Whether tracing was begun here, and ends with the last of the calls, or with a later one."""

_counted = getattr(staging, "counted", None)


def peak(fn: Callable[[], T]) -> tuple[T, int]:
    """Call `fn`; return its result and the most bytes that were allocated at once meanwhile.

    Calls may overlap, and lie within one another: each counts what was allocated within it. Where Python traces, that
    is what any thread allocates; else what NumPy does in the calling one.
    """
    if _counted is not None:
        found: tuple[T, int] | None = _counted(fn)
        if found is not None:  # else this is no NumPy whose functions `_staging` knows
            return found
    return _traced(fn)


def _traced(fn: Callable[[], T]) -> tuple[T, int]:
    """The same by Python's tracing: none of the calls ends it, or the peak, of another."""
    global _own
    call = _Call()
    try:
        with _lock:
            if not _calls and not tracemalloc.is_tracing():
                _steady()
                _own = True
                tracemalloc.start()
            before, most = tracemalloc.get_traced_memory()
            for other in _calls:
                other.most = max(other.most, most)
            _calls.add(call)
            tracemalloc.reset_peak()
        result = fn()
        with _lock:
            most = max(call.most, tracemalloc.get_traced_memory()[1])
        return result, max(0, most - before)
    finally:
        with _lock:
            _calls.discard(call)
            if _own and not _calls and _may_stop():
                _own = False
                tracemalloc.stop()


def _may_stop() -> bool:
    """Whether tracing can end without harm to other threads.

    One that waits for Python's lock within an allocation outside of it (`os.getcwd` makes such) still writes to what
    `tracemalloc` then frees, and the process dies (python/cpython#128679). A call without other threads ends it later.
    """
    broken = sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
    return not broken or len(sys._current_frames()) == 1


def _steady() -> None:
    """Let tracing begin and end while threads do.

    A thread that ends frees memory without Python's lock, up to Python 3.12 even after it was joined. It reads what to
    call, and with which context, one after the other, and `tracemalloc` exchanges both in several steps. So it may
    call tracemalloc's function with the context from before: that is NULL, and the process dies (python/cpython#131566
    takes it for harmless). Python's own functions disregard their context. So it may as well say where these
    functions are, which is what tracemalloc's expect of it: then all mixtures of old and new do the same.
    """
    with suppress(AttributeError):  # not CPython
        form = ctypes.PYFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Allocator))
        get, put = [form((f"PyMem_{name}Allocator", ctypes.pythonapi)) for name in ("Get", "Set")]
        now = _Allocator()
        get(_RAW, now)
        if not now.context:  # else this was done before, or they are the debugger's functions, which need theirs
            own = _Allocator.from_buffer_copy(now)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(own))  # threads may read it until the process ends
            now.context = ctypes.addressof(own)
            put(_RAW, now)
